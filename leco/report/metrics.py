"""A run's metrics.csv, as it is while it is still being written; and when a run had learned its task."""

from __future__ import annotations

import csv
import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Column = npt.NDArray[np.float64]

RECENT_EPISODES = 100  # that return, success and length are means of
GOAL = 0.9  # the success rate from which on a task counts as learned


class Reached(NamedTuple):
    """A success rate of the last 100 episodes, and when it was: after so many frames and seconds of training."""

    success: float
    frames: int
    seconds: float


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The lines of metrics.csv, by column; without one that is only half written."""
    with path.open(newline="", errors="replace") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def columns(rows: Sequence[Mapping[str, str]]) -> dict[str, Column]:
    """The same by column, as numbers; nan for what is empty or no number. Lines without frames are left out."""
    names = list(rows[0]) if rows else []
    table = {name: np.array([_number(row.get(name)) for row in rows]) for name in names if name}
    there = np.isfinite(table["frames"]) if "frames" in table else np.zeros(len(rows), bool)
    return {name: values[there] for name, values in table.items()}


def read_table(path: Path) -> dict[str, Column]:
    """metrics.csv by column; nothing before it is there."""
    try:
        return columns(read_metrics(path))
    except OSError:
        return {}


def when_reached(table: Mapping[str, Column], share: float = GOAL) -> Reached | None:
    """The first line with this success rate over 100 episodes; None if there is none."""
    success = _success(table)
    lines = np.flatnonzero(success >= share)
    return _reached(table, int(lines[0])) if len(lines) else None


def best_success(table: Mapping[str, Column]) -> Reached | None:
    """The first line with the highest success rate over 100 episodes; None before 100 episodes have ended."""
    success = _success(table)
    return _reached(table, int(np.nanargmax(success))) if np.isfinite(success).any() else None


def median_reached(values: Sequence[float | None]) -> float | None:
    """The median over seeds of when they reached something; one that has not (None) counts as later than all others.

    None unless more than half of the seeds have reached it.
    """
    middle = statistics.median([math.inf if each is None else each for each in values]) if values else math.inf
    return middle if math.isfinite(middle) else None


def _success(table: Mapping[str, Column]) -> Column:
    """The success rate of each line; nan where fewer than 100 episodes had ended, as of few it says little."""
    if not {"success", "episodes"} <= table.keys():
        return np.empty(0)
    return np.where(table["episodes"] >= RECENT_EPISODES, table["success"], np.nan)


def _reached(table: Mapping[str, Column], line: int) -> Reached:
    seconds = table["seconds"][line] if "seconds" in table else math.nan
    return Reached(float(table["success"][line]), int(table["frames"][line]), float(seconds))


def _number(text: str | None) -> float:
    try:
        value = float(text or "nan")
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
