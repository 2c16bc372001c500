"""Visit tables in this process: for one machine, tests and the first run."""

from __future__ import annotations

import sys
import time
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

from services.hashcount import store
from services.hashcount.store import Batch, Outcome, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What an episode costs beside its table and its answer: the record, its keys, its place in the ordered dictionary.
EPISODE_BYTES = 900


class _Episode:
    """What is remembered of an episode. `table` is None once it has finished."""

    __slots__ = ("answer", "bytes", "digest", "expires", "sequence", "table", "width")

    def __init__(self, width: int) -> None:
        self.sequence = -1
        self.width = width
        self.digest = 0
        self.answer = b""
        self.table: dict[bytes, int] | None = {}
        self.expires = 0.0
        self.bytes = 0


class MemoryStore:
    """Counts in dictionaries and never takes more than `max_bytes` for them: a batch that would is refused as FULL.

    Every method runs on one event loop without a pause inside, which is what makes a batch atomic.

    Args:
        max_bytes: The limit. The process itself needs some 60 MB more.
        ttl: Seconds after its last batch when an episode that never ended is forgotten.
        retry_window: Seconds for which the answer to a final batch is kept.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, *, max_bytes: int, ttl: float, retry_window: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._retry_window = retry_window
        self._clock = clock
        # Both in the order of expiry, since all episodes in one of them live equally long after their last batch.
        self._live: OrderedDict[tuple[str, str], _Episode] = OrderedDict()
        self._finished: OrderedDict[tuple[str, str], _Episode] = OrderedDict()
        self.used_bytes = 0

    async def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Outcome]:
        """See `Store.count`."""
        now = self._clock()
        self._forget_expired(now)
        return [self._count(run, width, batch, now) for batch in batches]

    async def check(self) -> None:
        """See `Store.check`: memory is always there."""

    async def live_episodes(self) -> int:
        """See `Store.live_episodes`."""
        self._forget_expired(self._clock())
        return len(self._live)

    async def close(self) -> None:
        """See `Store.close`."""

    def _count(self, run: str, width: int, batch: Batch, now: float) -> Outcome:
        key = (run, batch.episode_id)
        episode = self._live.get(key) or self._finished.get(key)
        digest = hash(
            (batch.final, *batch.codes)
        )  # the hash of each code is needed for the table anyway, and is kept in it
        refusal = _refusal(episode, width, batch, digest)
        if refusal is not None:
            return refusal
        if episode is None:
            episode = _Episode(width)
        elif batch.sequence == episode.sequence:
            return Outcome(Status.REPLAYED, episode.answer)
        if not self._has_room(episode, width, batch):
            return Outcome(
                Status.FULL,
                detail=f"the memory store holds {self.used_bytes:,} of at most {self._max_bytes:,} bytes and nothing is evicted; "
                "repeat when episodes have ended, raise --max-memory, or use Redis",
            )
        table = episode.table
        assert table is not None  # noqa: S101  # _refusal let no finished episode through
        known = len(table)
        episode.answer = _count_in_order(table, batch.codes)
        episode.sequence, episode.digest = batch.sequence, digest
        self._remember(key, episode, final=batch.final, now=now)
        return Outcome(Status.COUNTED, episode.answer, new=len(table) - known)

    def _remember(self, key: tuple[str, str], episode: _Episode, *, final: bool, now: float) -> None:
        self._live.pop(key, None)
        self.used_bytes -= episode.bytes
        if final:
            episode.table = None
            self._finished[key] = episode
            episode.expires = now + self._retry_window
        else:
            self._live[key] = episode
            episode.expires = now + self._ttl
        episode.bytes = EPISODE_BYTES + len(episode.answer)
        if episode.table is not None:
            episode.bytes += sys.getsizeof(episode.table) + len(episode.table) * _code_bytes(episode.width)
        self.used_bytes += episode.bytes

    def _has_room(self, episode: _Episode, width: int, batch: Batch) -> bool:
        """Whether the store stays within its limit with this batch, assuming the worst for dictionary growth."""
        room = self._max_bytes - self.used_bytes + episode.bytes - EPISODE_BYTES - 4 * len(batch.codes)
        if batch.final:
            return room >= 0
        table = episode.table or {}
        distinct = len(table) + len(batch.codes)
        if room >= _table_bytes(distinct, width):  # the common case, without looking at the codes
            return True
        distinct = len(table.keys() | set(batch.codes))
        return room >= max(_table_bytes(distinct, width), sys.getsizeof(table) + distinct * _code_bytes(width))

    def _forget_expired(self, now: float) -> None:
        for episodes in (self._live, self._finished):
            while episodes:
                key, episode = next(iter(episodes.items()))
                if episode.expires > now:
                    break
                del episodes[key]
                self.used_bytes -= episode.bytes


def _refusal(episode: _Episode | None, width: int, batch: Batch, digest: int) -> Outcome | None:
    """Why a batch cannot be counted or replayed, or None. The same decisions, in the same order, as in count.lua."""
    sequence = batch.sequence
    if episode is None:
        return None if sequence == 0 else store.lost(sequence)
    if width != episode.width:
        return store.other_width(width, episode.width)
    if sequence == episode.sequence:
        return None if digest == episode.digest else store.other_content(sequence)
    if sequence < episode.sequence:
        return store.stale(sequence, episode.sequence)
    if episode.table is None:
        return store.finished(sequence, episode.sequence)
    if sequence > episode.sequence + 1:
        return store.gap(sequence, episode.sequence + 1)
    return None


def _count_in_order(table: dict[bytes, int], codes: Sequence[bytes]) -> bytes:
    """Adds the codes to the table; returns each one's count at that moment, packed. The hot loop of this store."""
    answer = array("I")
    get, append = table.get, answer.append
    for code in codes:
        count = get(code, 0) + 1
        table[code] = count
        append(count)
    if sys.byteorder == "big":
        answer.byteswap()
    return answer.tobytes()


def _code_bytes(width: int) -> int:
    """Memory of one code as a `bytes` object: 33 bytes around it, in blocks of 16."""
    return (33 + width + 15) // 16 * 16


def _table_bytes(distinct: int, width: int) -> int:
    """The most that a table of so many codes takes: CPython grows a dictionary to at most the power of two above 3n slots.

    A slot costs up to 4 bytes of index and two thirds of a 24-byte entry.
    """
    slots = max(8, 1 << (3 * distinct).bit_length())
    return 128 + 20 * slots + distinct * _code_bytes(width)
