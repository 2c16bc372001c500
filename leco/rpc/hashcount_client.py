"""The client of the hash-count service."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import numpy as np

from leco.rpc.waiting import Waiting
from leco.telemetry import tracing
from leco.v1 import hash_count_pb2, hash_count_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SERVICE = hash_count_pb2.DESCRIPTOR.services_by_name["HashCountService"].full_name
COUNTED = hash_count_pb2.EPISODE_STATUS_COUNTED
REPLAYED = hash_count_pb2.EPISODE_STATUS_REPLAYED
# Nothing was counted, or that is not known; a repeat is safe and may succeed.
TRANSIENT = (hash_count_pb2.EPISODE_STATUS_UNAVAILABLE, hash_count_pb2.EPISODE_STATUS_FULL)
# The outcome is unknown or nothing was counted, and a repeat is safe.
TRANSIENT_CODES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
)


@dataclass(frozen=True, slots=True)
class CodeBatch:
    """The next codes of an episode.

    Attributes:
        episode_id: Unique within the run.
        sequence: 0 for the first batch of the episode, then one more for each.
        codes: uint8 [n, width], C-contiguous.
        final: Whether the episode ends with this batch.
    """

    episode_id: str
    sequence: int
    codes: NDArray[np.uint8]
    final: bool = False


@dataclass(frozen=True, slots=True)
class CountResult:
    """What came of a batch.

    Attributes:
        status: An EpisodeStatus of proto/leco/v1/hash_count.proto.
        counts: uint32 [n], read-only: each code's count at its moment. None if it was not counted; `detail` says why.
        detail: For people.
    """

    status: int
    counts: NDArray[np.uint32] | None
    detail: str


class HashCountClient:
    """Has batches counted, and repeats what failed until an answer comes or patience ends.

    Repeating is safe because the service counts each batch once.

    Args:
        channel: From `leco.rpc.channel.open_channel`. The caller closes it.
        run: The run that the episodes belong to.
        code_width: Bytes in a code.
        attempt_seconds: How long one call may take.
        patience_seconds: How long `count` may take in all.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        run: str,
        code_width: int,
        attempt_seconds: float = 5.0,
        patience_seconds: float = 60.0,
    ) -> None:
        self._stub = hash_count_pb2_grpc.HashCountServiceStub(channel)
        self._run = run
        self._width = code_width
        self._attempt_seconds = attempt_seconds
        self._patience_seconds = patience_seconds
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Ends all patience, also that of a `count` in another thread: it makes no further attempt."""
        self._given_up.set()

    def count(self, batches: Sequence[CodeBatch]) -> list[CountResult]:
        """Counts each batch; the results are in the order of `batches`.

        A batch that could not be counted has a result without counts. That includes, once patience has ended, batches that
        the service could not be asked about. The first attempt is always made.

        Raises:
            grpc.RpcError: the service refused the call for a reason that no repeat can change, such as INVALID_ARGUMENT or a
                message that is too large.
        """
        results: list[CountResult | None] = [None] * len(batches)
        waiting = list(range(len(batches)))
        deadline = time.monotonic() + self._patience_seconds
        pause, away = 0.05, Waiting("the hash-count service")
        while True:
            remaining = max(deadline - time.monotonic(), 0.001)
            for position, result in zip(
                waiting,
                self._attempt([batches[i] for i in waiting], min(self._attempt_seconds, remaining)),
                strict=True,
            ):
                results[position] = result
            waiting = [i for i in waiting if (answer := results[i]) is not None and answer.status in TRANSIENT]
            spread = random.uniform(0.5, 1.0)  # noqa: S311  # of clients, to protect nothing
            if not waiting or time.monotonic() + pause >= deadline or self._given_up.wait(pause * spread):
                return [result for result in results if result is not None]
            away.say(next(result.detail for result in results if result is not None and result.status in TRANSIENT))
            pause = min(2 * pause, 2.0)

    def _attempt(self, batches: Sequence[CodeBatch], seconds: float) -> list[CountResult]:
        try:
            response = self._stub.Count(self._request(batches), timeout=seconds, metadata=tracing.calling())
        except grpc.RpcError as error:
            if error.code() not in TRANSIENT_CODES or "larger than max" in (error.details() or ""):
                raise
            detail = f"{error.code().name}: {error.details()}"
            return [CountResult(hash_count_pb2.EPISODE_STATUS_UNAVAILABLE, None, detail)] * len(batches)
        counts = np.frombuffer(response.counts, "<u4")
        results: list[CountResult] = []
        begin = 0
        for batch, result in zip(batches, response.episodes, strict=True):
            end = begin + len(batch.codes)
            counted = result.status in (COUNTED, REPLAYED)
            results.append(CountResult(result.status, counts[begin:end] if counted else None, result.detail))
            begin = end
        return results

    def _request(self, batches: Sequence[CodeBatch]) -> hash_count_pb2.CountRequest:
        for batch in batches:
            if batch.codes.dtype != np.uint8 or batch.codes.ndim != 2 or batch.codes.shape[1] != self._width:
                raise ValueError(
                    f"codes of episode {batch.episode_id!r} must be uint8 [n, {self._width}], "
                    f"and not {batch.codes.dtype} {list(batch.codes.shape)}"
                )
        return hash_count_pb2.CountRequest(
            run=self._run,
            code_width=self._width,
            episodes=[
                hash_count_pb2.EpisodeBatch(
                    episode_id=batch.episode_id, sequence=batch.sequence, size=len(batch.codes), final=batch.final
                )
                for batch in batches
            ],
            codes=b"".join([batch.codes.tobytes() for batch in batches]),
        )
