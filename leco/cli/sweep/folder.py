"""A sweep's folder: how far each run in it has come, whether it can take what is asked for, and sweep.toml.

sweep.toml               the last command, and all runs that were ever asked for
TASK-METHOD...-SEED/     a run each, as `leco train` leaves it, and
    evaluation.json      what `leco eval` found
    logs/train.log, logs/eval.log
results.csv, results.md, TASK.png   see leco.cli.sweep.results
"""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

from leco.checkpoint.atomic_file import atomic_write
from leco.checkpoint.trained import frames_of_update, trained_updates
from leco.config.experiment import ConfigError, Experiment
from leco.report.metrics import columns, read_metrics, when_reached
from leco.words import counted
from services.learner.run_folder import difference

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leco.cli.sweep.plan import Run


def evaluation(folder: Path, episodes: int | None = None) -> dict[str, Any] | None:
    """What `leco eval` wrote about the newest checkpoint, if it did, and over so many episodes."""
    try:
        found: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    except (OSError, ValueError):
        return None
    right = found.get("updates") == trained_updates(folder) and episodes in (None, found.get("episodes"))
    return found if right else None


def last_metrics(folder: Path) -> dict[str, str] | None:
    """The last line of a run's metrics.csv, if there is one."""
    try:
        rows = read_metrics(folder / "metrics.csv")
    except OSError:
        return None
    return rows[-1] if rows else None


def is_trained(folder: Path, experiment: Experiment) -> bool:
    """Whether training has come to its end: by its frames, or by a success rate that its last line has."""
    updates = trained_updates(folder)
    if updates * frames_of_update(experiment) >= experiment.frames:
        return True
    last = last_metrics(folder) if experiment.until is not None else None
    if last is None or experiment.until is None or when_reached(columns([last]), experiment.until) is None:
        return False
    return updates >= int(last["updates"])  # otherwise it was killed before it could save that


def needs(run: Run, folder: Path, episodes: int) -> str:
    """What is left to do for a run: "train", "evaluate" or nothing."""
    if not is_trained(folder, run.experiment):
        return "train"
    return "evaluate" if evaluation(folder, episodes) is None else ""


def check_folder(runs: Sequence[Run], out: Path) -> None:
    """Refuses runs that were trained with other settings, or for longer.

    Raises:
        ConfigError: says what differs.
    """
    found = [(run.name, difference(out / run.name, run.experiment)) for run in runs]
    refused = [f"{name}: {differs}" for name, differs in found if differs]
    if refused:
        more = f" (and {counted(len(refused) - 1, 'more run')})" if len(refused) > 1 else ""
        raise ConfigError(
            f"{out} has other settings for the same run. {refused[0]}{more}. "
            "Choose another folder with --out, or give the same settings to go on"
        )


class Asked:
    """sweep.toml: all runs that a folder was ever asked for, and what trained them.

    Args:
        out: The sweep's folder.
        command: The present command.
        runs: What it asks for.
    """

    def __init__(self, out: Path, command: str, runs: Sequence[Run]) -> None:
        self._path, self._command = out / "sweep.toml", command
        self.runs: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            try:
                self.runs = {each["name"]: each for each in tomllib.loads(self._path.read_text())["runs"]}
            except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
                raise ConfigError(f"{self._path} is damaged ({error}); remove it to make a new one") from None
        for run in runs:
            e = run.experiment
            row = {"name": run.name, "task": e.task, "method": e.method, "seed": e.seed, "frames": e.frames}
            row |= {"until": e.until} if e.until is not None else {}
            commits = self.runs.get(run.name, {}).get("commits", [])
            self.runs[run.name] = row | {"varied": dict(run.varied), "commits": commits}

    def note_commit(self, name: str, commit: str) -> None:
        """Notes by which code a run is trained from now on."""
        if commit and commit not in self.runs[name]["commits"]:
            self.runs[name]["commits"].append(commit)
            self.write()

    def write(self) -> None:
        """Puts the file in place."""
        lines = [
            "# By `leco sweep`: the last command, and all runs of this folder.",
            f"command = {_toml(self._command)}",
        ]
        for row in self.runs.values():
            lines += ["", "[[runs]]", *(f"{key} = {_toml(value)}" for key, value in row.items())]
        atomic_write(self._path, ("\n".join(lines) + "\n").encode())


def _toml(value: object) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return json.dumps(value, ensure_ascii=False)
