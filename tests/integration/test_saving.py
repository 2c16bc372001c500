"""States and versions on disk, written by several processes and by ones that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from leco.checkpoint.state_file import load, save
from support.paths import ROOT, TESTS
from support.state_case import FACTS, assert_same, like, odd_state
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from leco.learning.state import TrainingState

KILLS = 45


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{TESTS}:{ROOT}", "OMP_NUM_THREADS": "1"}


def filled(state: TrainingState, number: int) -> TrainingState:
    """A state of 1 MB in which everything says the same number."""
    return state._replace(updates=number, intrinsic={"large": torch.full((250_000,), float(number))})


def kill_savers(path: Path) -> None:
    """Starts a process that saves in a loop and kills it, again and again; whatever it leaves must be whole."""
    base, last = odd_state(), 0
    save(path, filled(base, last), {"number": last})
    for kill in range(KILLS):
        child = os.fork()
        while child == 0:
            last += 1
            save(path, filled(base, last), {"number": last})
        if kill % 3 == 0:
            time.sleep(0.0007 * (kill + 1))  # a save takes about 10 ms
        elif kill % 3 == 1:
            until(lambda: any(path.parent.glob(".*.partial")))  # it is written
        else:
            before = path.stat().st_mtime_ns
            until(lambda: path.stat().st_mtime_ns != before)  # noqa: B023  # called at once; one more was saved
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        state, facts = load(path, filled(like(base), 0))
        assert_same(state, filled(base, state.updates))
        assert facts == {"number": state.updates}
        assert state.updates >= last
        last = state.updates
    assert last > 0


def save_twice_at_once(path: Path) -> None:
    """Two processes save to one path, against the rules: one may fail, but the file stays whole."""
    base, children = odd_state(), []
    save(path, filled(base, 0), {})
    for writer in range(2):
        children.append(os.fork())
        while children[-1] == 0:
            with contextlib.suppress(FileNotFoundError):
                save(path, filled(base, writer), {})
    try:
        for _ in range(60):
            state, _ = load(path, filled(like(base), 0))
            assert_same(state, filled(base, state.updates))
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.parametrize("what", ["kill_savers", "save_twice_at_once"])
def test_whatever_happens_the_file_is_whole(tmp_path: Path, what: str) -> None:
    script = f"import sys; from pathlib import Path; from test_saving import *; {what}(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=True, env=environment(), timeout=PATIENCE)


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from test_saving import *;"
        "save(Path(sys.argv[1]), odd_state(), dict(reversed(FACTS.items())))"
    )
    mine, child = tmp_path / "mine", tmp_path / "child"
    save(mine, odd_state(), FACTS)
    subprocess.run([sys.executable, "-c", script, str(child)], check=True, env=environment(), timeout=PATIENCE)
    assert child.read_bytes() == mine.read_bytes()


PUBLISHER = """
import sys
from pathlib import Path
from services.learner import checkpoints
checkpoints.RESERVED_VERSIONS = 3  # so that the file is often written
kept = checkpoints.Checkpoints(Path(sys.argv[1]), 1)
for updates in range(10**9):
    print(kept.version(updates), flush=True)
"""


def test_no_version_comes_twice_over_kills(tmp_path: Path) -> None:
    published = 0
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            versions = [int(child.stdout.readline()) for _ in range(40)]
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            rest, _ = child.communicate(timeout=PATIENCE)
        versions += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        assert versions[0] > published
        assert versions == sorted(set(versions))
        published = versions[-1]
        assert int((tmp_path / "versions").read_text()) >= published
