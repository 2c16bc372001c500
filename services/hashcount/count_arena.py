"""The counts of the memory store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


MOST = 2**32 - 1  # where counts stay


def saturated(counts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Counts as they are kept and sent: one that is too large for 32 bits stays at the largest, and does not begin anew."""
    return np.minimum(counts, MOST).astype("<u4")


class Visits:
    """How often each code of each table was visited, in one array. A table maps a code to its place here.

    Place 0 is nobody's: what is added there means nothing.
    """

    STEP = 65_536
    # In the array (which doubles), as an integer object, and as a reference in `free` (which grows by an eighth).
    PLACE_BYTES = 8 + 32 + 9

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.uint32)
        self._places = 0
        self.free: list[int] = []  # places in nobody's table

    def grow(self) -> None:
        """Makes STEP more places, which take STEP * PLACE_BYTES of memory."""
        if self._places + self.STEP > len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(max(len(self._counts), self.STEP), np.uint32)])
        self.free.extend(range(max(self._places, 1), self._places + self.STEP))
        self._places += self.STEP

    def add(self, places: NDArray[np.uint32], times: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Adds to the counts at these places, which are distinct but for 0; returns what they were before."""
        before = self._counts[places]
        self._counts[places] = saturated(before + times)
        return before

    def release(self, places: Iterable[int]) -> None:
        """Sets counts back to zero and gives the places back."""
        given_back = list(places)
        self._counts[given_back] = 0
        self.free.extend(given_back)


def code_bytes(width: int) -> int:
    """Memory of one code as a `bytes` object: 33 bytes around it, in blocks of 16."""
    return (33 + width + 15) // 16 * 16
