"""Visit tables in this process: for one machine, tests and the first run."""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from services.hashcount import store
from services.hashcount.count_arena import Visits, code_bytes, saturated
from services.hashcount.distinct import Distinct
from services.hashcount.store import Batch, Outcome, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Key = tuple[str, str]  # run and episode id

# What an episode costs beside its table and its answer: the record, its keys, its place in the ordered dictionary.
EPISODE_BYTES = 900
# Places kept for final batches, of which a nearly full store takes one at a time: they need some for a moment to free many.
SPARE_PLACES = 65_535
# The most that a table takes beside its codes: CPython grows a dictionary to at most 6 slots for each entry, and a slot costs
# up to 4 bytes of index and two thirds of a 24-byte entry.
_TABLE_BYTES = 512
_ENTRY_BYTES = 120


# About what is counted in 20 ms; a single batch may have four times as many.
PIECE_CODES = 16_384


def _pieces(width: int, batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    """The batches in order, so many at a time that they have about PIECE_CODES codes."""
    begin = codes = 0
    for end, batch in enumerate(batches):
        codes += len(batch.codes) // width
        if codes >= PIECE_CODES:
            yield batches[begin : end + 1]
            begin, codes = end + 1, 0
    if begin < len(batches):
        yield batches[begin:]


class _Episode:
    """What is remembered of an episode. Its table maps a code to the place of its count."""

    __slots__ = ("answer", "bytes", "digest", "expires", "finished", "sequence", "table", "width")

    def __init__(self, width: int, table: defaultdict[bytes, int]) -> None:
        self.sequence = -1
        self.width = width
        self.digest = 0
        self.answer = b""
        self.finished = False
        self.table = table
        self.expires = 0.0
        self.bytes = 0


class MemoryStore:
    """Counts in this process and never takes more than `max_bytes` for it: a batch that would is refused as FULL.

    Every method runs on one event loop, and pauses only between batches, which is what makes each of them atomic.

    Args:
        max_bytes: The limit. The process itself needs some 70 MB more.
        ttl: Seconds after its last batch when an episode that never ended is forgotten.
        retry_window: Seconds for which the answer to a final batch is kept.
        clock: Seconds, monotonic.

    Attributes:
        used_bytes: What it holds, by its own reckoning, which errs on the high side.
    """

    LEAST_BYTES = 4 * Visits.STEP * Visits.PLACE_BYTES

    def __init__(
        self, *, max_bytes: int, ttl: float, retry_window: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if max_bytes < self.LEAST_BYTES:
            raise ValueError(f"the memory store needs at least {self.LEAST_BYTES:,} bytes, and not {max_bytes:,}")
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._retry_window = retry_window
        self._clock = clock
        # Both in the order of expiry, since all episodes in one of them live equally long after their last batch.
        self._live: OrderedDict[Key, _Episode] = OrderedDict()
        self._finished: OrderedDict[Key, _Episode] = OrderedDict()
        self._visits = Visits()
        self.used_bytes = 0
        self._reserve(Visits.STEP)

    async def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Outcome]:
        """See `Store.count`. A large call is counted in pieces, and others are served between them."""
        outcomes: list[Outcome] = []
        for piece in _pieces(width, batches):
            if outcomes:
                await asyncio.sleep(0)
            outcomes += self._count_piece(run, width, piece)
        return outcomes

    def _count_piece(self, run: str, width: int, batches: Sequence[Batch]) -> list[Outcome]:
        now = self._clock()
        self._forget_expired(now)
        distinct = Distinct(width, [batch.codes for batch in batches])
        if self._reserve(len(distinct.codes)):
            return self._count(run, width, batches, distinct, now, places_reserved=True)
        # Nearly full: one after another, so that each sees what the one before it took or gave back.
        return [
            self._count(run, width, [batch], Distinct(width, [batch.codes]), now, places_reserved=False)[0]
            for batch in batches
        ]

    async def check(self) -> None:
        """See `Store.check`: memory is always there."""

    async def memory(self) -> tuple[int, int] | None:
        """See `Store.memory`."""
        return self.used_bytes, self._max_bytes

    async def live_episodes(self) -> int:
        """See `Store.live_episodes`."""
        self._forget_expired(self._clock())
        return len(self._live)

    async def close(self) -> None:
        """See `Store.close`."""

    def _count(
        self, run: str, width: int, batches: Sequence[Batch], distinct: Distinct, now: float, *, places_reserved: bool
    ) -> list[Outcome]:
        """The hot loop of this store. Without reserved places, batches must come one at a time."""
        outcomes: list[Outcome | None] = []  # None: counted
        counted: list[tuple[_Episode, int]] = []  # and how many codes were new to it
        places = array("I")  # of the distinct codes
        all_codes: list[bytes] = distinct.codes.tolist()
        # What is left if every table of this call has to grow; only if that is too much does a batch need a closer look.
        room = self._max_bytes - self.used_bytes - len(batches) * EPISODE_BYTES if places_reserved else -1
        bytes_of_code = code_bytes(width)
        for batch, span in zip(batches, distinct.spans, strict=True):
            key, codes = (run, batch.episode_id), all_codes[span]
            episode = self._live.get(key) or self._finished.get(key)
            digest = hash((batch.final, batch.codes))
            outcome = _without_counting(episode, width, batch, digest)
            if outcome is None:
                if episode is None:
                    episode = _Episode(width, defaultdict(self._visits.free.pop))
                table, answer_bytes = episode.table, 4 * len(batch.codes) // width
                known = len(table)
                room -= _TABLE_BYTES + (known + len(codes)) * (_ENTRY_BYTES + bytes_of_code) + answer_bytes
                if room >= 0 or self._has_room(episode, codes, answer_bytes, final=batch.final):
                    places.extend(map(table.__getitem__, codes))
                    episode.sequence, episode.digest = batch.sequence, digest
                    takes = EPISODE_BYTES + answer_bytes + sys.getsizeof(table) + len(table) * bytes_of_code
                    self.used_bytes += takes - episode.bytes
                    episode.bytes = takes
                    episode.expires = now + self._ttl
                    self._live[key] = episode
                    self._live.move_to_end(key)
                    counted.append((episode, len(table) - known))
                else:
                    outcome = self._full()
            if outcome is not None:
                places.extend(bytes(len(codes)))  # nobody's place
            outcomes.append(outcome)
        before = self._visits.add(np.frombuffer(places, np.uint32), distinct.times)
        answers = saturated(before[distinct.place_of] + distinct.occurrence).tobytes()
        which = iter(counted)
        complete: list[Outcome] = []
        begin = 0
        for batch, outcome in zip(batches, outcomes, strict=True):
            end = begin + 4 * len(batch.codes) // width
            if outcome is None:
                episode, new = next(which)
                episode.answer = answers[begin:end]
                complete.append(Outcome(Status.COUNTED, episode.answer, new))
                if batch.final:
                    self._finish((run, batch.episode_id), episode, now)
            else:
                complete.append(outcome)
            begin = end
        return complete

    def _finish(self, key: Key, episode: _Episode, now: float) -> None:
        """Frees the table; what is needed to answer a retry stays for a while."""
        del self._live[key]
        self._visits.release(episode.table.values())
        episode.table = defaultdict()
        episode.finished = True
        episode.expires = now + self._retry_window
        self._finished[key] = episode
        takes = EPISODE_BYTES + len(episode.answer)
        self.used_bytes += takes - episode.bytes
        episode.bytes = takes

    def _reserve(self, codes: int) -> bool:
        """Whether there are places for so many new codes, more being made if the limit allows all that are needed."""
        missing = codes + SPARE_PLACES - len(self._visits.free)
        steps = max(0, -(-missing // Visits.STEP))
        step_bytes = Visits.STEP * Visits.PLACE_BYTES
        if self.used_bytes + steps * step_bytes > self._max_bytes:
            return False
        for _ in range(steps):
            self._visits.grow()
            self.used_bytes += step_bytes
        return True

    def _has_room(self, episode: _Episode, codes: Sequence[bytes], answer_bytes: int, *, final: bool) -> bool:
        """Whether the store stays within its limit with a batch of these distinct codes."""
        room = self._max_bytes - self.used_bytes + episode.bytes - EPISODE_BYTES - answer_bytes
        if final:  # takes room for its table only until it frees it
            return room >= 0
        new = len(set(codes) - episode.table.keys())
        entries = len(episode.table) + new
        enough = room >= _TABLE_BYTES + entries * (_ENTRY_BYTES + code_bytes(episode.width))
        return enough and new <= len(self._visits.free) - SPARE_PLACES

    def _full(self) -> Outcome:
        return Outcome(
            Status.FULL,
            detail=f"the memory store holds {self.used_bytes:,} of at most {self._max_bytes:,} bytes and nothing is evicted; "
            "repeat when episodes have ended, raise --max-memory, or use Redis",
        )

    def _forget_expired(self, now: float) -> None:
        for episodes in (self._live, self._finished):
            while episodes:
                key, episode = next(iter(episodes.items()))
                if episode.expires > now:
                    break
                del episodes[key]
                self._visits.release(episode.table.values())
                self.used_bytes -= episode.bytes


def _without_counting(episode: _Episode | None, width: int, batch: Batch, digest: int) -> Outcome | None:
    """The answer to a batch that is not to be counted, or None. The same decisions, in the same order, as in count.lua."""
    sequence = batch.sequence
    if episode is None:
        return None if sequence == 0 else store.lost(sequence)
    if width != episode.width:
        return store.other_width(width, episode.width)
    if sequence == episode.sequence:
        same = digest == episode.digest
        return Outcome(Status.REPLAYED, episode.answer) if same else store.other_content(sequence)
    if sequence < episode.sequence:
        return store.stale(sequence, episode.sequence)
    if episode.finished:
        return store.finished(sequence, episode.sequence)
    if sequence > episode.sequence + 1:
        return store.gap(sequence, episode.sequence + 1)
    return None
