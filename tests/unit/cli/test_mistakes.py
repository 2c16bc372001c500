"""A mistake on any command line ends at once with code 2 and one sentence that says what to do: no usage, no traceback."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from leco.cli import train, training
from leco.cli.child import Child
from leco.cli.main import COMMANDS, main
from leco.config.experiment import ConfigError
from leco.words import nearest
from services.learner.device import find_device
from support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENTRY, DOCS = str(ROOT / "zoo" / "KeyCorridorS4R3"), str(ROOT / "docs")
EMPTY = ("--task", "Empty-5x5")
MISTAKES: list[tuple[Sequence[str], str]] = [
    (["trian"], "there is no command 'trian'; did you mean 'train'?"),
    (["qwerty"], "there is no command 'qwerty'; the commands are: train, eval, "),
    (["train"], "say what to solve: --task NAME"),
    (["train", *EMPTY, "--run-dir", "/proc/nope"], "cannot use /proc/nope: no such file or directory; choose another"),
    (["train", *EMPTY, "--run-dir", "/dev/null"], "cannot use /dev/null: "),
    (["train", "--config", "nofile.toml"], "nofile.toml is not a file that can be read"),
    (["train", "--config", "/tmp"], "/tmp is not a file that can be read"),
    (["train", "--config", f"{ENTRY}/policy.safetensors"], "is not a text file: name an experiment as TOML"),
    (["train", "--config", str(ROOT / "README.md")], "this is not TOML: "),
    (["train", *EMPTY, "--method", "LECO"], "there is no method 'LECO'; did you mean 'leco'?"),
    (["train", *EMPTY, "--method", "qwerty"], "there is no method 'qwerty'; `leco methods` lists them"),
    (["train", "--task", "keycorridor"], "there is no task 'keycorridor'; did you mean 'KeyCorridorS"),
    (["train", "--task", "qwerty"], "there is no task 'qwerty'; `leco tasks` lists them"),
    (["train", "--task", "no_module:X-v0"], "there is no module 'no_module': install it, or run leco in the folder"),
    (["train", "--task", "Pendulum-v1"], "Pendulum-v1 cannot be learned: its actions are continuous"),
    (["train", *EMPTY, "--env-kwargs", "size"], "--env-kwargs size: expected NAME=VALUE, for example size=8"),
    (["train", *EMPTY, "--wrapper", "nope"], "'nope' is no wrapper: write module:Class"),
    (["tasks", "KeyCorridorS3R3", "--env-kwargs", "size=7"], "cannot be made with {'size': 7}: TypeError: "),
    (["tasks", "Cartpole-v1"], "there is no task 'Cartpole-v1'; did you mean 'CartPole-v1'?"),
    (["train", *EMPTY, "--set", "alpha=0.1"], "there is no key alpha; did you mean training.alpha?"),
    (["train", *EMPTY, "--set", "batchsize=8"], "there is no key batchsize; did you mean learner.batch_size?"),
    (["train", *EMPTY, "--set", "actors.alpha=8"], "there is no key actors.alpha; did you mean training.alpha?"),
    (["train", *EMPTY, "--set", "frame=8"], "there is no key frame; did you mean frames?"),
    (["train", *EMPTY, "--set", "qwerty=8"], "there is no key qwerty; the keys here are: task, method, "),
    (["train", *EMPTY, "--seed", "-3"], "argument --seed: must be a whole number of at least 0, and not '-3'"),
    (["train", *EMPTY, "--frames", "many"], "argument --frames: must be a number, and not 'many'"),
    (["train", *EMPTY, "--preset", "desktop"], "argument --preset: invalid choice: 'desktop'"),
    (["train", *EMPTY, "--nope"], "unrecognized arguments: --nope; see `leco train --help`"),
    (["train", *EMPTY, "--device", "gpu"], "argument --device: must be auto, cpu, cuda or cuda:N, and not 'gpu'"),
    (["train", *EMPTY, "--run-dir", "RUN", "--store", "nope"], "--store: the store must be memory or an address that "),
    (["eval"], "the following arguments are required: run; see `leco eval --help`"),
    (["eval", "nope"], "nope is neither a run nor an entry of the zoo: it has no config.toml."),
    (["eval", DOCS], "docs is neither a run nor an entry of the zoo"),
    (["eval", ENTRY, "--video", "/no/such/x.mp4"], "argument --video: /no/such is not a folder that can be written to"),
    (
        ["eval", ENTRY, "--video", "x.avi"],
        "argument --video: must be a name that ends in .mp4 or .gif, and not 'x.avi'",
    ),
    (["eval", ENTRY, "--json", "/no/such/x.json"], "argument --json: /no/such is not a folder that can be written to"),
    (["eval", ENTRY, "--json", "/tmp"], "argument --json: /tmp is a folder: name a file"),
    (["eval", ENTRY, "--seed", "-3"], "argument --seed: must be a whole number of at least 0, and not '-3'"),
    (["eval", ENTRY, "--episodes", "0"], "argument --episodes: must be a whole number of at least 1, and not '0'"),
    (["eval", ENTRY, "--checkpoint", "best"], "an entry of the zoo, with one policy and no checkpoints"),
    (["export", "nope"], "nope is neither a run nor an entry of the zoo"),
    (["export", ENTRY, "--output", "/tmp"], "argument --output: /tmp is a folder: name a file"),
    (["watch", DOCS], "docs is no run; `leco train` makes one under runs/"),
    (["watch", "nope"], "there is no folder nope; `leco train` makes one under runs/"),
    (["watch", ENTRY, "--port", "99999"], "argument --port: must be a whole number from 0 to 65535, and not '99999'"),
    (["report", "nope"], "there is no folder nope"),
    (["report", ENTRY, "--out", "/proc/nope"], "cannot use /proc/nope: no such file or directory; choose another"),
    (["probe", "--task", "qwerty"], "there is no task 'qwerty'; `leco tasks` lists them"),
    (["probe", "--steps", "-1"], "argument --steps: must be a whole number of at least 1, and not '-1'"),
    (["zoo", "--zoo", "nope"], "there are no entries in nope: name a folder with --zoo"),
    (["zoo", "add", "nope"], "nope is neither a run nor an entry of the zoo"),
    (["zoo", "ad", "nope"], "argument add RUN: invalid choice: 'ad' (choose from 'add')"),
    (["sweep", "--tasks", "Empty-5x5", "--out", "/proc/nope"], "cannot use /proc/nope: no such file or directory"),
    (["sweep", "--config", "nofile.toml"], "nofile.toml is not a file that can be read"),
    (["sweep", "--tasks", "Empty-5x5", "--methods", "LECO"], "there is no method 'LECO'; did you mean 'leco'?"),
    (["sweep", "--tasks", "Empty-5x5", "--set", "alpha=0.1"], "there is no key alpha; did you mean training.alpha?"),
    (["sweep", "--tasks", "Empty-5x5", "--seeds", "-3"], "'-3' is no seed; type whole numbers or ranges"),
    (["sweep", "--tasks", "Empty-5x5", "--parallel", "0"], "argument --parallel: must be a whole number of at least 1"),
    (["demo", "--seed", "-1"], "argument --seed: must be a whole number of at least 0, and not '-1'"),
    (["demo", "--frames", "0"], "frames is 0, expected more than 0"),
    (["demo", "--run-dir", "/proc/nope"], "cannot use /proc/nope: no such file or directory"),
    (["learner"], "--run-dir is missing: name the folder that keeps the run"),
    (["learner", "--run-dir", "RUN"], "has no config.toml yet: give --config"),
    (["learner", "--run-dir", "RUN", "--config", str(ROOT / "README.md")], "this is not TOML: "),
    (
        ["learner", "--run-dir", "/proc/nope", "--config", str(ROOT / "configs" / "KeyCorridorS4R3.toml")],
        "cannot use /proc/nope",
    ),
    (["learner", "--run-dir", "RUN", "--config", "nofile.toml"], "nofile.toml is not a file that can be read"),
    (["actor", "--learner", "nowhere"], "must be host:port, for example 127.0.0.1:50051, and not 'nowhere'"),
    (["hashcount", "--store", "nope"], "the store must be memory or an address that begins with redis://"),
    (["health", "--address", "nowhere"], "must be host:port, for example 127.0.0.1:50051, and not 'nowhere'"),
    (["dmlab-levels", "--config", "nofile.toml"], "nofile.toml is not a file that can be read"),
    (["tasks", "--nope"], "unrecognized arguments: --nope; see `leco tasks --help`"),
    (["methods", "nope"], "unrecognized arguments: nope; see `leco methods --help`"),
]


@pytest.fixture(autouse=True)
def _denormals() -> Iterator[None]:
    """The learner rounds very small numbers to zero in its whole process, which is here that of the tests after it."""
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize(("typed", "sentence"), MISTAKES, ids=lambda value: " ".join(value)[:60])
def test_a_mistake_is_one_sentence_and_code_2(
    typed: Sequence[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    said = mistake(monkeypatch, capsys, *(str(tmp_path / "run") if each == "RUN" else each for each in typed))
    command = typed[0] if typed[0] in COMMANDS else ""
    assert said.startswith(f"leco {command}: " if command else "leco: ")
    assert sentence in said
    assert said.count("\n") == 1, "one line"


def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    """What `leco` says to it, after nothing else but what a demonstration begins with."""
    monkeypatch.setattr("sys.argv", ["leco", *typed])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == "" or typed[0] == "demo"
    return said.err


def test_every_command_has_a_mistake_here() -> None:
    assert {typed[0] for typed, _ in MISTAKES} >= set(COMMANDS) - {"cluster"}  # which test_cluster.py has


def test_a_store_that_does_not_answer_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LECO_HASHCOUNT_STORE", "")  # which is given back
    run = tmp_path / "run"
    with socket.socket() as nobody:  # bound, and nobody listens
        nobody.bind(("127.0.0.1", 0))
        address = f"redis://127.0.0.1:{nobody.getsockname()[1]}"
        typed = ("train", *EMPTY, f"--run-dir={run}", f"--store={address}")
        said = mistake(monkeypatch, capsys, *typed)
        assert f"leco train: the store {address}/0 does not answer (" in said
        assert "): start it, or choose another with --store" in said
        assert not run.exists()
        monkeypatch.setattr(training, "_watch", lambda *_: 0)
        monkeypatch.setattr(Child, "start", lambda _: None)
        with pytest.raises(SystemExit) as ended:
            train.main([*typed[1:], "--method=no-int"])  # which counts nothing
        assert ended.value.code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_and_auto_is_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "there is no GPU for --device cuda: torch finds no GPU here; say --device cpu, or leave it out\n"
    assert mistake(monkeypatch, capsys, "train", *EMPTY, "--device=cuda") == f"leco train: {sentence}"
    assert not Path("runs/Empty-5x5-leco-1").exists()
    config = tmp_path / "config.toml"
    config.write_text('task = "Empty-5x5"')
    typed = ("learner", f"--run-dir={tmp_path / 'run'}", f"--config={config}", "--device=cuda")
    assert mistake(monkeypatch, capsys, *typed) == f"leco learner: {sentence}"
    assert find_device("auto") == find_device("cpu") == "cpu"
    given: list[object] = []
    monkeypatch.setattr(train, "train", lambda *_, **how: given.append(how["device"]))
    for device in ("auto", "cpu"):
        with pytest.raises(SystemExit):
            train.main([*EMPTY, f"--device={device}"])
    assert given == ["cpu", "cpu"]
    assert capsys.readouterr().out == "torch finds no GPU here: training on the CPU\n"


def test_a_gpu_is_taken_if_torch_has_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [find_device(name) for name in ("auto", "cuda", "cuda:1", "cpu")] == ["cuda", "cuda", "cuda:1", "cpu"]
    with pytest.raises(ConfigError, match="no GPU for --device cuda:2: torch finds 2 here, numbered from 0"):
        find_device("cuda:2")


@pytest.mark.parametrize(("word", "name"), [("LECO", "leco"), ("no_int", "no-int"), ("xyzzy", None), ("", None)])
def test_only_a_name_that_is_near_is_suggested(word: str, name: str | None) -> None:
    assert nearest(word, ("leco", "no-int", "agac")) == name
