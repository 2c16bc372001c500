"""The visits of E environments, one step at a time: in this process, or by the hash-count service.

E   environments        L  levels of the hash        W  bytes of all its levels
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import structlog

from leco.rpc.hashcount_client import CodeBatch, CountResult
from services.hashcount.memory import MemoryStore
from services.hashcount.store import Batch

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    import numpy.typing as npt

log = structlog.get_logger("leco.rewards")

MEMORY_BYTES = 1 << 30
TTL_SECONDS = 3600.0  # after which an episode that was left in the middle is forgotten


class Counter(Protocol):
    """What counts: a `HashCountClient`, or `MemoryCounter`."""

    def count(self, batches: Sequence[CodeBatch]) -> list[CountResult]:
        """The counts of each batch, in order."""


class MemoryCounter:
    """The store of `leco hashcount --store memory`, in this process and without a server.

    Args:
        width: Bytes in a code.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._store = MemoryStore(max_bytes=MEMORY_BYTES, ttl=TTL_SECONDS, retry_window=0.0)

    def count(self, batches: Sequence[CodeBatch]) -> list[CountResult]:
        """See `Counter`."""
        packed = [Batch(each.episode_id, each.sequence, each.codes.tobytes(), each.final) for each in batches]
        outcomes = _finished(self._store.count("", self._width, packed))
        return [
            CountResult(
                int(each.status), None if each.counts is None else np.frombuffer(each.counts, "<u4"), each.detail
            )
            for each in outcomes
        ]


def _finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing: it pauses only to let others have their turn, and there are none."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as done:
        return done.value


@dataclass(slots=True)
class _Episode:
    """`lost`: counting failed within it, and cannot be made up for."""

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    sequence: int = 0
    lost: bool = False


class Visits:
    """Follows the episodes of E environments.

    Args:
        counter: What counts.
        levels: L.
        num_envs: E.
    """

    def __init__(self, counter: Counter, levels: int, num_envs: int) -> None:
        self._counter, self._levels = counter, levels
        self._episodes = [_Episode() for _ in range(num_envs)]
        self._waiting: list[tuple[int | None, _Episode, CodeBatch]] = []  # whose count is asked for, if anybody's

    def begin(self, e: int, code_W: npt.NDArray[np.uint8]) -> None:
        """An episode begins in environment e with an observation of these codes, which nothing is paid for."""
        self._episodes[e] = _Episode()
        self._add(None, self._episodes[e], code_W, final=False)

    def add(self, e: int, code_W: npt.NDArray[np.uint8], *, final: bool = False) -> None:
        """An action led to an observation of these codes; `final` if it ended the episode."""
        self._add(e, self._episodes[e], code_W, final=final)

    def _add(self, e: int | None, episode: _Episode, code_W: npt.NDArray[np.uint8], *, final: bool) -> None:
        codes = np.ascontiguousarray(code_W).reshape(self._levels, -1)
        self._waiting.append((e, episode, CodeBatch(episode.id, episode.sequence, codes, final)))
        episode.sequence += 1

    def count(self) -> npt.NDArray[np.uint32]:
        """Counts all since the last call: uint32 [E, L], of what was added; 0 where nothing was, or it could not be counted."""
        count_EL = np.zeros((len(self._episodes), self._levels), np.uint32)
        asked = [each for each in self._waiting if not each[1].lost]
        self._waiting = []
        results = self._counter.count([batch for _, _, batch in asked]) if asked else []
        failed = ""
        for (e, episode, _), result in zip(asked, results, strict=True):
            if result.counts is None:
                episode.lost, failed = True, result.detail
            elif e is not None:
                count_EL[e] = result.counts
        if failed:
            log.warning("counting failed; nothing more is paid in these episodes", first=failed)
        return count_EL
