"""What a person sees while a run trains: a line every few seconds, and in the end a verdict, from the run's own metrics.csv."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from leco.config.experiment import task_of
from leco.report.metrics import GOAL, best_success, read_metrics, read_table, when_reached
from leco.telemetry.timing import clock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from leco.config.experiment import Experiment
    from leco.report.metrics import Column

HEADER = f"{'frames':>12} {'done':>5} {'frames/s':>9} {'return':>7} {'success':>8} {'r_ep':>6} {'r_ta':>6} {'lag':>4} {'left':>8}"
SECONDS = 5.0


class Progress:
    """Shows the last line of metrics.csv: on a terminal in place, otherwise below each other.

    Args:
        path: metrics.csv.
        experiment: How many frames there will be.
        out: Where to.
    """

    def __init__(self, path: Path, experiment: Experiment, out: TextIO) -> None:
        self._path, self._experiment, self._out = path, experiment, out
        self._next = time.monotonic() + SECONDS
        self._shown = ""
        self._begun = False

    def show(self, *, last: bool = False) -> None:
        """Shows a line if it is time for one."""
        if time.monotonic() < self._next and not last:
            return
        self._next = time.monotonic() + SECONDS
        row = self._read()
        if row is None:
            return
        line = self._line(row)
        if line == self._shown and not last:
            return
        if not self._begun:
            self._out.write(HEADER + "\n")
            self._begun = True
        in_place = self._out.isatty()
        self._out.write(f"\r{line}" if in_place else "" if line == self._shown else f"{line}\n")
        if in_place and last:
            self._out.write("\n")
        self._out.flush()
        self._shown = line

    def _read(self) -> dict[str, str] | None:
        try:
            rows = read_metrics(self._path)
        except OSError:
            return None
        return rows[-1] if rows else None

    def _line(self, row: dict[str, str]) -> str:
        frames, speed = int(row["frames"]), float(row["frames_per_second"])
        left = max(self._experiment.frames - frames, 0) / max(speed, 1e-9)
        success = f"{100 * float(row['success']):.0f} %" if row["success"] else "-"

        def number(name: str, form: str) -> str:
            return f"{float(row[name]):{form}}" if row[name] else "-"

        return (
            f"{frames:>12,} {100 * min(frames / self._experiment.frames, 1):>4.0f}% {speed:>9,.0f} {number('return', '.3f'):>7} "
            f"{success:>8} {number('r_ep', '.3f'):>6} {number('r_ta', '.3f'):>6} {number('policy_lag', '.1f'):>4} "
            f"{clock(left):>8}"
        )


def verdict(path: Path, experiment: Experiment, *, done: bool) -> str:
    """When a run had learned its task, or how near it came; nothing of a task that calls no episode solved.

    Args:
        path: metrics.csv.
        experiment: What was trained.
        done: Whether training came to its end.
    """
    table = read_table(path)
    if not task_of(experiment).solvable or not len(table.get("frames", ())):
        return ""
    early = _ended_early(table, experiment) if done else ""
    return f"{early}{_percent(GOAL)} {_reached(table)}\n"


def _reached(table: Mapping[str, Column]) -> str:
    if (found := when_reached(table)) is not None:
        return f"of the last 100 episodes after {_count(found.frames)} frames, {_time(found.seconds)}"
    if (best := best_success(table)) is not None:
        return f"not reached: at best {_percent(best.success)} of the last 100 episodes, after {_count(best.frames)} frames"
    return "not reached: fewer than 100 episodes have ended"


def _ended_early(table: Mapping[str, Column], experiment: Experiment) -> str:
    """That a run has ended by its success rate, if it has."""
    last = {name: column[-1:] for name, column in table.items()}
    ended = when_reached(last, experiment.until) if experiment.until is not None else None
    if ended is None or experiment.until is None or ended.frames >= experiment.frames:
        return ""
    left = f"after {_count(ended.frames)} of {_count(experiment.frames)} frames"
    return (
        f"ended by --until {_percent(experiment.until)}: {_percent(ended.success)} of the last 100 episodes, {left}\n"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _count(frames: int) -> str:
    return f"{frames:,}" if frames < 1_000_000 else f"{round(frames / 1e6, 2):,.10g} M"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else clock(seconds)
