"""The services of a training run as real child processes: `leco learner`, `leco actor`, `leco hashcount`, `leco train`."""

from __future__ import annotations

import csv
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from leco.checkpoint.state_file import load
from leco.config.experiment import method_of
from leco.config.toml import parse, to_toml
from leco.envs.registry import find_task
from leco.learning.state import TrainingState, init
from leco.models.build import build
from support.service_process import ServiceProcess
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

LECO = (sys.executable, "-P", "-m", "leco")
# Stepped by MiniGrid itself, because it has a step of its own: no kernel is compiled when an actor starts. An episode of random
# play has 27 actions in the mean, so that most unrolls begin inside one.
TASK = "MiniGrid-Fetch-5x5-N2-v0"
SMALL: dict[str, Any] = {
    "task": TASK,
    "actors.num_envs": 2,
    "actors.unroll_length": 8,
    "learner.batch_size": 2,
    "learner.queue_capacity": 8,
    "learner.checkpoint_every": 10,
    "learner.log_every": 1,
}


class TrainingProcess(ServiceProcess):
    """Runs `leco NAME` from `with` to its end.

    Args:
        name: Of the command.
        flags: Its flags.
        ready: The log line that says that it has begun; an empty one does not wait.
    """

    def __init__(self, name: str, *flags: str, ready: str = "serving") -> None:
        super().__init__()
        self._command = [*LECO, name, "--log-format", "json", *flags]
        self._ready = ready

    def given(self, *flags: str) -> Self:
        """The same with further flags."""
        self._command += flags
        return self

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            self._command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.pid = self._child.pid
        self._reader = threading.Thread(target=self._read, name=f"leco-{self.pid}")
        self._reader.start()
        try:
            line = self.until_logged(self._ready)
        except BaseException:
            self.kill()
            raise
        self.address = str(line.get("address"))
        self.metrics_port = int(line.get("metrics_port") or line.get("port") or 0)
        return self


def learner(run: Path, *, listen: str = "127.0.0.1:0", **overrides: Any) -> TrainingProcess:
    """The learner of a run; `overrides` are keys of the experiment, with _ for the dot."""
    config = run.with_suffix(".toml")
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    config.write_text(to_toml(parse("", SMALL | changes)))
    flags = (f"--config={config}", f"--run-dir={run}", f"--listen={listen}", "--metrics-port=0", "--threads=1")
    return TrainingProcess("learner", *flags)


def actor(learner_address: str, hashcount: str | None = None, *flags: str) -> TrainingProcess:
    """An actor; it is ready when it begins to look for the learner. When it is asked to stop, it sends what it has."""
    addresses = [f"--learner={learner_address}", *([f"--hashcount={hashcount}"] if hashcount else [])]
    ours = ("--index=0", "--metrics-port=0", f"--drain-seconds={PATIENCE:g}")
    return TrainingProcess("actor", *addresses, *ours, *flags, ready="serving metrics")


def patient_actor(learner_address: str, hashcount: str, *flags: str) -> TrainingProcess:
    """The same, but it waits for its counts for ever, and so in any case longer than a test."""
    process = actor(learner_address, hashcount, *flags)
    program = (
        "from services.actor import loop; loop.COUNT_PATIENCE_SECONDS = 1e6; from leco.cli.main import main; main()"
    )
    process._command = [sys.executable, "-P", "-c", program, *process._command[len(LECO) :]]
    return process


def updates(process: TrainingProcess) -> int:
    """Updates of a learner since its start."""
    return int(process.metrics()["leco_learner_updates_total"])


def until_updates(process: TrainingProcess, count: int) -> None:
    """Waits until a learner has made so many updates since its start."""
    until(lambda: updates(process) >= count)


def rows(run: Path) -> list[dict[str, str]]:
    """The lines of a run's metrics.csv; none before there is one."""
    path = run / "metrics.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def state_of(run: Path, updates: int) -> TrainingState:
    """What a run saved after so many updates."""
    experiment = parse((run / "config.toml").read_text())
    task = find_task(experiment.task)
    method, network = method_of(experiment), experiment.network
    networks = build(method, task.observation_shape, task.num_actions, experiment.hash, network)
    return load(run / "checkpoints" / f"{updates:09d}.safetensors", init(networks))[0]
