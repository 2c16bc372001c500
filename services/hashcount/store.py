"""The port of the hash-count service: what every store of visit tables promises.

The rules, for one episode:

    sequence = last + 1 (0 for the first)    counted, and remembered as the last
    sequence = last, same content            replayed: the same answer, no change
    anything else                            refused with a status that says why, no change

A store remembers of each episode its visit table, the last sequence, a digest of the last batch and the answer to it.
"""

from __future__ import annotations

import enum
import hashlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Status(enum.IntEnum):
    """What happened to a batch; the numbers of `EpisodeStatus` in proto/leco/v1/hash_count.proto, which explains them."""

    COUNTED = 1
    REPLAYED = 2
    GAP = 3
    STALE = 4
    LOST = 5
    CONFLICT = 6
    FINISHED = 7
    FULL = 8
    UNAVAILABLE = 9


class Batch(NamedTuple):
    """The codes of one episode in one call: packed, one after another, each of the width of the call."""

    episode_id: str
    sequence: int
    codes: bytes
    final: bool

    def digest(self) -> bytes:
        """Eight bytes that tell this batch from another one with the same sequence and code width, on any machine."""
        return hashlib.blake2b(self.codes, digest_size=8, person=b"final" if self.final else b"").digest()


class Outcome(NamedTuple):
    """What a store did with a batch.

    Attributes:
        status: What happened.
        counts: For COUNTED and REPLAYED one little-endian unsigned 32-bit count for each code, packed; otherwise None.
        new: How many of the codes were new in their episode, if this call counted them.
        detail: Without counts, for people: what was expected and what came.
    """

    status: Status
    counts: bytes | None = None
    new: int = 0
    detail: str = ""


class StoreUnavailableError(Exception):
    """The store could not be reached for any episode of a call. Whether it counted is unknown; the call may be repeated."""


class Store(Protocol):
    """Visit tables by run and episode. One call at a time has effect on an episode, whatever runs side by side."""

    async def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Outcome]:
        """Counts each batch; the outcomes are in the order of `batches`, whose episodes are distinct.

        Raises:
            StoreUnavailableError: no episode could be reached.
        """
        ...

    async def check(self) -> None:
        """Returns if the store can be reached; otherwise raises StoreUnavailableError."""
        ...

    async def live_episodes(self) -> int:
        """How many episodes have a visit table now, over all runs and all replicas of the service."""
        ...

    async def memory(self) -> tuple[int, int] | None:
        """Bytes in use, and how many may be (0: no limit), over all servers of the store; None if they do not say."""
        ...

    async def close(self) -> None:
        """Gives back connections and threads."""
        ...


def gap(sequence: int, expected: int) -> Outcome:
    """A batch is missing in between."""
    return Outcome(
        Status.GAP, detail=f"sequence {sequence} came, but {expected} is the next: a batch is missing in between"
    )


def stale(sequence: int, last: int) -> Outcome:
    """A later batch was counted."""
    return Outcome(Status.STALE, detail=f"sequence {sequence} came late: {last} was counted already")


def lost(sequence: int) -> Outcome:
    """There is no table to go on with."""
    return Outcome(
        Status.LOST,
        detail=f"sequence {sequence} came, but the episode has no visit table: it expired, ended, never began, or the store "
        "lost its data",
    )


def other_content(sequence: int) -> Outcome:
    """The batch is not the one that was counted under its number."""
    return Outcome(
        Status.CONFLICT, detail=f"sequence {sequence} was counted before with other codes or another final flag"
    )


def other_width(width: int, expected: int) -> Outcome:
    """The width changed within the episode."""
    return Outcome(Status.CONFLICT, detail=f"codes of {width} bytes came, but this episode's codes have {expected}")


def finished(sequence: int, last: int) -> Outcome:
    """The episode has ended."""
    return Outcome(Status.FINISHED, detail=f"sequence {sequence} came, but {last} was the final batch of this episode")
