"""A run's folder is of one experiment."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from leco.config.experiment import ConfigError
from leco.config.toml import parse, to_toml
from leco.telemetry.provenance import COMMAND
from services.learner.run_folder import check_same, difference, open_run, run_name

if TYPE_CHECKING:
    from pathlib import Path


def config(folder: Path, **changes: Any) -> Path:
    path = folder / "wanted.toml"
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    path.write_text(to_toml(parse("", {"task": "Empty-5x5", "learner.batch_size": 4} | keys)))
    return path


def test_a_new_folder_gets_the_experiment_and_the_versions(tmp_path: Path) -> None:
    run = tmp_path / "some" / "run"
    experiment = open_run(run, config(tmp_path))
    assert experiment.learner.batch_size == 4
    assert parse((run / "config.toml").read_text()) == experiment
    [start] = json.loads((run / "versions.json").read_text())
    assert (start["leco"], start["torch"].split("+")[0]) == (version("leco"), "2.13.0")
    assert start["started"].endswith("Z")
    assert start["processors"] >= 1
    assert start["memory_bytes"] > 2**28
    assert start["processor"]


def test_the_command_that_was_typed_is_kept_but_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMAND, raising=False)
    monkeypatch.setattr("sys.argv", ["/somewhere/leco", "learner", "--run-dir", "a run"])
    open_run(tmp_path / "run", config(tmp_path))
    monkeypatch.setenv(COMMAND, "leco train --store redis://:secret@host:1/0 --task Empty-5x5")
    open_run(tmp_path / "run", None)
    found = [start["command"] for start in json.loads((tmp_path / "run" / "versions.json").read_text())]
    assert found == ["leco learner --run-dir 'a run'", "leco train --store redis://...@host:1/0 --task Empty-5x5"]


def test_every_start_is_noted_and_the_folder_is_enough_to_go_on(tmp_path: Path) -> None:
    first = open_run(tmp_path / "run", config(tmp_path))
    assert open_run(tmp_path / "run", None) == first
    assert len(json.loads((tmp_path / "run" / "versions.json").read_text())) == 2


def test_a_folder_without_an_experiment_needs_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config.toml yet: give --config"):
        open_run(tmp_path / "run", None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("frames", [10, 10_000_000])
def test_more_or_fewer_frames_are_the_same_experiment(tmp_path: Path, frames: int) -> None:
    open_run(tmp_path / "run", config(tmp_path, frames=1000))
    assert open_run(tmp_path / "run", config(tmp_path, frames=frames)).frames == frames
    assert parse((tmp_path / "run" / "config.toml").read_text()).frames == frames


def test_a_run_may_be_told_to_end_at_another_success_rate_or_at_none(tmp_path: Path) -> None:
    open_run(tmp_path / "run", config(tmp_path))
    for until in (0.95, 0.99, None):
        assert open_run(tmp_path / "run", config(tmp_path, until=until)).until == until
        assert parse((tmp_path / "run" / "config.toml").read_text()).until == until


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learner__batch_size": 8}, "(learner.batch_size is 8, was 4)"),
        ({"task": "DoorKey-5x5", "seed": 3, "frames": 5}, "(task is 'DoorKey-5x5', was 'Empty-5x5'; seed is 3, was 1)"),
        ({"training__decoder_samples": 64}, "(training.decoder_samples is 64, was 'off')"),
        ({"training__lambda": 0.25}, "(training.lambda is 0.25, was 0.5)"),
        ({"training__max_gradient_norm": 2}, "(training.max_gradient_norm is 2.0, was 'off')"),
    ],
)
def test_another_experiment_is_refused_by_naming_what_differs(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    open_run(tmp_path / "run", config(tmp_path))
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ConfigError) as caught:
        open_run(tmp_path / "run", config(tmp_path, **changes))
    assert f"holds a run of another experiment {named}; choose another folder, or" in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_key_that_is_left_out_now_is_named_too(tmp_path: Path) -> None:
    open_run(tmp_path / "run", config(tmp_path, training__decoder_samples=64))
    with pytest.raises(ConfigError, match=r"training.decoder_samples is 'off', was 64"):
        open_run(tmp_path / "run", config(tmp_path))


def test_the_name_on_the_wire_has_only_allowed_characters(tmp_path: Path) -> None:
    assert run_name(tmp_path / "KeyCorridorS3R3-leco-1") == "KeyCorridorS3R3-leco-1"
    assert run_name(tmp_path / "été 1") == "-t--1"
    assert len(run_name(tmp_path / ("a" * 100))) == 64


def test_a_run_does_not_end_before_what_it_has_trained(tmp_path: Path) -> None:
    run = tmp_path / "run"
    experiment = open_run(run, config(tmp_path, frames=10_000, learner__checkpoint_every=2))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "000000026.safetensors").touch()  # 26 updates of 4 x 96 frames: 9,984
    (run / "checkpoints" / "000000999.safetensors").mkdir()  # a folder is no checkpoint
    check_same(run, experiment)
    for fewer in (9_984, 9_601):  # its last update is whole
        open_run(run, config(tmp_path, frames=fewer, learner__checkpoint_every=2))
    with pytest.raises(ConfigError, match=r"frames is 9,600, but 9,984 are trained already: give more"):
        open_run(run, config(tmp_path, frames=9_600, learner__checkpoint_every=2))
    assert parse((run / "config.toml").read_text()).frames == 9_601, "what is refused changes nothing"


def test_a_deterministic_run_may_have_trained_up_to_its_next_checkpoint(tmp_path: Path) -> None:
    run, turns = tmp_path / "run", {"learner__deterministic": True, "learner__checkpoint_every": 8}
    open_run(run, config(tmp_path, frames=10_000, **turns))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "000000032.safetensors").touch()  # 12,288 frames
    assert difference(run, open_run(run, config(tmp_path, frames=9_217, **turns))) == ""
    with pytest.raises(ConfigError, match=r"frames is 9,216, but 12,288 are trained already"):
        open_run(run, config(tmp_path, frames=9_216, **turns))


@pytest.mark.parametrize("damaged", [b"task = ", b"\xff\xfe", b"", b"task = 'Empty-5x5'\nframes = 'many'"])
def test_a_damaged_experiment_is_named_with_what_to_do(tmp_path: Path, damaged: bytes) -> None:
    run = tmp_path / "run"
    open_run(run, config(tmp_path))
    (run / "config.toml").write_bytes(damaged)
    for given in (None, config(tmp_path)):
        with pytest.raises(ConfigError) as caught:
            open_run(run, given)
        assert str(caught.value).startswith(f"{run / 'config.toml'} cannot be read (")
        assert str(caught.value).endswith(
            "): put a copy of it there, or remove it and give the experiment again (--config)"
        )
    (run / "config.toml").unlink()
    open_run(run, config(tmp_path))


@pytest.mark.parametrize("damaged", [b"[{", b"\xff", b"", b"7"])
def test_damaged_versions_are_set_aside(tmp_path: Path, damaged: bytes) -> None:
    run = tmp_path / "run"
    open_run(run, config(tmp_path))
    (run / "versions.json").write_bytes(damaged)
    open_run(run, None)
    assert len(json.loads((run / "versions.json").read_text())) == 1
    [aside] = run.glob("versions.json.damaged-*")
    assert aside.read_bytes() == damaged
