"""A few places for many clients: who takes too long gives way, and asking more often gives nobody a larger share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REMEMBERED_CONNECTIONS = 8192


class NoPlaceError(Exception):
    """The time was up, or too many wait already."""


def host_of(peer: str) -> str:
    """The machine in gRPC's name of a connection, for example "ipv4:10.0.0.1:40312": all but the port."""
    return peer.rpartition(":")[0]


@dataclass(eq=False, slots=True)
class _Held:
    """A place in use."""

    peer: str
    since: float
    limit: asyncio.Timeout

    def end_by(self, deadline: float) -> None:
        when = self.limit.when()
        if not self.limit.expired() and when is not None and deadline < when:
            self.limit.reschedule(deadline)


@dataclass(eq=False, slots=True)
class _Waiter:
    peer: str
    turn: int
    admitted: asyncio.Future[None]


class Places:
    """At most so many at once; the others wait. Of the event loop.

    A connection is trusted from a place that it left in time until one that it did not. A free place goes to the host that holds
    the fewest, there to a trusted connection before others, then to the connection that holds the fewest, then to who waited
    longest. A trusted connection need not wait for one that is not: that one loses its place.

    Args:
        count: How many places there are.
        seconds: How long one may be held.
        contended_seconds: How long one may be held while somebody waits.
        max_waiting: How many may wait.
    """

    def __init__(self, count: int, *, seconds: float, contended_seconds: float, max_waiting: int) -> None:
        self._free = count
        self._seconds, self._contended_seconds, self._max_waiting = seconds, contended_seconds, max_waiting
        self._waiting: list[_Waiter] = []
        self._held: dict[_Held, None] = {}  # the longest held first
        self._held_by: Counter[str] = Counter()  # places of each connection, and of each host
        self._trusted: OrderedDict[str, None] = OrderedDict()
        self._turns = itertools.count()

    @contextlib.asynccontextmanager
    async def hold(self, peer: str) -> AsyncIterator[None]:
        """Waits for a place and holds it inside `with`. Raises NoPlaceError when the time is up, or if too many wait."""
        await self._admission(peer)
        limit = asyncio.timeout(self._contended_seconds if self._waiting else self._seconds)
        held = _Held(peer, asyncio.get_running_loop().time(), limit)
        self._held[held] = None
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            self._trusted.pop(peer, None)
            text = f"{asyncio.get_running_loop().time() - held.since:.1f} s were not enough"
            raise NoPlaceError(text) from None
        else:
            self._trust(peer)
        finally:
            del self._held[held]
            self._leave(peer)

    async def _admission(self, peer: str) -> None:
        if self._free > 0:
            self._free -= 1
            self._held_by.update((peer, host_of(peer)))
            return
        if len(self._waiting) >= self._max_waiting:
            raise NoPlaceError(f"{self._max_waiting} calls wait already")
        waiter = _Waiter(peer, next(self._turns), asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._hurry(peer)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self._leave(peer)
            raise

    def _hurry(self, peer: str) -> None:
        """Shortens the time of those who hold a place, because `peer` waits."""
        for held in self._held:
            held.end_by(held.since + self._contended_seconds)
        if peer in self._trusted:
            stranger = next((each for each in self._held if each.peer not in self._trusted), None)
            if stranger is not None:
                stranger.end_by(asyncio.get_running_loop().time())

    def _leave(self, peer: str) -> None:
        """Passes the place of `peer` on."""
        held = self._held_by
        for name in (peer, host_of(peer)):
            held[name] -= 1
            if not held[name]:
                del held[name]
        if not self._waiting:
            self._free += 1
            return
        first = min(
            self._waiting,
            key=lambda each: (
                held[host_of(each.peer)],
                each.peer not in self._trusted,
                held[each.peer],
                each.turn,
            ),
        )
        self._waiting.remove(first)
        held.update((first.peer, host_of(first.peer)))
        if not first.admitted.done():  # else it was cancelled, and will pass the place on
            first.admitted.set_result(None)

    def _trust(self, peer: str) -> None:
        self._trusted[peer] = None
        self._trusted.move_to_end(peer)
        if len(self._trusted) > REMEMBERED_CONNECTIONS:
            self._trusted.popitem(last=False)
