"""What goes to count.lua and count_run.lua, and what their answers mean.

The scripts are told only distinct codes and how often each occurs, and answer how often each had been seen before.
"""

from __future__ import annotations

import hashlib
import struct
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import redis

from services.hashcount import store
from services.hashcount.distinct import Distinct
from services.hashcount.run_counts import PARTS, part_limit
from services.hashcount.store import Outcome, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from services.hashcount.run_counts import RunVisits
    from services.hashcount.store import Batch

TABLE_PATTERN = b"leco1:*:t"  # the keys of all visit tables
_HEADER = struct.Struct("<IIBQQ8s")
_RUN_HEADER = struct.Struct("<IQQ")


class Script(NamedTuple):
    """A script, and the name by which Redis knows it once it is loaded."""

    text: bytes
    sha: str


def load_script(name: str) -> Script:
    """Reads a script of this folder."""
    text = resources.files("services.hashcount").joinpath(name).read_bytes()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


class ScriptCalls:
    """All batches of one request, on their way to the script and back.

    Attributes:
        records: The key of each episode's record, which also tells its cluster slot.
        distinct: The distinct codes of all batches.
    """

    def __init__(self, run: str, width: int, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self._width = width
        names = [
            f"leco1:{{{run}/{batch.episode_id}}}:".encode() for batch in batches
        ]  # in braces: what the slot depends on
        self.records = [name + b"r" for name in names]
        self._tables = [name + b"t" for name in names]
        self.distinct = Distinct(width, [batch.codes for batch in batches])
        self._packed_codes = self.distinct.codes.tobytes()
        self._packed_times = self.distinct.times.astype("<u2").tobytes()

    def arguments(self, i: int, ttl_ms: int, retry_window_ms: int) -> tuple[object, ...]:
        """The arguments of EVALSHA after the script's name, for batch `i`, as count.lua wants them."""
        batch, span, width = self._batches[i], self.distinct.spans[i], self._width
        header = _HEADER.pack(batch.sequence, width, batch.final, ttl_ms, retry_window_ms, batch.digest())
        codes = self._packed_codes[width * span.start : width * span.stop]
        times = self._packed_times[2 * span.start : 2 * span.stop]
        return (2, self.records[i], self._tables[i], header, codes, times)

    def outcomes(self, replies: Sequence[bytes | Exception]) -> list[Outcome]:
        """What the script's answers mean; one answer, or the error in its place, for each batch."""
        counts = self._counts(replies)
        outcomes = []
        begin = 0
        for batch, reply in zip(self._batches, replies, strict=True):
            end = begin + 4 * len(batch.codes) // self._width
            outcomes.append(self._outcome(batch.sequence, reply, counts[begin:end]))
            begin = end
        return outcomes

    def _counts(self, replies: Sequence[bytes | Exception]) -> bytes:
        """Each code's count at its moment, packed; meaningless where a batch was not counted."""
        distinct = self.distinct
        before = np.zeros(len(distinct.codes), np.int64)
        answers = {
            i: reply.partition(b";")[2]
            for i, reply in enumerate(replies)
            if isinstance(reply, bytes) and reply[:1] in b"CR"
        }
        text = b",".join(filter(None, answers.values()))
        if text:
            answered = np.concatenate([np.arange(distinct.spans[i].start, distinct.spans[i].stop) for i in answers])
            before[answered] = np.fromstring(text, np.int64, sep=",")
        return (before[distinct.place_of] + distinct.occurrence).astype("<u4").tobytes()

    def _outcome(self, sequence: int, reply: bytes | Exception, counts: bytes) -> Outcome:
        if isinstance(reply, Exception):
            return _failure(reply)
        rest = reply[1:]
        match reply[:1]:
            case b"C":
                return Outcome(Status.COUNTED, counts, new=int(rest.partition(b";")[0]))
            case b"R":
                return Outcome(Status.REPLAYED, counts)
            case b"G":
                return store.gap(sequence, int(rest) + 1)
            case b"S":
                return store.stale(sequence, int(rest))
            case b"F":
                return store.finished(sequence, int(rest))
            case b"L":
                return store.lost(sequence)
            case b"D":
                return store.other_content(sequence)
            case b"W":
                return store.other_width(self._width, int(rest))
        raise AssertionError(f"count.lua answered {reply!r}")


class RunScriptCalls:
    """What a call adds to its run's table, on its way to the script of each part and back.

    Attributes:
        parts: The key of each part, which also tells its cluster slot.
    """

    def __init__(self, run: str, width: int, visits: RunVisits, max_run_codes: int) -> None:
        self.parts = [f"leco1:{{{run}#{part}}}:n".encode() for part in range(PARTS)]  # no episode's name has a #
        self._visits = visits
        self._width = width
        self._limit = part_limit(max_run_codes)

    def arguments(self, part: int, ttl_ms: int) -> tuple[object, ...]:
        """The arguments of EVALSHA after the script's name, as count_run.lua wants them."""
        indices = self._visits.parts[part]
        header = _RUN_HEADER.pack(self._width, ttl_ms, self._limit)
        codes, times = self._visits.codes[indices].tobytes(), self._visits.times[indices].astype("<u4").tobytes()
        return (1, self.parts[part], header, codes, times)

    def outcomes(self, replies: Sequence[bytes | Exception]) -> tuple[list[Outcome], int, int]:
        """What the script's answers mean; one answer, or the error in its place, for each part.

        Returns:
            The outcomes with run-wide counts; how many codes were taken in; and how many were not stored.
        """
        before_U: NDArray[np.int64] = np.zeros(len(self._visits.codes), np.int64)
        failures: dict[int, Outcome] = {}
        new = unstored = 0
        for part, (reply, indices) in enumerate(zip(replies, self._visits.parts, strict=True)):
            if isinstance(reply, Exception):
                failures[part] = Outcome(Status.UNAVAILABLE, detail=f"the run-wide table: {reason(reply)}")
                continue
            numbers, _, answer = reply.partition(b";")
            new, unstored = (total + int(n) for total, n in zip((new, unstored), numbers.split(b","), strict=True))
            if answer:
                before_U[indices] = np.fromstring(answer, np.int64, sep=",")
        return self._visits.answered(before_U, failures), new, unstored


def _failure(error: Exception) -> Outcome:
    if isinstance(error, redis.exceptions.OutOfMemoryError) or str(error).startswith("OOM "):
        return Outcome(
            Status.FULL,
            detail="Redis has reached its maxmemory and nothing is evicted; repeat when episodes have ended",
        )
    return Outcome(Status.UNAVAILABLE, detail=reason(error))


def reason(error: Exception) -> str:
    """An error of the Redis client in one line."""
    return f"{type(error).__name__}: {error}"
