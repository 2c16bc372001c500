"""What goes to count.lua, and what its answers mean.

The script is told only the distinct codes of a batch and how often each occurs in it, and answers how often each had been seen
before. One call of it counts many batches: what a call costs beside its codes is then paid once.
"""

from __future__ import annotations

import hashlib
import struct
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
import redis

from services.hashcount import store
from services.hashcount.distinct import Distinct
from services.hashcount.store import Outcome, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.hashcount.store import Batch

TABLE_PATTERN = b"leco1:*:t"  # the keys of all visit tables
# Of one call of the script, which Redis does not interrupt: some milliseconds.
MAX_CALL_BATCHES = 128
MAX_CALL_CODES = 8192
_ANSWERED = {b"C": Status.COUNTED, b"R": Status.REPLAYED}
_CALL = struct.Struct("<IQQ")
_BATCH = struct.Struct("<IBI8s")


def load_script() -> tuple[bytes, str]:
    """The script, and the name by which Redis knows it once it is loaded."""
    text = resources.files("services.hashcount").joinpath("count.lua").read_bytes()
    return text, hashlib.sha1(text, usedforsecurity=False).hexdigest()


class ScriptCalls:
    """All batches of one request, on their way to the script and back.

    Attributes:
        records: The key of each episode's record, which also tells its cluster slot.
    """

    def __init__(self, run: str, width: int, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self._width = width
        self.records: list[str] = []
        self._keys: list[str] = []
        for batch in batches:
            name = f"leco1:{{{run}/{batch.episode_id}}}:"  # in braces: what the slot depends on
            self.records.append(name + "r")
            self._keys += (name + "r", name + "t")
        self._distinct = Distinct(width, [batch.codes for batch in batches])
        self._packed_codes = self._distinct.codes.tobytes()
        self._packed_times = self._distinct.times.astype("<u2").tobytes()

    def parts(self) -> list[slice]:
        """All batches, in order, so many at a time as one call of the script may count."""
        parts, begin, codes = [], 0, 0
        for i, span in enumerate(self._distinct.spans):
            codes += span.stop - span.start
            if i - begin == MAX_CALL_BATCHES or (i > begin and codes > MAX_CALL_CODES):
                parts.append(slice(begin, i))
                begin, codes = i, span.stop - span.start
        return [*parts, slice(begin, len(self._batches))]

    def arguments(self, batches: slice, ttl_ms: int, retry_window_ms: int) -> tuple[object, ...]:
        """The arguments of EVALSHA after the script's name, for these batches, as count.lua wants them."""
        spans = self._distinct.spans[batches]
        begin, end = spans[0].start, spans[-1].stop
        headers = [
            _BATCH.pack(batch.sequence, batch.final, span.stop - span.start, batch.digest())
            for batch, span in zip(self._batches[batches], spans, strict=True)
        ]
        keys = self._keys[2 * batches.start : 2 * batches.stop]
        return (
            len(keys),
            *keys,
            _CALL.pack(self._width, ttl_ms, retry_window_ms),
            b"".join(headers),
            self._packed_codes[self._width * begin : self._width * end],
            self._packed_times[2 * begin : 2 * end],
        )

    def outcomes(self, replies: Sequence[bytes | Exception]) -> list[Outcome]:
        """What the script's answers mean; one answer, or the error in its place, for each batch."""
        answers = [
            reply.partition(b";") if isinstance(reply, bytes) and reply[:1] in _ANSWERED else None for reply in replies
        ]
        counts = self._counts([answer and answer[2] for answer in answers])
        outcomes = []
        begin = 0
        for batch, reply, answer in zip(self._batches, replies, answers, strict=True):
            end = begin + 4 * len(batch.codes) // self._width
            if answer is None:
                outcomes.append(self._refusal(batch.sequence, reply))
            else:
                head, _, _ = answer
                outcomes.append(Outcome(_ANSWERED[head[:1]], counts[begin:end], int(head[1:])))
            begin = end
        return outcomes

    def _counts(self, answers: Sequence[bytes | None]) -> bytes:
        """Each code's count at its moment, packed; meaningless where a batch was not counted."""
        distinct = self._distinct
        before = np.zeros(len(distinct.codes), np.uint64)
        if text := b",".join(filter(None, answers)):
            numbers = [span.stop - span.start for span in distinct.spans]
            answered = np.repeat([answer is not None for answer in answers], numbers)
            before[answered] = np.fromstring(text, np.int64, sep=",")
        return distinct.counts(before)

    def _refusal(self, sequence: int, reply: bytes | Exception) -> Outcome:
        if isinstance(reply, Exception):
            return _failure(reply)
        rest = reply[1:]
        match reply[:1]:
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
            case b"E":
                return _failure(redis.exceptions.ResponseError(rest.decode(errors="replace")))
        raise AssertionError(f"count.lua answered {reply!r}")


def _failure(error: Exception) -> Outcome:
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM command not allowed" in str(error):
        return Outcome(
            Status.FULL,
            detail="Redis has reached its maxmemory and nothing is evicted; repeat when episodes have ended",
        )
    return Outcome(Status.UNAVAILABLE, detail=reason(error))


def reason(error: Exception) -> str:
    """An error of the Redis client in one line."""
    return f"{type(error).__name__}: {error}"
