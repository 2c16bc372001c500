"""`leco train --wandb`, offline: what would be sent."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import imageio.v3 as imageio
import pytest
from wandb.proto import wandb_internal_pb2

from leco.report.metrics import read_table
from support.paths import ROOT
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path


FILM = "episode/path"
RECORD: Any = wandb_internal_pb2.Record  # type: ignore[attr-defined]  # made as it is imported


def train(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "leco", "train", "--task=Empty-5x5", "--threads=1", "--run-dir=run", *arguments],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def records(file: Path) -> list[Any]:
    """The records of a file of wandb's: after a header of 7 bytes a log in blocks of 32 KiB, as LevelDB writes it."""
    data, at, found, part = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if (left := 0x8000 - at % 0x8000) < 7:
            at += left
            continue
        _crc, length, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = RECORD()
            record.ParseFromString(part)
            found.append(record)
            part = b""
    return found


def history(found: list[Any]) -> list[dict[str, str]]:
    """What was logged, as JSON by name, a dictionary for each call."""
    return [
        {(item.key or "/".join(item.nested_key)): item.value_json for item in each.history.item}
        for each in found
        if each.HasField("history")
    ]


def test_curves_configuration_and_films_are_kept_to_be_sent(tmp_path: Path) -> None:
    done = train(tmp_path, "--frames=8192", "--set=learner.log_every=1", "--wandb=mine", WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    [file] = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    found = records(file)
    [run] = [each.run for each in found if each.HasField("run")]
    assert (run.project, run.display_name) == ("mine", "run")
    assert run.run_id == (tmp_path / "run" / "wandb-id").read_text()
    config = {item.key: item.value_json for item in run.config.update}
    assert config["task"] == '"Empty-5x5"'
    assert config["training.gamma"] == "0.97"
    lines = history(found)
    curves = [each for each in lines if FILM not in each]
    assert [float(each["frames"]) for each in curves] == read_table(tmp_path / "run" / "metrics.csv")["frames"].tolist()
    assert "success" in curves[-1]
    films = {each["frames"]: json.loads(each[FILM]) for each in lines if FILM in each}
    assert list(films) == ["4096", "8192"]  # milestones: half of the training, and all of it
    for each in films.values():
        assert imageio.improps(file.parent / "files" / each, plugin="FFMPEG").shape[1:] == (480, 960, 3)
    assert not list(tmp_path.glob("run/recordings/*"))  # which are what somebody evaluated


def test_a_run_that_goes_on_sends_only_new_films(tmp_path: Path) -> None:
    for frames in (4096, 8192):
        done = train(tmp_path, f"--frames={frames}", "--set=learner.milestones=1", "--wandb", WANDB_MODE="offline")
        assert done.returncode == 0, done.stderr
    sent = [history(records(each)) for each in (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")]
    assert sorted([line["frames"] for line in lines if FILM in line] for lines in sent) == [["4096"], ["8192"]]


def test_what_cannot_draw_sends_curves_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    done = train(tmp_path, "--frames=4096", "--wandb", WANDB_MODE="offline", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 0, done.stderr
    assert "no films on Weights & Biases: they need pip install 'leco[report]'" in done.stdout
    [file] = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert [line["frames"] for line in history(records(file))] == ["4096"]


def test_without_a_key_it_says_so_before_anything_begins(tmp_path: Path) -> None:
    done = train(tmp_path, "--frames=8192", "--wandb", WANDB_MODE="online", WANDB_API_KEY="", NETRC="nowhere")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("leco train: --wandb: ")
    assert "WANDB_MODE=offline" in done.stderr
    assert not (tmp_path / "run" / "metrics.csv").exists()


def test_without_the_package_it_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leco.cli.wandb_log import wandb_listeners
    from leco.config.experiment import ConfigError
    from leco.config.toml import parse

    monkeypatch.setitem(sys.modules, "wandb", None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'leco\[wandb\]'"),
        wandb_listeners("leco", parse('task = "Empty-5x5"'), tmp_path),
    ):
        pass
