"""The run-wide tables of the memory store."""

from __future__ import annotations

from collections import OrderedDict
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from services.hashcount.count_arena import code_bytes
from services.hashcount.run_counts import PARTS, part_limit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from services.hashcount.run_counts import RunVisits

# What a run costs beside its codes: its name, its list of parts, and the parts while they are empty.
RUN_BYTES = 1024 + 96 * PARTS
# The most that a code takes beside its own bytes: a place in a dictionary, as memory.py reckons it, and its count.
_ENTRY_BYTES = 120 + 32


class _Run:
    """A run's table: its parts, each from code to count. And when it expires, and what it takes."""

    __slots__ = ("bytes", "expires", "parts")

    def __init__(self) -> None:
        self.parts: list[dict[bytes, int]] = [{} for _ in range(PARTS)]
        self.expires = 0.0
        self.bytes = RUN_BYTES


class Added(NamedTuple):
    """What a table answered: visits before the call, how many codes it took in, and how many found no place in it."""

    before_U: NDArray[np.int64]
    new: int
    unstored: int


class RunTables:
    """How often each code was seen in each run.

    Args:
        max_codes: Codes that a run may have.
        max_bytes: What all runs may take together.
        ttl: Seconds after its last call when a run is forgotten.

    Attributes:
        used_bytes: What all runs take, by a reckoning that errs on the high side.
    """

    def __init__(self, *, max_codes: int, max_bytes: int, ttl: float) -> None:
        self._part_limit = part_limit(max_codes)
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._runs: OrderedDict[str, _Run] = OrderedDict()  # in the order of expiry
        self.used_bytes = 0

    def add(self, name: str, width: int, visits: RunVisits, now: float, room: int) -> Added:
        """Adds the visits of a call, and takes at most `room` bytes more for it."""
        room = min(room, self._max_bytes - self.used_bytes)
        run = self._runs.get(name)
        if run is None:
            run = _Run()
            room -= run.bytes
            if room < 0:
                return Added(np.zeros(len(visits.codes), np.int64), 0, int(np.count_nonzero(visits.times)))
            self._runs[name] = run
            self.used_bytes += run.bytes
        run.expires = now + self._ttl
        self._runs.move_to_end(name)
        each = _ENTRY_BYTES + code_bytes(width)
        added = self._count(run, visits, room // each)
        run.bytes += added.new * each
        self.used_bytes += added.new * each
        return added

    def _count(self, run: _Run, visits: RunVisits, places: int) -> Added:
        """Counts in a run, in which this call finds so many places for new codes."""
        before_U = np.zeros(len(visits.codes), np.int64)
        codes: list[bytes] = visits.codes.tolist()
        times: list[int] = visits.times.tolist()
        new = unstored = 0
        for table, indices in zip(run.parts, visits.parts, strict=True):
            before = list(map(table.get, [codes[i] for i in indices], repeat(0)))
            before_U[indices] = before
            for i, count in zip(indices.tolist(), before, strict=True):
                if count == 0 and times[i] > 0:
                    if new == places or len(table) == self._part_limit:
                        unstored += 1
                        continue
                    new += 1
                if times[i] > 0:
                    table[codes[i]] = count + times[i]
        return Added(before_U, new, unstored)

    def forget_expired(self, now: float) -> None:
        """Frees the tables of runs that nobody counted in for long."""
        while self._runs:
            name, run = next(iter(self._runs.items()))
            if run.expires > now:
                break
            del self._runs[name]
            self.used_bytes -= run.bytes
