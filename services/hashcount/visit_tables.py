"""Visit tables in one array of words, so that numpy looks up the codes of many tables at once.

A table is a piece of the array, used by open addressing with linear probing: a slot has the W words of a code and then its count,
which is 0 in a free slot. All tables that are looked at together have the same W.

Shapes: D codes, distinct within their table; T tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from services.hashcount.arena import SMALLEST, Arena
from services.hashcount.distinct import MOST, hashed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

LOAD = 0.5  # of a table's slots are taken, at most
_HALF = np.uint64(32)


class Table(NamedTuple):
    """A piece of the array, and how many slots it has."""

    begin: int
    order: int
    slots: int

    def has_room(self, entries: int) -> bool:
        """Whether so many codes fit in."""
        return entries <= LOAD * self.slots


class Codes(NamedTuple):
    """Codes of some tables, those of one table after those of another.

    words_WD   the codes
    hash_D     theirs, by `hashed`
    times_D    how often each is visited now
    """

    words_WD: Words
    hash_D: Words
    times_D: Words


class VisitTables:
    """All tables of a store.

    Args:
        max_bytes: What they take, at most.
    """

    def __init__(self, max_bytes: int) -> None:
        self._arena = Arena(max_bytes)
        self._none = self._arena.allocate(
            SMALLEST, max_bytes
        )  # a slot that is always free: the table of those without one

    @property
    def bytes(self) -> int:
        """What they take. What was released is used again, but not given back to the system."""
        return self._arena.touched_bytes

    def make(self, entries: int, words: int, max_bytes: int) -> Table | None:
        """An empty table for so many codes of so many words; None if all tables would then take more than `max_bytes`."""
        slots = int(entries / LOAD) + 1
        order = max((slots * (words + 1) - 1).bit_length(), SMALLEST)
        begin = self._arena.allocate(order, max_bytes)
        return None if begin is None else Table(begin, order, (1 << order) // (words + 1))

    def release(self, table: Table) -> None:
        """Forgets a table."""
        self._arena.release(table.begin, table.order)

    def move(self, pairs: Sequence[tuple[Table, Table]], words: int) -> None:
        """Brings what is in each first table into the second, which is empty, and releases the first."""
        all_A, stride = self._arena.words_A, words + 1
        slot_X = np.concatenate([old.begin + stride * np.arange(old.slots) for old, _ in pairs])
        count_X = all_A[slot_X + words]
        taken_X = count_X > 0
        number_T = [int(each.sum()) for each in np.split(taken_X, np.cumsum([old.slots for old, _ in pairs])[:-1])]
        slot_D = slot_X[taken_X]
        words_WD = np.stack([all_A[slot_D + word] for word in range(words)])
        codes = Codes(words_WD, hashed(words_WD), count_X[taken_X])
        self.visit([new for _, new in pairs], number_T, codes, add=True)
        for old, _ in pairs:
            self.release(old)

    def visit(self, tables: Sequence[Table | None], number_T: Sequence[int], codes: Codes, *, add: bool) -> Words:
        """How often each code was in its table before, [D].

        Args:
            tables: The tables; None for one that is empty.
            number_T: How many of the codes are of each.
            codes: The codes.
            add: Whether the visits are added. Then there must be room for codes that are new.
        """
        none = Table(self._none or 0, SMALLEST, 1)
        begin_T, slots_T = np.array([(each or none)[::2] for each in tables], np.int64).reshape(-1, 2).T
        begin_D, slots_D = np.repeat(begin_T, number_T), np.repeat(slots_T, number_T)
        all_A, stride = self._arena.words_A, len(codes.words_WD) + 1
        at_D = begin_D + stride * ((codes.hash_D >> _HALF) * slots_D.astype(np.uint64) >> _HALF).astype(np.int64)
        end_D = begin_D + stride * slots_D
        before_D = np.zeros(len(at_D), np.uint64)
        left_X = np.arange(len(at_D))
        while len(left_X):
            at_X = at_D.take(left_X)
            count_X = all_A.take(at_X + stride - 1)
            taken_X = count_X > 0
            found_X = taken_X.copy()
            for word, of_code_D in enumerate(codes.words_WD):
                found_X &= all_A.take(at_X + word) == of_code_D.take(left_X)
            before_D[left_X[found_X]] = count_X[found_X]
            free_X, left_X = left_X[~taken_X], left_X[taken_X & ~found_X]
            if add:
                left_X = np.concatenate([left_X, self._claim(free_X, at_D, codes.words_WD)])
            next_X = at_D.take(left_X) + stride
            at_D[left_X] = np.where(next_X == end_D.take(left_X), begin_D.take(left_X), next_X)
        if add:
            all_A[at_D + stride - 1] = np.minimum(before_D + codes.times_D, MOST)
        return before_D

    def _claim(self, which_X: NDArray[np.intp], at_D: NDArray[np.int64], words_WD: Words) -> NDArray[np.intp]:
        """Takes free slots for codes; where several want one, the last gets it. Returns those that got none."""
        all_A = self._arena.words_A
        count_X = at_D[which_X] + len(words_WD)
        all_A[count_X] = which_X + 1  # not 0; the count comes later
        got_X = all_A[count_X] == which_X + 1
        for word, of_code_D in enumerate(words_WD):
            all_A[at_D[which_X[got_X]] + word] = of_code_D[which_X[got_X]]
        without_X: NDArray[np.intp] = which_X[~got_X]
        return without_X
