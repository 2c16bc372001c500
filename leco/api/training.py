"""Training from a program or a notebook: `leco.train`, and what it leaves behind."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leco.api.agent import Agent, evaluate, load
from leco.cli.child import last_lines
from leco.cli.train import default_folder
from leco.cli.train_flags import experiment_for
from leco.cli.training import train as run_services
from leco.config.experiment import ConfigError
from leco.evaluation.trained import read_experiment
from leco.evaluation.zoo import is_entry
from leco.report.metrics import read_table, when_reached
from services.learner.device import find_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leco.config.experiment import Experiment
    from leco.evaluation.rollout import Result
    from leco.report.metrics import Column, Reached

    Callback = Callable[["Progress"], object]


class TrainingError(RuntimeError):
    """A service would not run. The text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, by one line of its metrics.csv. Numbers over episodes are of the last 100; None before there are any.

    Attributes:
        frames: Actions trained on.
        seconds: Since the run began.
        frames_per_second: Lately.
        mean_return: Of the task's own rewards.
        success: The share of episodes that were solved.
        length: Mean actions of an episode.
        line: All of the line by column: docs/reports.md says what they are.
    """

    frames: int
    seconds: float
    frames_per_second: float
    mean_return: float | None
    success: float | None
    length: float | None
    line: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """A run: a folder with the configuration, the curves and the checkpoints.

    Examples:
        >>> run = Run("runs/MultiRoom-N2-S4-leco-1")
        >>> run.folder.name
        'MultiRoom-N2-S4-leco-1'
    """

    folder: Path

    def __init__(self, folder: str | Path) -> None:
        object.__setattr__(self, "folder", Path(folder))

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def experiment(self) -> Experiment:
        """What was trained, and how."""
        return read_experiment(self.folder)

    @property
    def metrics(self) -> dict[str, Column]:
        """The curves by column, as float64; nan where a line has nothing. `pandas.DataFrame(run.metrics)` makes a table."""
        return read_table(self.folder / "metrics.csv")

    @property
    def learned(self) -> Reached | None:
        """When 90 % of the last 100 episodes were first solved: success, frames and seconds. None if they never were."""
        return when_reached(self.metrics)

    def agent(self, checkpoint: str = "newest", *, seed: int = 0, greedy: bool = False) -> Agent:
        """What it has learned, as `leco.load` gives it."""
        return load(self.folder, checkpoint, seed=seed, greedy=greedy)

    def evaluate(self, episodes: int = 100, *, seed: int = 0, greedy: bool = False) -> Result:
        """Fresh episodes with the newest checkpoint, as `leco.evaluate` plays them."""
        return evaluate(self.folder, episodes, seed=seed, greedy=greedy)


def train(
    task: str,
    method: str = "leco",
    frames: float | None = None,
    *,
    until: float | None = None,
    seed: int = 1,
    preset: str = "laptop",
    settings: Mapping[str, object] | None = None,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    verbose: bool = True,
    actors: int = 1,
    threads: int | None = None,
    device: str = "cpu",
    ranks: int = 1,
    store: str = "memory",
) -> Run:
    """Trains on this machine, as `leco train` does: the services are child processes. A run that is there already goes on.

    Ctrl-C, or the stop button of a notebook, ends it in order: the learner saves, and the same call goes on from there.

    Args:
        task: What to solve: a name of `leco.TASKS`, or another that `leco train --task` takes.
        method: How: a name of `leco.METHODS`, or `my_module:ROW`.
        frames: Actions to train on; the preset's, if not given.
        until: The success rate of the last 100 episodes, such as 0.95, at which training ends before that.
        seed: Of networks, actions and levels.
        preset: Where settings begin: laptop or paper.
        settings: Others by their names, such as {"training.alpha": 0.02} or {"environment.kwargs.size": 8}
            (docs/reference/settings.md).
        run_dir: The run's folder; runs/TASK-METHOD-SEED, if not given.
        callbacks: Are called with a `Progress` for each new line of metrics.csv, in this process. One that answers True ends the
            run; one that raises ends it too, and the error is this call's.
        verbose: Whether to print lines of progress.
        actors: Actor processes.
        threads: Processor threads of an update; all processors but one, if not given.
        device: Where updates are computed: cpu, cuda, cuda:N or auto.
        ranks: Processes that make an update together, with cuda each on a GPU of its own.
        store: Where visits are counted: memory, or redis://...

    Raises:
        ConfigError: something of this cannot be; nothing has begun.
        TrainingError: a service would not run.

    Examples:
        >>> seen = []
        >>> run = train("Empty-5x5", frames=8192, run_dir="runs/empty", callbacks=[seen.append], verbose=False)
        >>> seen[-1].frames
        8192
        >>> sorted(run.metrics)[:3]
        ['adversary_kl', 'distinct_share', 'entropy']
        >>> run.agent().act(leco.make_env("Empty-5x5", 1, seed=0).reset()[0]) in range(7)
        True
    """
    overrides = {"task": task, "method": method, "frames": frames, "until": until, "seed": seed, "preset": preset}
    experiment = experiment_for("", {**overrides, **(settings or {})}, actors)
    folder = default_folder(experiment) if run_dir is None else Path(run_dir)
    if is_entry(folder):
        raise ConfigError(f"{folder} is an entry of the zoo, which is only played: choose another run_dir")
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        code = run_services(
            experiment,
            folder,
            actors=actors,
            store=store,
            threads=threads or max((os.cpu_count() or 2) - 1, 1),
            device=find_device(device),
            ranks=ranks,
            out=sys.stdout if verbose else nowhere,
            listeners=[_listener(each) for each in callbacks],
            command=f"leco.train({experiment.task!r}, {experiment.method!r}, frames={experiment.frames}, seed={seed})",
        )
    if code == 1:
        raise TrainingError(f"training has ended by an error; {folder / 'logs'} has all of it:\n{_last_words(folder)}")
    return Run(folder)


def _listener(callback: Callback) -> Callable[[Mapping[str, float]], object]:
    return lambda line: callback(
        Progress(
            frames=int(line["frames"]),
            seconds=line["seconds"],
            frames_per_second=line["frames_per_second"],
            mean_return=line.get("return"),
            success=line.get("success"),
            length=line.get("length"),
            line=line,
        )
    )


def _last_words(folder: Path) -> str:
    """How the log ends that was written to last."""
    logs = sorted((folder / "logs").glob("*.log"), key=lambda each: each.stat().st_mtime)
    return last_lines(logs[-1]) if logs else ""
