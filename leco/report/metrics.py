"""A run's metrics.csv, as it is while it is still being written."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Column = npt.NDArray[np.float64]


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


def _number(text: str | None) -> float:
    try:
        value = float(text or "nan")
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
