"""Visit tables in this process: for one machine, tests and the first run."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from services.hashcount import store
from services.hashcount.distinct import Distinct
from services.hashcount.store import Batch, Outcome, Status
from services.hashcount.visit_tables import Codes, VisitTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from services.hashcount.visit_tables import Table

    Key = tuple[str, str]  # run and episode id

# What an episode costs beside its table and its answer: the record, its keys, its place in the ordered dictionary.
EPISODE_BYTES = 900
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
    """What is remembered of an episode."""

    __slots__ = ("answer", "bytes", "digest", "distinct", "expires", "finished", "sequence", "table", "width")

    def __init__(self, width: int) -> None:
        self.sequence = -1
        self.width = width
        self.digest = 0
        self.answer = b""
        self.finished = False
        self.table: Table | None = None
        self.distinct = 0  # codes in its table
        self.expires = 0.0
        self.bytes = 0  # beside its table


class _Accepted(NamedTuple):
    """A batch that will be counted: its episode, its distinct codes, whether it is the last, and the table that was outgrown."""

    episode: _Episode
    span: slice
    final: bool
    outgrown: Table | None


class MemoryStore:
    """Counts in this process and never takes more than `max_bytes` for it: a batch that would is refused as FULL.

    Every method runs on one event loop, and pauses only between batches, which is what makes each of them atomic.

    Args:
        max_bytes: The limit. The process itself needs some 70 MB more.
        ttl: Seconds after its last batch when an episode that never ended is forgotten.
        retry_window: Seconds for which the answer to a final batch is kept.
        clock: Seconds, monotonic.
    """

    LEAST_BYTES = 4 << 20

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
        self._tables = VisitTables(max_bytes)
        self._record_bytes = 0

    @property
    def used_bytes(self) -> int:
        """What it holds, by its own reckoning, which errs on the high side."""
        return self._tables.bytes + self._record_bytes

    async def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Outcome]:
        """See `Store.count`. A large call is counted in pieces, and others are served between them."""
        outcomes: list[Outcome] = []
        for piece in _pieces(width, batches):
            if outcomes:
                await asyncio.sleep(0)
            outcomes += self._count_piece(run, width, piece)
        return outcomes

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

    def _count_piece(self, run: str, width: int, batches: Sequence[Batch]) -> list[Outcome]:
        """Decides on one batch after the other, and looks up the codes of all that are counted at once."""
        now = self._clock()
        self._forget_expired(now)
        distinct = Distinct(width, [batch.codes for batch in batches])
        before_D = np.zeros(len(distinct.times), np.uint64)
        decided: list[Outcome | _Episode] = []
        waiting: list[_Accepted] = []  # to be looked up
        for batch, span in zip(batches, distinct.spans, strict=True):
            key = (run, batch.episode_id)
            episode = self._live.get(key) or self._finished.get(key)
            digest = hash((batch.final, batch.codes))
            outcome = _without_counting(episode, width, batch, digest)
            if outcome is not None:
                decided.append(outcome)
                continue
            episode = episode or _Episode(width)
            accepted = self._accept(batch, episode, span)
            if accepted is None and any(each.final for each in waiting):
                self._look_up(waiting, distinct, before_D)  # which gives back the tables of episodes that end
                waiting.clear()
                accepted = self._accept(batch, episode, span)
            if accepted is None:
                decided.append(self._full())
                continue
            episode.sequence, episode.digest, episode.expires = batch.sequence, digest, now + self._ttl
            self._live[key] = episode
            self._live.move_to_end(key)
            waiting.append(accepted)
            decided.append(episode)
        self._look_up(waiting, distinct, before_D)
        new_D = np.concatenate([[0], np.cumsum(before_D == 0)]).tolist()
        counts, begin, outcomes = distinct.counts(before_D), 0, []
        for batch, span, each in zip(batches, distinct.spans, decided, strict=True):
            end = begin + 4 * len(batch.codes) // width
            if isinstance(each, _Episode):
                new = new_D[span.stop] - new_D[span.start]
                each.distinct += new
                each.answer = counts[begin:end]
                outcomes.append(Outcome(Status.COUNTED, each.answer, new))
                if batch.final:
                    self._finish((run, batch.episode_id), each, now)
            else:
                outcomes.append(each)
            begin = end
        return outcomes

    def _accept(self, batch: Batch, episode: _Episode, span: slice) -> _Accepted | None:
        """Makes room for a batch; None, and nothing has changed, if there is none.

        A final batch needs no table: what is new in it is in nobody's way.
        """
        takes = EPISODE_BYTES + 4 * len(batch.codes) // episode.width
        left = self._max_bytes - self._record_bytes - takes + episode.bytes
        if left < self._tables.bytes:
            return None
        table, outgrown, entries = episode.table, None, episode.distinct + span.stop - span.start
        if not batch.final and (table is None or not table.has_room(entries)):
            outgrown, table = table, self._tables.make(entries, -(-episode.width // 8), left)
            if table is None:
                return None
        episode.table = table
        self._record_bytes += takes - episode.bytes
        episode.bytes = takes
        return _Accepted(episode, span, batch.final, outgrown)

    def _look_up(self, waiting: Sequence[_Accepted], distinct: Distinct, before_D: NDArray[np.uint64]) -> None:
        """Fills in how often the codes of these batches had been seen before, and adds their visits."""
        moves = [(each.outgrown, each.episode.table) for each in waiting if each.outgrown and each.episode.table]
        if moves:
            self._tables.move(moves, len(distinct.words_WD))
        for final in (False, True):
            group = [each for each in waiting if each.final == final]
            if not group:
                continue
            numbers = [each.span.stop - each.span.start for each in group]
            begin, end = group[0].span.start, group[-1].span.stop
            which: NDArray[np.intp] | slice = slice(begin, end)
            if end - begin > sum(numbers):  # others lie between them
                which = np.concatenate([np.arange(each.span.start, each.span.stop) for each in group])
            codes = Codes(distinct.words_WD[:, which], distinct.hash_D[which], distinct.times[which])
            before_D[which] = self._tables.visit([each.episode.table for each in group], numbers, codes, add=not final)
            for each in group:
                if final and each.episode.table is not None:
                    self._tables.release(each.episode.table)
                    each.episode.table = None

    def _finish(self, key: Key, episode: _Episode, now: float) -> None:
        """What is needed to answer a retry stays for a while."""
        del self._live[key]
        episode.finished = True
        episode.expires = now + self._retry_window
        self._finished[key] = episode

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
                if episode.table is not None:
                    self._tables.release(episode.table)
                self._record_bytes -= episode.bytes


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
