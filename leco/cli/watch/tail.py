"""metrics.csv while it is written: each whole line once, and whether the file began anew."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CHUNK_BYTES = 1 << 20  # some 3,000 lines, which take about 20 ms: a page asks for something meanwhile


class Lines(NamedTuple):
    """What was found.

    anew       what was read before is no longer true: a run that was resumed takes lines out, by a new file
    columns    of the file, by its first line; empty before there is one
    values_LC  float64: nan where nothing stands, infinite where something stands that is not finite
    more       there is more to read at once
    """

    anew: bool
    columns: tuple[str, ...]
    values_LC: np.ndarray
    more: bool


class Tail:
    """Reads on from where it was.

    Args:
        path: metrics.csv, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._offset = 0
        self._columns: tuple[str, ...] = ()

    def read(self) -> Lines:
        """The next whole lines, at most a chunk of them. A line without an end is left for later."""
        anew = self._begin_anew()
        if self._file is None:
            return Lines(anew, (), np.empty((0, 0)), more=False)
        data = os.pread(self._file, CHUNK_BYTES, self._offset)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == CHUNK_BYTES:  # no line of ours is as long
            end = len(data)
        self._offset += end
        lines = data[:end].decode("ascii", "replace").splitlines()
        if not self._columns and lines:
            self._columns = tuple(lines.pop(0).split(","))
        return Lines(anew, self._columns, _numbers(lines, len(self._columns)), more=len(data) == CHUNK_BYTES)

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._offset, self._columns = None, 0, ()

    def _begin_anew(self) -> bool:
        """Opens the file if it is not the one that is open, or shorter than it was. Whether that happened."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            had = self._file is not None
            self.close()
            return had
        if self._file is not None:
            # While a file is open, no other one gets its number.
            now = os.fstat(self._file)
            if (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino) and now.st_size >= self._offset:
                return False
        self.close()
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return True


def _numbers(lines: Sequence[str], columns: int) -> np.ndarray:
    """Lines as numbers; those with other columns than the first one, or with something else than numbers, are left out."""
    rows = []
    for line in lines:
        try:
            row = [_number(cell) for cell in line.split(",")]
        except ValueError:
            continue
        if len(row) == columns:
            rows.append(row)
    return np.array(rows, np.float64).reshape(len(rows), columns)


def _number(cell: str) -> float:
    if not cell:
        return math.nan
    value = float(cell)
    return math.inf if math.isnan(value) else value
