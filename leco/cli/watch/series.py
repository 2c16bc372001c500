"""Curves of any length in little memory: means of as many lines as it takes.

N  points
C  columns
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_POINTS = 1200  # about the pixels of a wide picture; twice as many lines in a point when there are more
AXES = ("frames", "updates", "seconds")  # they only grow: a point lies where its last line does


class Series:
    """Points, each of `stride` lines of metrics.csv. The stride is 1 until there are too many points, then it doubles.

    Args:
        columns: Of the file.
        most: How many points there may be; even.
    """

    def __init__(self, columns: Sequence[str], most: int = MOST_POINTS) -> None:
        self.columns = tuple(columns)
        self.stride, self.lines = 1, 0
        self.last: dict[str, float] = {}
        self._most = most
        shape = (most, len(self.columns))
        self._sum_NC, self._count_NC = np.zeros(shape), np.zeros(shape, np.int64)
        self._low_NC, self._high_NC = np.full(shape, np.inf), np.full(shape, -np.inf)

    def add(self, values_LC: np.ndarray) -> None:
        """Adds lines; what is nan or infinite in them is no part of a mean."""
        if len(values_LC):
            self.last = dict(zip(self.columns, values_LC[-1].tolist(), strict=True))
        while len(values_LC):
            if self.lines == self._most * self.stride:
                self._fold()
            room = self._most * self.stride - self.lines
            part_LC, values_LC = values_LC[:room], values_LC[room:]
            point_L = (self.lines + np.arange(len(part_LC))) // self.stride
            there_LC = np.isfinite(part_LC)
            np.add.at(self._sum_NC, point_L, np.where(there_LC, part_LC, 0))
            np.add.at(self._count_NC, point_L, there_LC)
            np.minimum.at(self._low_NC, point_L, np.where(there_LC, part_LC, np.inf))
            np.maximum.at(self._high_NC, point_L, np.where(there_LC, part_LC, -np.inf))
            self.lines += len(part_LC)

    def _fold(self) -> None:
        """Makes one point of two."""
        half = self._most // 2
        for array_NC, join, empty in (
            (self._sum_NC, np.add, 0.0),
            (self._count_NC, np.add, 0),
            (self._low_NC, np.minimum, np.inf),
            (self._high_NC, np.maximum, -np.inf),
        ):
            array_NC[:half] = join(array_NC[0::2], array_NC[1::2])
            array_NC[half:] = empty
        self.stride *= 2

    def since(self, lines: int, stride: int) -> dict[str, Any]:
        """What is new for somebody who has seen so many lines at this stride; everything, if the stride has changed.

        Returns:
            first    the index of the first point below; those from there on are replaced
            stride   lines in a point
            columns  by name its points: means, and with a stride above 1 also the lowest and the highest; a column without any
                     number is left out
        """
        first = lines // stride if stride == self.stride else 0
        end = math.ceil(self.lines / self.stride)
        columns = {}
        for index, name in enumerate(self.columns):
            if not self._count_NC[:end, index].any():
                continue
            part = slice(first, end), index
            there_N, high_N = self._count_NC[part] > 0, self._high_NC[part]
            if name in AXES:
                columns[name] = {"mean": _listed(high_N, there_N)}
                continue
            mean_N = self._sum_NC[part] / np.maximum(self._count_NC[part], 1)
            columns[name] = {"mean": _listed(mean_N, there_N)}
            if self.stride > 1:
                columns[name] |= {"low": _listed(self._low_NC[part], there_N), "high": _listed(high_N, there_N)}
        return {"first": first, "stride": self.stride, "columns": columns}


def _listed(values_N: np.ndarray, there_N: np.ndarray) -> list[float | None]:
    """As JSON has it, with as many digits as metrics.csv has; frames are whole and keep theirs."""
    pairs = zip(values_N.tolist(), there_N.tolist(), strict=True)
    return [(value if value.is_integer() else float(f"{value:.6g}")) if there else None for value, there in pairs]
