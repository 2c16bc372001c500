"""What goes to count.lua, and what its answer means."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import Counter
from importlib import resources
from itertools import count
from typing import TYPE_CHECKING

import redis

from services.hashcount import store
from services.hashcount.store import Outcome, Status

if TYPE_CHECKING:
    from services.hashcount.store import Batch

TABLE_PATTERN = b"leco1:*:t"  # the keys of all visit tables


def load_script() -> tuple[bytes, str]:
    """The script, and the name by which Redis knows it once it is loaded."""
    text = resources.files("services.hashcount").joinpath("count.lua").read_bytes()
    return text, hashlib.sha1(text, usedforsecurity=False).hexdigest()


class ScriptCall:
    """One batch on its way to the script and back."""

    __slots__ = ("_batch", "_table", "_times", "_width", "record")

    def __init__(self, run: str, width: int, batch: Batch) -> None:
        name = f"leco1:{{{run}/{batch.episode_id}}}:".encode()  # in braces: what Redis Cluster chooses the slot by
        self.record, self._table = name + b"r", name + b"t"
        self._batch = batch
        self._width = width
        self._times: Counter[bytes] = Counter()

    def arguments(self, ttl_ms: int, retry_window_ms: int) -> tuple[object, ...]:
        """The arguments of EVALSHA after the script's name, as count.lua wants them."""
        batch = self._batch
        self._times = Counter(batch.codes)  # in order of first appearance
        times = struct.pack(f"<{len(self._times)}H", *self._times.values())
        return (
            *(2, self.record, self._table, batch.sequence, batch.digest(), int(batch.final), self._width),
            *(ttl_ms, retry_window_ms, b"".join(self._times), times),
        )

    def outcome(self, reply: bytes | Exception) -> Outcome:
        """What the script's answer means."""
        if isinstance(reply, Exception):
            return _failure(reply)
        letter, rest = reply[:1], reply[1:]
        sequence = self._batch.sequence
        match letter:
            case b"C":
                return Outcome(Status.COUNTED, self._counts(rest))
            case b"R":
                return Outcome(Status.REPLAYED, self._counts(rest))
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

    def _counts(self, before: bytes) -> array[int]:
        """Each code's count at its moment, from how often each distinct code was seen before the batch."""
        if not before:
            return array("I")
        counters = {code: count(int(n) + 1) for code, n in zip(self._times, before.split(b","), strict=True)}
        return array("I", map(next, map(counters.__getitem__, self._batch.codes)))


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
