"""Run-wide counts: how often each code was seen in a whole run. What both stores do alike.

A store counts a call's batches in their episodes first, and then asks the run's table about their distinct codes, all batches
together. The count of each single code follows: visits before the call + in earlier batches of the call + in its batch so far.

A table is in PARTS parts by a hash of the code, so that a cluster can spread it, and each part holds its share of the codes that
a run may have. A code that does not fit is not stored, and is new in each call.

Shapes: N codes in the call; D of them distinct within their batch, A of these in batches that have counts; U distinct at all.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from services.hashcount.distinct import Distinct, parts_of
from services.hashcount.store import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from services.hashcount.store import Outcome

PART_BITS = 4
PARTS = 1 << PART_BITS
# With codes of 9 bytes a full table takes some 210 MB in Valkey 9, which needs 52 bytes for each.
MAX_RUN_CODES = 4_000_000
MAX_COUNT = 2**32 - 1


def part_limit(max_run_codes: int) -> int:
    """How many codes each part may hold."""
    return -(-max_run_codes // PARTS)


class RunVisits:
    """What the batches of one call add to their run's table, and what its answer means for each of them.

    A batch that was counted by this call adds its visits. One that had been counted before adds nothing, and is answered as if
    its visits were the last ones in the table as this call found it.

    Args:
        width: Bytes in a code.
        distinct: Of all batches of the call.
        outcomes: What came of them in their episodes.

    Attributes:
        codes: [U], the distinct codes, in order of first appearance.
        times: [U], how many visits this call adds to each; 0 if it only looks.
        parts: For each part of the table, the indices of its codes in `codes`.
    """

    def __init__(self, width: int, distinct: Distinct, outcomes: Sequence[Outcome]) -> None:
        self._distinct, self._outcomes = distinct, outcomes
        numbers = [span.stop - span.start for span in distinct.spans]
        self._asked_A = np.flatnonzero(np.repeat([outcome.counts is not None for outcome in outcomes], numbers))
        counted_D = np.repeat([outcome.status is Status.COUNTED for outcome in outcomes], numbers)
        self._counted_A = counted_D[self._asked_A]
        times_A = np.where(self._counted_A, distinct.times[self._asked_A], 0)
        among = Distinct(width, [distinct.codes[self._asked_A].tobytes()])
        self._place_A = among.place_of
        self._earlier_A = _sum_of_earlier(self._place_A, times_A)
        self.codes = among.codes
        self.times = np.zeros(len(self.codes), np.int64)
        np.add.at(self.times, self._place_A, times_A)
        self._part_U = parts_of(self.codes, width, PART_BITS)
        order_U = np.argsort(self._part_U, kind="stable")
        bounds = np.searchsorted(self._part_U[order_U], np.arange(PARTS + 1))
        self.parts = [order_U[begin:end] for begin, end in pairwise(bounds.tolist())]

    def answered(self, before_U: NDArray[np.int64], failures: Mapping[int, Outcome]) -> list[Outcome]:
        """The outcomes with run-wide counts.

        Args:
            before_U: How often each of `codes` had been seen before this call.
            failures: What is to be said of a batch that has codes in a part of the table which did not answer.
        """
        distinct = self._distinct
        before_A = before_U[self._place_A]
        again_A = np.maximum(before_A - distinct.times[self._asked_A], 0)
        before_D = np.zeros(len(distinct.codes), np.int64)
        before_D[self._asked_A] = np.where(self._counted_A, before_A + self._earlier_A, again_A)
        counts_N = np.minimum(before_D[distinct.place_of] + distinct.occurrence, MAX_COUNT)
        packed = counts_N.astype("<u4").tobytes()
        part_D = np.full(len(distinct.codes), PARTS)
        part_D[self._asked_A] = self._part_U[self._place_A]
        answered = []
        begin = 0
        for outcome, span in zip(self._outcomes, distinct.spans, strict=True):
            end = begin + 4 * int(distinct.times[span].sum())
            if outcome.counts is None:
                answered.append(outcome)
            elif failed := failures.keys() & set(part_D[span].tolist()) if failures else None:
                answered.append(failures[min(failed)])
            else:
                answered.append(outcome._replace(run_counts=packed[begin:end]))
            begin = end
        return answered


def _sum_of_earlier(place_A: NDArray[np.intp], times_A: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each element the sum of `times` over the elements before it that have the same place."""
    order_A = np.argsort(place_A, kind="stable")
    before_A = np.cumsum(times_A[order_A]) - times_A[order_A]
    sorted_A = place_A[order_A]
    first_A = np.searchsorted(sorted_A, sorted_A)
    earlier_A = np.empty_like(before_A)
    earlier_A[order_A] = before_A - before_A[first_A]
    return earlier_A
