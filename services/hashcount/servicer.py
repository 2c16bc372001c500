"""From a request to the store and back: checks everything, decides nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import grpc

from leco.rpc.interceptor import Refusal
from leco.telemetry import tracing
from leco.v1 import hash_count_pb2, hash_count_pb2_grpc
from services.hashcount.store import Batch, Outcome, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.hashcount.metrics import HashCountMetrics
    from services.hashcount.store import Store

MAX_EPISODES = 4096
MAX_BATCH_CODES = 65_535
MAX_CODES = 524_288
MAX_CODE_WIDTH = 256
_is_name = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
_NAME_RULE = "1 to 64 characters of A-Z a-z 0-9 . _ -"


class BadRequestError(ValueError):
    """A request that breaks the contract. The message says what is wrong, what is expected, and where."""


class HashCountServicer(hash_count_pb2_grpc.HashCountServiceServicer):
    """Answers Count from a store."""

    def __init__(self, store: Store, metrics: HashCountMetrics) -> None:
        self._store = store
        self._metrics = metrics

    async def Count(  # noqa: N802  # the name in the contract
        self, request: hash_count_pb2.CountRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> hash_count_pb2.CountResponse:
        """See proto/leco/v1/hash_count.proto."""
        try:
            batches = parse(request)
        except BadRequestError as error:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        try:
            with tracing.span("store", episodes=len(batches)):
                outcomes = await self._store.count(request.run, request.code_width, batches)
        except StoreUnavailableError as error:
            self._metrics.unavailable(len(batches))
            raise Refusal(grpc.StatusCode.UNAVAILABLE, f"the store cannot be reached: {error}") from error
        self._metrics.outcomes(outcomes)
        return response(request.code_width, batches, outcomes)


def parse(request: hash_count_pb2.CountRequest) -> list[Batch]:
    """Checks a request and cuts its codes into batches.

    Raises:
        BadRequestError: it breaks the contract.
    """
    width = request.code_width
    if not _is_name(request.run):
        raise BadRequestError(f"run must be {_NAME_RULE}, and not {_shown(request.run)}")
    if not 1 <= width <= MAX_CODE_WIDTH:
        raise BadRequestError(f"code_width must be 1 to {MAX_CODE_WIDTH} bytes, and not {width}")
    episodes = request.episodes
    if not 1 <= len(episodes) <= MAX_EPISODES:
        raise BadRequestError(f"episodes must be 1 to {MAX_EPISODES} in a call, and not {len(episodes)}")
    packed = request.codes
    names: set[str] = set()
    batches = []
    end = 0
    for place, episode in enumerate(episodes):
        name, size, final = episode.episode_id, episode.size, episode.final
        if not _is_name(name):
            raise BadRequestError(f"episodes[{place}].episode_id must be {_NAME_RULE}, and not {_shown(name)}")
        if size > MAX_BATCH_CODES:
            raise BadRequestError(f"episodes[{place}].size must be at most {MAX_BATCH_CODES}, and not {size}")
        if size == 0 and not final:
            raise BadRequestError(f"episodes[{place}].size may be 0 only in a final batch")
        names.add(name)
        if len(names) == place:
            raise BadRequestError(f"episodes[{place}]: episode {name!r} is in the call twice; put it into two calls")
        begin, end = end, end + size * width
        batches.append(Batch(name, episode.sequence, packed[begin:end], final))
    codes = end // width
    if codes > MAX_CODES:
        raise BadRequestError(f"a call must have at most {MAX_CODES} codes, and not {codes}; make it two calls")
    if len(packed) != end:
        raise BadRequestError(
            f"codes must have {end} bytes ({codes} codes of {width} bytes, by the sizes of the episodes), and not {len(packed)}"
        )
    return batches


def response(width: int, batches: Sequence[Batch], outcomes: Sequence[Outcome]) -> hash_count_pb2.CountResponse:
    """The answer, with zeros where there are no counts."""
    results = [
        hash_count_pb2.EpisodeResult(status=outcome.status, detail=outcome.detail)  # type: ignore[arg-type]  # same numbers
        for outcome in outcomes
    ]
    counts = [
        bytes(4 * len(batch.codes) // width) if outcome.counts is None else outcome.counts
        for batch, outcome in zip(batches, outcomes, strict=True)
    ]
    return hash_count_pb2.CountResponse(episodes=results, counts=b"".join(counts))


def _shown(text: str) -> str:
    """A hostile name, short enough for a message."""
    return repr(text) if len(text) <= 80 else f"{text[:60]!r}... ({len(text)} characters)"
