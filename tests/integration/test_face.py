"""Training from a program: `leco.train`, its callbacks, and Ctrl-C."""

from __future__ import annotations

import doctest
import json
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import leco
from leco.api import training
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

SHORT: dict[str, Any] = {"threads": 1, "verbose": False, "settings": {"learner.log_every": 1}}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_examples_are_true() -> None:
    found = doctest.testmod(training, extraglobs={"leco": leco})
    assert found.attempted > 5
    assert found.failed == 0


def test_callbacks_see_each_line_once_and_one_of_them_ends_the_run_which_then_goes_on(tmp_path: Path) -> None:
    seen: list[leco.Progress] = []

    def enough(progress: leco.Progress) -> bool:
        return progress.frames >= 8192

    run = leco.train("Empty-5x5", frames=65536, callbacks=[seen.append, enough], run_dir=tmp_path / "run", **SHORT)
    frames = [each.frames for each in seen]
    assert frames == run.metrics["frames"].tolist()
    assert frames[:2] == [4096, 8192]
    assert frames[-1] < 65536, "it was ended"
    more: list[leco.Progress] = []
    to_go = frames[-1] + 4096
    leco.train("Empty-5x5", frames=to_go, callbacks=[more.append], run_dir=tmp_path / "run", **SHORT)
    assert [each.frames for each in more] == [to_go]
    starts = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert starts[0]["command"] == "leco.train('Empty-5x5', 'leco', frames=65536, seed=1)"


def test_an_error_in_a_callback_ends_the_run_and_is_raised(tmp_path: Path) -> None:
    def fails(_: leco.Progress) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        leco.train("Empty-5x5", frames=1e6, callbacks=[fails], run_dir=tmp_path / "run", **SHORT)
    assert list((tmp_path / "run" / "checkpoints").glob("[0-9]*.safetensors")), "the learner has saved"


def test_it_also_trains_in_a_thread_that_gets_no_signals(tmp_path: Path) -> None:
    done: list[leco.Run] = []
    thread = threading.Thread(
        target=lambda: done.append(leco.train("Empty-5x5", "no-int", 4096, run_dir=tmp_path / "run", **SHORT))
    )
    thread.start()
    thread.join(PATIENCE)
    assert done[0].metrics["frames"].tolist() == [4096]


def test_what_cannot_be_is_refused_before_anything_begins(tmp_path: Path) -> None:
    with pytest.raises(leco.ConfigError, match="did you mean"):
        leco.train("Empty-5x6", frames=1e4)
    with pytest.raises(leco.ConfigError, match=r"training\.alpha is -1"):
        leco.train("Empty-5x5", settings={"training.alpha": -1})
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_ends_it_in_order_and_the_program_goes_on(tmp_path: Path) -> None:
    program = (
        "import leco\n"
        "run = leco.train('Empty-5x5', frames=1e7, run_dir='run', threads=1, settings={'learner.log_every': 1})\n"
        "print('then', len(run.metrics['frames']) > 0, run.agent().task.name)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    until(lambda: len(leco.Run(tmp_path / "run").metrics.get("frames", ())) > 0)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    assert said.endswith("then True Empty-5x5\n")
