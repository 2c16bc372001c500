"""Trajectories on their way from the streams to the trainer: bounded, fair, and each at most once.

The streams live on one event loop; the trainer is a thread of its own. What both touch (the queue and the newest version)
is under a lock, everything else belongs to the event loop.

    places     waiting trajectories + outstanding credits never exceed `capacity`, and a quarter more for newcomers
    newcomers  once a stream has delivered, those that have not share that quarter, with one credit each: who never sends anything
               takes no place from who does
    credits    a free place goes to the stream that holds the fewest credits, among equals to the one that waited longest
    unused     while the trainer starves, a stream that leaves its credits unused and others without any is ended; it may come
               back, as a newcomer
    numbers    of each incarnation the highest one taken is known; one up to it is a duplicate, one beyond the next is refused. A
               closed incarnation is forgotten when whatever it sent would be too old to be taken again: not before, so that
               nothing trains twice, and for good, so that only what was taken in the last few versions takes memory
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import grpc

from leco.rpc.codec import CodecError
from leco.rpc.interceptor import Refusal
from services.learner.streams import Line, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leco.types import EpisodeSummary, Trajectory
    from services.learner.metrics import DropReason, LearnerMetrics
    from services.learner.streams import CloseStatus

FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
STOPPING: CloseStatus = (grpc.StatusCode.UNAVAILABLE, "the learner is stopping; connect again later")
# Longer than an actor takes for an unroll; a simulator that loads levels may take longer, and then connects again.
UNUSED_SECONDS = 15.0
STARVED_SECONDS = 1.0
UNUSED: CloseStatus = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    f"credits were not used for {UNUSED_SECONDS:g} s, and other actors wait for them; connect again",
)
TAKEN_OVER: CloseStatus = (grpc.StatusCode.ALREADY_EXISTS, "another stream of the same incarnation took over")


class TrajectoryQueue:
    """What actors sent and the trainer has not taken yet. `open`, `offer`, `leave` and `drain` are of the event loop.

    Args:
        capacity: The most trajectories waiting and credits outstanding, together, but for those of newcomers. A stuck actor keeps
            its credits for a while, so with batch + window x actors the trainer never waits for any single one.
        window: The most credits that one stream holds.
        max_policy_lag: A trajectory whose policy is more versions behind the newest is dropped.
        needs_counts: Whether trajectories without counts are dropped.
        metrics: Told of everything, episodes included.
        on_episodes: Called on the event loop with (version, episodes) of each trajectory in which episodes ended.
    """

    def __init__(
        self,
        *,
        capacity: int,
        window: int,
        max_policy_lag: int,
        needs_counts: bool,
        metrics: LearnerMetrics,
        on_episodes: Callable[[int, Sequence[EpisodeSummary]], None],
    ) -> None:
        for name, value, least in (
            ("capacity", capacity, 1),
            ("window", window, 1),
            ("max_policy_lag", max_policy_lag, 0),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}, expected at least {least}")
        self._capacity, self._window, self._max_lag = capacity, window, max_policy_lag
        self._newcomers = max(1, capacity // 4)
        self._needs_counts = needs_counts
        self._metrics, self._on_episodes = metrics, on_episodes
        self._queue: deque[Trajectory] = deque()
        self._newest, self._draining, self._closed = 0, False, False
        self._wanted = 0  # how many trajectories the trainer waits for
        self._changed = threading.Condition()  # guards the five above
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[bytes, Stream] = {}
        self._delivered = 0  # how many of them have delivered; the others are newcomers
        self._known, self._new = Line(delivered=True), Line(delivered=False)
        self._on_trial: dict[Stream, None] = {}  # newcomers with credits, in the order in which they got them
        self._outstanding = 0  # credits of all streams
        self._lent = 0  # of them, those of newcomers
        self._held = 0  # places of what was taken with `hold`
        self._turns = itertools.count()
        self._remembered: dict[
            bytes, tuple[int, int]
        ] = {}  # (last, matters_until) of closed streams, the longest gone first
        metrics.queue_capacity.set(capacity)

    def open(self, incarnation: bytes) -> Stream:
        """Begins a stream; another one of the same incarnation ends."""
        if self._draining:
            raise Refusal(*STOPPING)
        self._loop = asyncio.get_running_loop()
        if incarnation in self._streams:
            self.leave(self._streams[incarnation], TAKEN_OVER)
        last, matters_until = self._remembered.pop(incarnation, (None, 0))
        stream = Stream(incarnation, last, matters_until, next(self._turns))
        self._streams[incarnation] = stream
        self._new.add(stream)
        self._grant()
        self._take_back_from_newcomers()
        return stream

    def offer(self, stream: Stream, trajectory: Trajectory) -> None:
        """Takes a trajectory, or drops it; either way it is acknowledged. Refusal or CodecError: it breaks the contract."""
        if stream.credits == 0:
            raise Refusal(
                FAILED_PRECONDITION, "a trajectory came without a credit; expected none before one is granted"
            )
        if not stream.delivered:
            self._end_trial(stream)
            stream.delivered = True
            self._delivered += 1
        stream.credits -= 1
        self._outstanding -= 1
        stream.idle_since = time.monotonic()
        self._known.add(stream)
        if reason := self._put(trajectory, stream.last):
            self._metrics.dropped(reason)
        else:
            stream.matters_until = max(stream.matters_until, trajectory.parameters_version + self._max_lag)
        stream.last = max(stream.last or 0, trajectory.number)
        stream.tell()
        self._grant()
        episodes = tuple(episode for episode in trajectory.episodes if not episode.dropped)
        if episodes and reason != "duplicate":
            self._metrics.episodes(episodes)
            self._on_episodes(trajectory.parameters_version, episodes)

    def _put(self, trajectory: Trajectory, last: int | None) -> DropReason | None:
        """Appends to the queue what follows the last one taken, or says why it is to be dropped."""
        number, version = trajectory.number, trajectory.parameters_version
        if last is not None and number <= last:
            return "duplicate"
        if last is not None and number != last + 1:
            raise Refusal(FAILED_PRECONDITION, f"number is {number}, expected {last + 1}: a trajectory was skipped")
        with self._changed:
            if version > self._newest:
                raise CodecError(f"parameters_version is {version}, expected at most {self._newest}, the newest one")
            if self._newest - version > self._max_lag:
                return "lag"
            if self._needs_counts and trajectory.count is None:
                return "uncounted"
            self._queue.append(trajectory)
            if len(self._queue) >= self._wanted:  # or the trainer would wake up for each of a batch
                self._changed.notify()
        return None

    def leave(self, stream: Stream, ending: CloseStatus | None = None) -> None:
        """Ends a stream: its credits are free, its incarnation stays known. Does nothing if it has ended before."""
        if not stream.open:
            return
        del self._streams[stream.incarnation]
        self._end_trial(stream)
        self._delivered -= stream.delivered
        self._outstanding -= stream.credits
        stream.end(ending)
        self._remember(stream)
        self._grant()

    def _remember(self, stream: Stream) -> None:
        """Keeps what is known of a stream's incarnation, if it matters, and forgets the longest gone that matter no more."""
        newest = self._newest
        if stream.last is not None and stream.matters_until >= newest:
            self._remembered[stream.incarnation] = (stream.last, stream.matters_until)
        for incarnation in list(itertools.takewhile(lambda each: self._remembered[each][1] < newest, self._remembered)):
            del self._remembered[incarnation]

    def drain(self) -> None:
        """Ends all streams, for good, after they were told what was taken. The trainer may go on with what waits."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        for stream in list(self._streams.values()):
            self.leave(stream, STOPPING)

    def _end_trial(self, stream: Stream) -> None:
        """Has its credits count as those of others, if it is a newcomer."""
        if stream in self._on_trial:
            del self._on_trial[stream]
            self._lent -= stream.credits

    def _grant(self) -> None:
        """Gives free places to the streams. What it takes depends on how many it gives, and not on how many streams wait."""
        with self._changed:
            queued, draining = len(self._queue), self._draining
        if not draining:
            free, lent = self._capacity - queued - self._outstanding - self._held, self._lent
            if self._delivered:
                free -= self._deal(self._known, free + min(lent, self._newcomers), self._window)
                if self._deal(self._new, self._newcomers + min(free, -lent), 1) and self._loop is not None:
                    self._loop.call_later(UNUSED_SECONDS, self._take_back_from_newcomers)
            else:
                self._deal(self._new, free, self._window)
        self._metrics.places(queued=queued, outstanding=self._outstanding, streams=len(self._streams))

    def _deal(self, line: Line, places: int, window: int) -> int:
        """Gives at most so many credits, so that no stream holds more than `window`. Returns how many were given."""
        given = 0
        while given < places and (stream := line.first()) is not None and stream.credits < window:
            stream.grant(next(self._turns))
            line.add(stream)
            given += 1
            if not stream.delivered:
                self._on_trial.setdefault(stream)
                self._lent += 1
        self._outstanding += given
        return given

    def _take_back(self) -> None:
        """Ends streams that leave their credits unused, if others have none."""
        streams = list(self._streams.values())
        if all(one.credits > 0 for one in streams):
            return
        latest = time.monotonic() - UNUSED_SECONDS
        for one in streams:
            if one.credits > 0 and one.idle_since <= latest:
                self.leave(one, UNUSED)

    def _take_back_from_newcomers(self) -> None:
        """The same among newcomers: those that have had theirs for the longest give way to those that have none."""
        if len(self._streams) - self._delivered == len(self._on_trial):
            return
        latest = time.monotonic() - UNUSED_SECONDS
        for one in list(itertools.takewhile(lambda each: each.idle_since <= latest, self._on_trial)):
            self.leave(one, UNUSED)

    def take(self, count: int, timeout: float | None = None, *, hold: bool = False) -> list[Trajectory] | None:
        """The next `count` trajectories in order of arrival; None if they do not come in time or never will (drained, closed).

        Their places are free for others at once or, with `hold`, from the next call of `free` on.
        """
        if not 1 <= count <= self._capacity:
            raise ValueError(f"count is {count}, expected 1 to {self._capacity}, the capacity")
        with self._changed:
            self._wanted, deadline = count, time.monotonic() + (math.inf if timeout is None else timeout)
            while not self._changed.wait_for(
                lambda: self._draining or len(self._queue) >= count, min(STARVED_SECONDS, deadline - time.monotonic())
            ):
                if time.monotonic() >= deadline:
                    break
                self._soon(self._take_back)
            if self._closed or len(self._queue) < count:
                return None
            taken = [self._queue.popleft() for _ in range(count)]
            lags = [self._newest - trajectory.parameters_version for trajectory in taken]
            self._held = count if hold else 0
        self._metrics.taken(lags)
        self._soon(self._grant)
        return taken

    def free(self) -> None:
        """Frees the places of what was taken with `hold`."""
        self._held = 0
        self._soon(self._grant)

    @property
    def waiting(self) -> int:
        """How many trajectories there are to take."""
        return len(self._queue)

    def published(self, version: int) -> None:
        """Says that actors can have this version now. What waits and is too old by it will not be taken."""
        with self._changed:
            if version < max(self._newest, 1):
                raise ValueError(f"version is {version}, expected at least {max(self._newest, 1)}: it only ever grows")
            self._newest = version
            in_time = deque(each for each in self._queue if version - each.parameters_version <= self._max_lag)
            late, self._queue = len(self._queue) - len(in_time), in_time
        self._metrics.dropped("lag", late)
        self._soon(self._grant)

    def close(self) -> None:
        """Ends everything: `take` returns None from now on, and streams end."""
        with self._changed:
            self._draining = self._closed = True
            self._changed.notify_all()
        self._soon(self.drain)

    def _soon(self, act: Callable[[], None]) -> None:
        """Has the event loop do something, if there is one; when it has ended, there are no streams either."""
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(act)
