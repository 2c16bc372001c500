"""Counting for all codes of a request at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_POSITION_BITS = np.uint64(32)


def occurrence(places: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """For each element, which occurrence of its value it is: [7, 3, 7, 7, 3] gives [1, 1, 2, 3, 2].

    Value and position are sorted as one integer, which is several times faster than a stable sort of the values.
    """
    n = len(places)
    keys = (places.astype(np.uint64) << _POSITION_BITS) | np.arange(n, dtype=np.uint64)
    keys.sort()
    values = keys >> _POSITION_BITS
    begins = np.ones(n, np.bool_)  # where another value than before begins
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    ranks = np.arange(n)
    result = np.empty(n, np.uint32)
    result[keys.astype(np.uint32)] = ranks - np.maximum.accumulate(np.where(begins, ranks, 0)) + 1
    return result


class Visits:
    """How often each code of each table was visited, in one array. A table maps a code to its place here."""

    STEP = 65_536
    # In the array (which doubles), as an integer object, and as a reference in `free` (which grows by an eighth).
    PLACE_BYTES = 8 + 32 + 9

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.uint32)
        self._places = 0
        self.free: list[int] = []

    def grow(self) -> None:
        """Makes STEP more places, which take STEP * PLACE_BYTES of memory."""
        if self._places + self.STEP > len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(max(len(self._counts), self.STEP), np.uint32)])
        self.free.extend(range(self._places, self._places + self.STEP))
        self._places += self.STEP

    def count(self, places: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Counts one visit of each place, in order; returns each one's count at that moment."""
        counts = self._counts[places] + occurrence(places)
        self._counts[places] = counts  # of several for one place numpy keeps the last
        return counts

    def release(self, places: Iterable[int]) -> None:
        """Sets counts back to zero and gives the places back."""
        given_back = list(places)
        self._counts[given_back] = 0
        self.free.extend(given_back)
