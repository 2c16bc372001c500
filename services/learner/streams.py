"""What the learner knows of an actor's Push stream, and in which order streams are granted credits. Of the event loop only."""

from __future__ import annotations

import asyncio
import heapq
import time
from dataclasses import dataclass, field

import grpc

FEW = 64
CloseStatus = tuple[grpc.StatusCode, str]


@dataclass(eq=False, slots=True)
class Stream:
    """An actor's Push stream. Of the event loop only."""

    incarnation: bytes
    last: int | None  # the highest number taken of the incarnation; None if this learner has taken none
    matters_until: int  # the newest version with which something of it, sent again, would be taken again; 0 for nothing
    turn: int  # when it was last granted a credit; a smaller number is longer ago
    credits: int = 0  # granted and not used yet
    delivered: bool = False  # whether it has used one
    idle_since: float = 0.0  # when it last used a credit, or got one after it had none
    open: bool = True  # whether it may still send
    ending: CloseStatus | None = None  # not an exception, whose traceback would keep the request in memory
    _untold_credits: int = 0
    _untold: bool = True  # all that is untold is one answer, so an actor that does not read costs nothing
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _granted: asyncio.Event = field(default_factory=asyncio.Event)

    async def may_send(self) -> bool:
        """Waits for a credit; False if the stream ends before."""
        while self.open and self.credits == 0:
            self._granted.clear()
            await self._granted.wait()
        return self.open

    async def news(self) -> tuple[int, int] | None:
        """The number acknowledged and new credits, as soon as there is something to tell; None at the end of the stream."""
        while not self._untold:
            if not self.open:
                return None
            self._changed.clear()
            await self._changed.wait()
        self._untold = False
        new_credits, self._untold_credits = self._untold_credits, 0
        return self.last or 0, new_credits

    def grant(self, turn: int) -> None:
        """Adds a credit."""
        if self.credits == 0:
            self.idle_since = time.monotonic()
        self.turn = turn
        self.credits += 1
        self._granted.set()
        self._untold_credits += 1
        self.tell()

    def end(self, ending: CloseStatus | None) -> None:
        """Ends the stream, after what is untold was told; credits end with it."""
        self.open = False
        self.ending = ending
        self.credits = self._untold_credits = 0
        self._changed.set()
        self._granted.set()

    def tell(self) -> None:
        """Has the actor told where it stands, also if that is nothing new."""
        self._untold = True
        self._changed.set()


class Line:
    """The open streams that have delivered, or those that have not: who holds the fewest credits is first, among equals who was
    granted one the longest ago.

    A stream is added again whenever its credits change; what was said of it before counts no more, and is forgotten on the way.
    """

    def __init__(self, *, delivered: bool) -> None:
        self._delivered = delivered
        self._heap: list[tuple[int, int, Stream]] = []
        self._room = FEW

    def add(self, stream: Stream) -> None:
        """Says that a stream came, or that its credits have changed."""
        if len(self._heap) >= self._room:
            self._heap = [each for each in self._heap if self._holds(*each)]
            heapq.heapify(self._heap)
            self._room = 2 * len(self._heap) + FEW
        heapq.heappush(self._heap, (stream.credits, stream.turn, stream))

    def first(self) -> Stream | None:
        """Who is next, if there is anybody."""
        while self._heap and not self._holds(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def _holds(self, credits: int, turn: int, stream: Stream) -> bool:  # noqa: A002  # as everywhere here
        """Whether this is still so."""
        present = stream.open and stream.delivered == self._delivered
        return present and (stream.credits, stream.turn) == (credits, turn)
