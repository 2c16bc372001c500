"""First-person pixels through the real services, with the real ViZDoom: training, playing what was learned, engines that die."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leco.methods.table import METHODS
from support.paths import ROOT
from support.training_services import LECO, actor, learner, rows, state_of
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

TASK = "vizdoom-my-way-home"
TRAINED = ("no-int", "noveld", "leco")
UNROLL, BATCH, UPDATES = 4, 2, 3
SETTINGS = (f"actors.unroll_length={UNROLL}", f"learner.batch_size={BATCH}", "learner.log_every=1")
ENGINE = b"+viz_instance_id"  # in the command line of every engine


class Processes:
    """All processes that a test has started, however deep: they inherit a variable."""

    def __init__(self) -> None:
        self.variable = f"LEFT_BEHIND={secrets.token_hex(8)}"

    def running(self, word: bytes = b"") -> list[int]:
        """Those with this word in their command line; not the ones that have ended and wait for their parent to notice."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables, command = ((folder / name).read_bytes() for name in ("environ", "cmdline"))
            except OSError:  # it is gone, or not ours
                continue
            if self.variable.encode() in variables.split(b"\0") and word in command:
                found.append(int(folder.name))
        return sorted(found)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """Whatever is started here must have ended in the end, the guards of the engines a moment later."""
    found = Processes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*found.variable.split("="))
        yield found
    until(lambda: not found.running())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, processes: Processes) -> Path:
    """The folder of a run for each method. They are trained at the same time: most of it is waiting for processes to start."""
    folder = tmp_path_factory.mktemp("runs")
    children = []
    for method in TRAINED:
        flags = [f"--task={TASK}", f"--method={method}", "--num-envs=2", "--threads=1", f"--run-dir={folder / method}"]
        flags += [f"--frames={UNROLL * BATCH * UPDATES}", *(f"--set={each}" for each in SETTINGS)]
        pipe = subprocess.PIPE
        children.append(subprocess.Popen([*LECO, "train", *flags], stdout=pipe, stderr=pipe, text=True))
    try:
        for child in children:
            output, errors = child.communicate(timeout=PATIENCE)
            assert (child.returncode, errors) == (0, ""), output
    finally:
        for child in children:
            child.terminate()
            child.communicate()
    assert not processes.running(ENGINE)
    return folder


def leco(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | variables
    return subprocess.run([*LECO, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)


@pytest.mark.parametrize("method", TRAINED)
def test_a_method_trains_on_pixels(method: str, runs: Path) -> None:
    run, row = runs / method, METHODS[method]
    assert [int(each["frames"]) for each in rows(run)] == [UNROLL * BATCH * (n + 1) for n in range(UPDATES)]
    for each in rows(run):
        assert float(each["distinct_share"]) >= 0.25, "of eight pictures, at least those of two environments"
        assert float(each["gradient_norm"]) > 0
        assert float(each["r_e"]) == pytest.approx(-0.0004), "what ViZDoom takes for four tics"
        assert bool(each["r_ep"]) == bool(each["new_code_share"]) == row.counts
        assert bool(each["r_ta"]) == (row.modulation.value != "-")
        assert bool(each["hash_loss"]) == row.learns_hash
    assert state_of(run, UPDATES).updates == UPDATES


def test_what_was_learned_plays(runs: Path, processes: Processes) -> None:
    found = leco("eval", str(runs / "leco"), "--episodes=2")
    assert not processes.running(ENGINE)
    assert (found.returncode, found.stderr) == (0, "")
    head, *lines = found.stdout.splitlines()
    assert head == f"{TASK}, leco, after {UPDATES} updates: 2 fresh episodes"
    assert [" ".join(line.split()[:2]) for line in lines[:3]] == ["success rate", "mean return", "mean length"]
    [recording] = (runs / "leco" / "recordings").iterdir()
    assert lines[3:] == [f"recorded: {recording}"]


def test_an_engine_that_dies_is_counted_and_a_package_that_is_missing_is_one_line(
    tmp_path: Path, processes: Processes
) -> None:
    (tmp_path / "vizdoom.py").write_text("raise ModuleNotFoundError")
    with learner(tmp_path / "run", task=TASK, method="no-int", actors__unroll_length=UNROLL) as server:
        done = leco("actor", f"--learner={server.address}", "--metrics-port=off", PYTHONPATH=f"{tmp_path}:{ROOT}")
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == "leco actor: ViZDoom is not installed: pip install 'leco[vizdoom]'"
        assert "Traceback" not in done.stdout + done.stderr

        with actor(server.address) as player:
            until(lambda: player.metrics()["leco_actor_frames_total"] > 0)
            assert player.metrics()["leco_actor_dropped_episodes_total"] == 0
            engines = processes.running(ENGINE)
            assert len(engines) == 2
            os.kill(engines[0], signal.SIGKILL)
            until(lambda: player.metrics()["leco_actor_dropped_episodes_total"] == 1)
            assert player.metrics()["leco_actor_episodes_total"] == 0, "it has no result"
            frames = player.metrics()["leco_actor_frames_total"]
            until(lambda: player.metrics()["leco_actor_frames_total"] > frames)
            assert player.metrics()["leco_actor_dropped_episodes_total"] == 1
            assert len(processes.running(ENGINE)) == 2
            player.kill()  # the engines end even so
        until(lambda: not processes.running(ENGINE))
