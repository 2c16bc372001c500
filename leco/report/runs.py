"""What run folders hold, and what of it is missing: nothing that is broken or half written keeps the rest from being shown."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from leco.config.experiment import ConfigError, task_of
from leco.config.toml import flat, parse, show
from leco.envs.registry import TASKS
from leco.evaluation.recording import FOLDER, Recording, RecordingError, read_recording
from leco.report.metrics import columns, read_metrics, when_reached

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from leco.config.experiment import Experiment
    from leco.envs.task import Task
    from leco.report.metrics import Column, Reached

# Settings that say where and for how long, not what is learned: they do not make two runs different.
_SAME = {"task", "method", "seed", "frames", "until"} | {
    f"learner.{key}"
    for key in (
        "keep_checkpoints",
        "milestones",
        "checkpoint_every",
        "log_every",
        "queue_capacity",
        "max_policy_lag",
        "deterministic",
        "publish_every",
    )
}


class ReportError(ValueError):
    """There is nothing to report on. The text says why."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Fresh episodes, played after so many updates: the share that was solved (nan: none can be), and the mean return."""

    updates: int
    episodes: int
    success: float
    mean_return: float


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    name        of its folder
    task, method, seed   of its config.toml; of a run without one, the folder's name is its method
    label       the method, with the settings that other runs of it have otherwise
    varied      those settings
    columns     of metrics.csv, by name
    starts      what versions.json says of each start
    solvable    whether its task calls episodes solved
    evaluation  the newest
    recordings  files, the earliest checkpoint first
    missing     sentences
    """

    name: str
    folder: Path
    task: str
    method: str
    seed: int | None = None
    label: str = ""
    varied: Mapping[str, str] = field(default_factory=dict)
    experiment: Experiment | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    starts: tuple[Mapping[str, Any], ...] = ()
    solvable: bool = True
    evaluation: Evaluation | None = None
    recordings: tuple[Path, ...] = ()
    missing: tuple[str, ...] = ()

    def curve(self, name: str, against: str = "frames") -> tuple[Column, Column]:
        """A column and what it is drawn against, where both are known and the latter grows."""
        if not {name, against} <= self.columns.keys():
            return np.empty(0), np.empty(0)
        x, y = self.columns[against], self.columns[name]
        known = np.isfinite(x) & np.isfinite(y)
        x, y = x[known], y[known]
        grows = np.diff(np.maximum.accumulate(x), prepend=-np.inf) > 0
        return x[grows], y[grows]

    def last(self, name: str) -> float:
        """The last known value of a column; nan if there is none."""
        values = self.columns.get(name, np.empty(0))
        known = values[np.isfinite(values)]
        return float(known[-1]) if len(known) else math.nan

    def reached(self) -> Reached | None:
        """When 90 % of the last 100 episodes were solved; None if that never was, or cannot be."""
        return when_reached(self.columns) if self.solvable else None

    def recorded(self) -> Iterator[Recording]:
        """Its recordings one after the other, since all of them may be large; those that cannot be read are left out."""
        for path in self.recordings:
            try:
                yield read_recording(path)
            except (RecordingError, OSError):
                continue

    def newest(self) -> Recording | None:
        """The recording of the newest checkpoint, if there is one and it can be read."""
        try:
            return read_recording(self.recordings[-1]) if self.recordings else None
        except (RecordingError, OSError):
            return None


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of folders; of a folder that is none, as that of a sweep, those in it.

    Raises:
        ReportError: there is none in one of them.
    """
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise ReportError(f"there is no folder {path}")
        found = [path] if is_run(path) else sorted(each for each in path.iterdir() if each.is_dir() and is_run(each))
        if not found:
            raise ReportError(f"{path} is no run and has none in it: `leco train` and `leco sweep` make them")
        folders += found
    runs = [_read(folder) for folder in dict.fromkeys(each.resolve() for each in folders)]
    return _labelled(runs)


def read_curves(folder: Path, *, task: str, label: str) -> Run:
    """A run of which only the curves are asked for, under a name of the caller's."""
    missing: list[str] = []
    table = _table(folder, missing)
    return Run(folder.name, folder, task, label, label=label, columns=table, missing=tuple(missing))


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, also of one that has only begun."""
    return any((folder / name).exists() for name in ("config.toml", "metrics.csv", "requested.toml"))


def _read(folder: Path) -> Run:
    missing: list[str] = []
    experiment = _experiment(folder, missing)
    run = Run(folder.name, folder, "unknown task", folder.name, experiment=experiment)
    if experiment is not None:
        run = replace(
            run,
            task=experiment.task,
            method=experiment.method,
            seed=experiment.seed,
            solvable=task_of(experiment).solvable,
        )
    table = _table(folder, missing)
    evaluations = _evaluations(folder, missing, solvable=run.solvable)
    newest = max(evaluations.values(), key=lambda each: (each.updates, each.episodes), default=None)
    if newest is None:
        missing.append(
            "it has not been evaluated: `leco eval` plays fresh episodes, and records them for maps and codes"
        )
    return replace(
        run,
        columns=table,
        starts=_starts(folder, missing),
        evaluation=newest,
        recordings=tuple(path for path in evaluations if path.suffix == ".npz"),
        missing=tuple(missing),
    )


def _experiment(folder: Path, missing: list[str]) -> Experiment | None:
    for name in ("config.toml", "requested.toml"):
        try:
            return parse((folder / name).read_text())
        except FileNotFoundError:
            missing.append(f"there is no {name}")
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            missing.append(f"{name} cannot be used: {error}")
    return None


def _table(folder: Path, missing: list[str]) -> dict[str, Column]:
    try:
        table = columns(read_metrics(folder / "metrics.csv"))
    except OSError:
        missing.append("there is no metrics.csv: no curves")
        return {}
    if not len(table.get("frames", ())):
        missing.append("metrics.csv has no line yet: no curves")
    return table


def _starts(folder: Path, missing: list[str]) -> tuple[Mapping[str, Any], ...]:
    try:
        found = json.loads((folder / "versions.json").read_text())
        return tuple(each for each in found if isinstance(each, dict))
    except (OSError, ValueError, TypeError):
        missing.append("there is no usable versions.json: versions and hardware are not known")
        return ()


def _evaluations(folder: Path, missing: list[str], *, solvable: bool) -> dict[Path, Evaluation]:
    """What evaluation.json and each recording say, by file; whatever cannot be read is missing."""
    found = {}
    path = folder / "evaluation.json"
    try:
        kept = json.loads(path.read_text())
        success = math.nan if kept["success"] is None else float(kept["success"])
        found[path] = Evaluation(int(kept["updates"]), int(kept["episodes"]), success, float(kept["return"]))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, LookupError, TypeError):
        missing.append("evaluation.json is damaged")
    for path in sorted((folder / FOLDER).glob("*.npz")):
        try:
            recording = read_recording(path)
        except (RecordingError, OSError) as error:
            missing.append(str(error).replace(f"{folder}/", ""))
            continue
        if not recording.metadata.greedy:
            found[path] = _evaluation(recording, solvable=solvable)
    return found


def _evaluation(recording: Recording, *, solvable: bool) -> Evaluation:
    """By all episodes that were played, if the recording says how these went; else by those in it."""
    told, episodes = recording.metadata, recording.episodes
    if told.success is not None and told.mean_return is not None:
        count, share, returns = told.played, told.success, told.mean_return
    else:
        count, share = len(episodes), float(np.mean([each.solved for each in episodes]))
        returns = float(np.mean([each.score for each in episodes]))
    return Evaluation(told.updates, count, share if solvable else math.nan, returns)


def find_known(name: str) -> Task | None:
    """The task of this name, if leco knows it."""
    return TASKS.get(name)


def score_scale(name: str) -> tuple[float, float]:
    """The returns that count as 0 and as 1: those of random play and of people, where both are known; otherwise 0 and 1."""
    task = find_known(name)
    return task.scores if task is not None and task.scores is not None else (0.0, 1.0)


def _labelled(runs: Sequence[Run]) -> list[Run]:
    """With labels: of a method, what differs between its runs of one task."""
    settings = {run.folder: flat(run.experiment) if run.experiment is not None else {} for run in runs}
    differing: dict[str, list[str]] = {}
    for method in {run.method for run in runs}:
        keys: dict[str, None] = {}
        for task in {run.task for run in runs}:
            tables = [settings[run.folder] for run in runs if (run.method, run.task) == (method, task)]
            for key in dict.fromkeys(key for table in tables for key in table):
                if key not in _SAME and len({show(table.get(key, "off")) for table in tables}) > 1:
                    keys[key] = None
        differing[method] = list(keys)
    named = []
    for run in runs:
        varied = {key: show(settings[run.folder].get(key, "off")) for key in differing[run.method]}
        told = [f"{key.rpartition('.')[2]} {value}" for key, value in varied.items()]
        named.append(replace(run, label=", ".join([run.method, *told]), varied=varied))
    return named
