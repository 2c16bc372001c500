"""Memory in pieces: a buddy system over one array of words."""

from __future__ import annotations

import mmap

import numpy as np

WORD = 8  # bytes
SMALLEST = 6  # a piece has at least 2^6 words


class Arena:
    """Pieces of 2^order words, each at a multiple of its size, so that two halves that are free become one piece again.

    The system gives a page when it is first written to, so what has never been in a piece takes no memory.

    Args:
        max_bytes: Of all pieces together, at most.

    Attributes:
        words_A: All of it, uint64; what is in no piece is zero.
        touched_bytes: Of all that was ever in a piece.
    """

    def __init__(self, max_bytes: int) -> None:
        whole = max_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self.words_A = np.frombuffer(mmap.mmap(-1, whole, flags=flags), np.uint64)
        self._free: list[set[int]] = [set() for _ in range(len(self.words_A).bit_length())]
        self._end = 0  # of all that was ever in a piece

    @property
    def touched_bytes(self) -> int:
        """What may be resident."""
        return WORD * self._end

    def allocate(self, order: int, max_bytes: int) -> int | None:
        """Where a piece begins; None if `touched_bytes` would become more than `max_bytes`."""
        for larger in range(order, len(self._free)):
            if self._free[larger]:
                begin = self._free[larger].pop()
                for half in range(larger - 1, order - 1, -1):
                    self._free[half].add(begin + (1 << half))
                return begin
        begin = -(-self._end >> order) << order
        end = begin + (1 << order)
        if WORD * end > max_bytes or end > len(self.words_A):
            return None
        while self._end < begin:  # up to there in the largest pieces that fit
            half = (self._end & -self._end).bit_length() - 1
            self._join(self._end, half)
            self._end += 1 << half
        self._end = end
        return begin

    def release(self, begin: int, order: int) -> None:
        """Sets a piece to zero and gives it back."""
        self.words_A[begin : begin + (1 << order)] = 0
        self._join(begin, order)

    def _join(self, begin: int, order: int) -> None:
        """Makes a free piece one with its other half, as often as that is free."""
        while begin ^ (1 << order) in self._free[order]:
            self._free[order].remove(begin ^ (1 << order))
            begin &= ~(1 << order)
            order += 1
        self._free[order].add(begin)
