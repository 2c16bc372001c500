"""The learner's calls: checks what actors say, and answers from the queue and the newest parameters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from leco.rpc.codec import CodecError, parameters_to_messages, specification_to_message, trajectory_from_message
from leco.rpc.interceptor import Refusal
from leco.telemetry import tracing
from leco.v1 import learner_pb2, learner_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leco.types import ParameterSnapshot, RunSpecification
    from services.learner.metrics import LearnerMetrics
    from services.learner.streams import Stream
    from services.learner.trajectory_queue import TrajectoryQueue

log = structlog.get_logger(__name__)

MAX_ACTOR_NAME_BYTES = 128
INCARNATION_BYTES = 16

Context = grpc.aio.ServicerContext[Any, Any]
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT


class LearnerServicer(learner_pb2_grpc.LearnerServiceServicer):
    """Lets actors join, serves them parameters, and passes what they push to the queue.

    Args:
        specification: What the run is.
        queue: Where trajectories go.
        metrics: Where refusals, bytes and the version are noted.
        software_version: This learner's; actors of another major.minor are refused.
    """

    def __init__(
        self,
        specification: RunSpecification,
        queue: TrajectoryQueue,
        metrics: LearnerMetrics,
        *,
        software_version: str,
    ) -> None:
        self._specification = specification
        self._specification_message = specification_to_message(specification)
        self._queue = queue
        self._metrics = metrics
        self._software_version = software_version
        self._newest: _Publication | None = None
        self._draining = False

    def publish(self, snapshot: ParameterSnapshot) -> None:
        """Makes newer parameters the ones that actors get. May be called from any thread; it does no work in it.

        The arrays must not change any more: they are encoded later, when the first actor asks.
        """
        # First: or an actor could be quicker, with a version that the queue does not know.
        self._queue.published(snapshot.version)
        self._newest = _Publication(snapshot)
        self._metrics.parameters_version.set(snapshot.version)

    def drain(self) -> None:
        """Ends all Push streams, after they were told what was taken, and lets nobody join any more. Of the event loop."""
        self._draining = True
        self._queue.drain()

    async def Join(self, request: learner_pb2.JoinRequest, _context: Context) -> learner_pb2.JoinResponse:  # noqa: N802
        """See proto/leco/v1/learner.proto."""
        _check_actor_name(request.actor_name)
        if _line_of(request.software_version) != _line_of(self._software_version):
            text = (
                f"the actor's software_version is {_shown(request.software_version)}, expected "
                f"{_line_of(self._software_version)}.x, because this learner's is {self._software_version}"
            )
            raise Refusal(FAILED_PRECONDITION, text)
        version = self._published().snapshot.version
        log.info("an actor joined", actor=request.actor_name)
        return learner_pb2.JoinResponse(specification=self._specification_message, parameters_version=version)

    async def Parameters(  # noqa: N802
        self, request: learner_pb2.ParametersRequest, _context: Context
    ) -> AsyncIterator[learner_pb2.ParametersResponse]:
        """See proto/leco/v1/learner.proto."""
        self._check_run(request.run)
        newest = self._published()
        if newest.snapshot.version > request.newer_than:
            for message in await newest.messages():
                yield message

    async def Push(  # noqa: N802
        self, request_iterator: AsyncIterator[learner_pb2.PushRequest], context: Context
    ) -> AsyncIterator[learner_pb2.PushResponse]:
        """See proto/leco/v1/learner.proto."""
        hello = self._checked_hello(await anext(request_iterator, None))
        stream = self._queue.open(hello.incarnation)
        log.info("a stream began", actor=hello.actor_name, peer=context.peer(), incarnation=hello.incarnation.hex())
        reading = asyncio.create_task(self._read(stream, request_iterator))
        try:
            while (news := await stream.news()) is not None:
                acknowledged, new_credits = news
                yield learner_pb2.PushResponse(acknowledged=acknowledged, credits=new_credits)
            if stream.ending is not None:
                raise Refusal(*stream.ending)
        finally:
            self._queue.leave(stream)
            reading.cancel()
            log.info("a stream ended", actor=hello.actor_name, incarnation=hello.incarnation.hex())

    def _checked_hello(self, first: learner_pb2.PushRequest | None) -> learner_pb2.PushHello:
        """The hello in the first message of a stream, if it is as the contract says."""
        kind = first.WhichOneof("message") if first is not None else None
        if first is None or kind != "hello":
            raise Refusal(FAILED_PRECONDITION, f"the stream begins with {kind or 'nothing'}, expected hello")
        hello = first.hello
        _check_actor_name(hello.actor_name)
        if len(hello.incarnation) != INCARNATION_BYTES:
            text = f"incarnation has {len(hello.incarnation)} bytes, expected {INCARNATION_BYTES}"
            raise Refusal(INVALID_ARGUMENT, text)
        self._check_run(hello.run)
        self._published()  # before it, there is no policy that could have acted
        return hello

    async def _read(self, stream: Stream, requests: AsyncIterator[learner_pb2.PushRequest]) -> None:
        """Passes on what an actor sends.

        In a task of its own: an actor that does not read its answers must not keep its credits when it is gone. Nothing is read
        before there is a credit for it, so that what streams send takes no more memory than the queue has places.
        """
        try:
            while await stream.may_send():
                self._receive(stream, await anext(requests))
        except Refusal as refusal:  # bytes that are no message
            self._refuse(stream, refusal)
        except (StopAsyncIteration, grpc.aio.BaseError):  # the actor has ended the stream, or the call is over
            pass
        self._queue.leave(stream)

    def _receive(self, stream: Stream, request: learner_pb2.PushRequest) -> None:
        """Passes on one message; ends the stream if it breaks the contract."""
        try:
            self._offer(stream, request)
        except Refusal as refusal:
            self._refuse(stream, refusal)
        except Exception:
            log.exception("a stream failed unexpectedly", incarnation=stream.incarnation.hex())
            self._queue.leave(stream, (grpc.StatusCode.INTERNAL, "internal error; see the service's log"))

    def _offer(self, stream: Stream, request: learner_pb2.PushRequest) -> None:
        kind = request.WhichOneof("message")
        if kind != "trajectory":
            text = f"the stream goes on with {kind or 'nothing'}, expected a trajectory after the one hello"
            raise Refusal(FAILED_PRECONDITION, text)
        message = request.trajectory
        self._metrics.received_bytes.inc(message.ByteSize())
        try:
            if message.counted and self._specification.code_width == 0:
                raise CodecError("counted is true, expected false because the run's method counts nothing")  # noqa: TRY301
            with tracing.span("accept", parent=message.traceparent, kind="consumer", number=message.number):
                self._queue.offer(stream, trajectory_from_message(message, self._specification.trajectories))
        except CodecError as error:
            raise Refusal(INVALID_ARGUMENT, f"trajectory {message.number}: {error}") from error

    def _refuse(self, stream: Stream, refusal: Refusal) -> None:
        self._metrics.refused.inc()
        self._queue.leave(stream, (refusal.code, refusal.detail))

    def _published(self) -> _Publication:
        if self._draining:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "the learner is stopping; connect again later")
        if self._newest is None:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "the learner has not published parameters yet; try again later")
        return self._newest

    def _check_run(self, run: str) -> None:
        if run != self._specification.run:
            text = f"run is {_shown(run)}, expected {self._specification.run!r}: join again"
            raise Refusal(FAILED_PRECONDITION, text)


class _Publication:
    """One version of the parameters, with the messages that it travels in: made once, for all actors."""

    def __init__(self, snapshot: ParameterSnapshot) -> None:
        self.snapshot = snapshot
        self._encoding: asyncio.Task[list[learner_pb2.ParametersResponse]] | None = None

    async def messages(self) -> list[learner_pb2.ParametersResponse]:
        """The stream that carries them. Of the event loop, which goes on while they are encoded."""
        if self._encoding is None:
            self._encoding = asyncio.create_task(asyncio.to_thread(self._encoded))
        # An actor that gives up must not cancel what others wait for.
        return await asyncio.shield(self._encoding)

    def _encoded(self) -> list[learner_pb2.ParametersResponse]:
        return list(parameters_to_messages(self.snapshot))


def _check_actor_name(name: str) -> None:
    if (size := len(name.encode())) > MAX_ACTOR_NAME_BYTES:
        raise Refusal(INVALID_ARGUMENT, f"actor_name has {size} bytes, expected at most {MAX_ACTOR_NAME_BYTES}")


def _line_of(software_version: str) -> str:
    """The part of a version that must be equal for two programs to work together: major.minor."""
    return ".".join(software_version.split(".")[:2])


def _shown(text: str) -> str:
    """A hostile text, short enough for a message."""
    return repr(text) if len(text) <= 80 else f"{text[:60]!r}... ({len(text)} characters)"
