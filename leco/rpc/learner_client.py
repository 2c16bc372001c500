"""The client of the learner."""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import grpc
import structlog

from leco.rpc.codec import parameters_from_messages, specification_from_message, trajectory_to_message
from leco.rpc.waiting import Waiting
from leco.v1 import learner_pb2, learner_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leco.rpc.tensors import Compression
    from leco.types import ParameterSnapshot, RunSpecification, Trajectory

log = structlog.get_logger(__name__)

SERVICE = learner_pb2.DESCRIPTOR.services_by_name["LearnerService"].full_name
# The learner is away or busy, and a repeat may succeed.
TRANSIENT_CODES = (
    grpc.StatusCode.OK,  # a stream that ended, though nobody asked for it
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
JOIN_SECONDS = 5.0
PARAMETERS_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0

Result = TypeVar("Result")


class LearnerError(Exception):
    """What no repeat can heal."""


class Unavailable(LearnerError):  # noqa: N818  # these are answers
    """The learner could not be reached for as long as the caller was willing to wait."""


class RunChanged(LearnerError):  # noqa: N818
    """The learner has another run now, or the same one with another specification. Close this client, make another, join."""


class TakenOver(LearnerError):  # noqa: N818
    """Another stream pushes under the same incarnation, which only a copy of this process can do."""


class Rejected(LearnerError):  # noqa: N818
    """The learner refused what was sent, and would again: a bug, or another version of the software."""


class Closed(LearnerError):  # noqa: N818
    """The client was closed."""


class _Call(Protocol):
    def cancel(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Status:
    """How a call ended."""

    code: grpc.StatusCode
    detail: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        if isinstance(error, grpc.RpcError):
            return cls(error.code(), error.details() or "")
        return cls(grpc.StatusCode.CANCELLED, str(error))

    @property
    def transient(self) -> bool:
        return self.code in TRANSIENT_CODES and "larger than max" not in self.detail

    def __str__(self) -> str:
        return f"{self.code.name}: {self.detail}"


@dataclass(eq=False, slots=True)
class _Session:
    """One Push stream.

    Attributes:
        sent: How many of the trajectories that wait for their acknowledgement were sent on it; always the first ones.
        credits: How many more may be.
        answered: Whether the learner answered the hello.
        over: Whether it has ended, so that nothing may be sent any more.
    """

    sent: int = 0
    credits: int = 0
    answered: bool = False
    over: bool = False


class LearnerClient:
    """Joins a run, fetches its parameters, and pushes trajectories, each of which trains at most once.

    A thread holds the stream. It sends only against the learner's credits; after a lost connection it joins again and repeats
    what was not acknowledged. All methods may be called from any thread; one client is one incarnation of an actor.

    Args:
        channel: From `leco.rpc.channel.open_channel`. The caller closes it, after the client.
        actor_name: For logs and for people, at most 128 bytes.
        software_version: The actor's.
        max_unacknowledged: How many trajectories may wait here for their acknowledgement.
        patience_seconds: How long `parameters` may take in all.
        max_parameters_bytes: The largest parameters accepted.
        incarnation: 16 bytes that nobody else has; random unless given.
        compression: Of the trajectories on the wire. The learner takes either.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        actor_name: str,
        software_version: str,
        max_unacknowledged: int,
        patience_seconds: float = 60.0,
        max_parameters_bytes: int = 1 << 30,
        incarnation: bytes | None = None,
        compression: Compression = "none",
    ) -> None:
        if max_unacknowledged < 1:
            raise ValueError(f"max_unacknowledged is {max_unacknowledged}, expected at least 1")
        self._stub = learner_pb2_grpc.LearnerServiceStub(channel)
        self._actor_name = actor_name
        self._software_version = software_version
        self._max_unacknowledged = max_unacknowledged
        self._patience_seconds = patience_seconds
        self._max_parameters_bytes = max_parameters_bytes
        self._incarnation = incarnation or secrets.token_bytes(16)
        self._compression = compression
        self._changed = threading.Condition()  # guards everything below
        self._specification: RunSpecification | None = None
        self._waiting: deque[learner_pb2.PushRequest] = deque()  # trajectories in order, not acknowledged yet
        self._next_number = 1
        self._failure: LearnerError | None = None
        self._closed = False
        self._calls: set[_Call] = set()
        self._thread: threading.Thread | None = None
        self._session: _Session | None = None  # of the stream that is open

    def join(self, *, give_up_after: float) -> tuple[RunSpecification, int]:
        """What the run is, and the newest version of its parameters. Waits for a learner that is away or only starting.

        Raises:
            Unavailable: it still was after `give_up_after` seconds.
            Rejected: this learner does not work with this actor.
            RunChanged: this client joined a run before, and it is another one now.
        """
        response = self._patiently(self._ask_to_join, give_up_after)
        specification = specification_from_message(response.specification)
        with self._changed:
            if self._specification is None:
                self._specification = specification
            elif self._specification != specification:
                raise RunChanged(_difference(self._specification, specification))
        return specification, response.parameters_version

    def parameters(self, newer_than: int) -> ParameterSnapshot | None:
        """The newest parameters, or None if there are none newer than this version (0: any). Waits for a learner that is away.

        Raises:
            Unavailable: it still was when patience ended.
            RunChanged: the learner has another run now.
            CodecError: what came breaks the contract.
        """
        request = learner_pb2.ParametersRequest(run=self._joined().run, newer_than=newer_than)

        def attempt(seconds: float) -> ParameterSnapshot | None:
            call = self._stub.Parameters(request, timeout=min(seconds, PARAMETERS_SECONDS))
            with self._cancellable(call):
                return parameters_from_messages(call, max_bytes=self._max_parameters_bytes)

        try:
            return self._patiently(attempt, self._patience_seconds)
        except Rejected as error:
            cause = error.__cause__
            if cause is not None and _Status.of(cause).code is grpc.StatusCode.FAILED_PRECONDITION:
                raise RunChanged(str(error)) from cause
            raise

    def push(self, trajectory: Trajectory) -> float:
        """Hands over the next trajectory, numbered 1, 2, 3, ...; waits while `max_unacknowledged` are on their way.

        Returns:
            How many seconds it waited.

        Raises:
            RunChanged, TakenOver, Rejected: what ended the stream for good; this trajectory and all that wait are lost.
            Closed: by another thread, while this one waited.
        """
        self._joined()
        message = trajectory_to_message(trajectory, compression=self._compression)
        request = learner_pb2.PushRequest(trajectory=message)
        begin = time.monotonic()
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._failure or len(self._waiting) < self._max_unacknowledged
            )
            waited = time.monotonic() - begin
            self._raise_failure()
            if self._closed:
                raise Closed("the client was closed; the trajectory was not sent")
            if trajectory.number != self._next_number:
                raise ValueError(f"number is {trajectory.number}, expected {self._next_number}, the next one")
            self._next_number += 1
            self._waiting.append(request)
            self._changed.notify_all()
            self._open_stream()
        return waited

    def wait_for_credit(self, seconds: float) -> bool:
        """Whether the learner has room for a trajectory that was not made yet; waits for it, at most so long.

        Raises:
            RunChanged, TakenOver, Rejected: what ended the stream for good.
            Closed: by another thread, while this one waited.
        """
        self._joined()
        with self._changed:
            self._open_stream()
            self._changed.wait_for(lambda: self._closed or self._failure or self._has_room(), seconds)
            self._raise_failure()
            if self._closed:
                raise Closed("the client was closed")
            return self._has_room()

    def _has_room(self) -> bool:
        session = self._session
        return session is not None and session.credits > len(self._waiting) - session.sent

    def _open_stream(self) -> None:
        """Starts the thread that holds the stream, if there is none yet."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="leco-push", daemon=True)
            self._thread.start()

    def drain(self, timeout: float | None) -> int:
        """Waits until everything is acknowledged, at most so many seconds (None: for ever). Returns how many are not.

        Raises:
            RunChanged, TakenOver, Rejected: what ended the stream for good.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._failure or not self._waiting, timeout)
            self._raise_failure()
            return len(self._waiting)

    def close(self) -> None:
        """Ends all calls and the thread. What was not acknowledged is lost: see `drain`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            calls, thread = list(self._calls), self._thread
        for call in calls:
            call.cancel()
        if thread is not None:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _joined(self) -> RunSpecification:
        if self._specification is None:
            raise RuntimeError("the run is not known yet: call join first")
        return self._specification

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure.__cause__

    # What all calls have in common.

    def _ask_to_join(self, seconds: float) -> learner_pb2.JoinResponse:
        request = learner_pb2.JoinRequest(actor_name=self._actor_name, software_version=self._software_version)
        call = self._stub.Join.future(request, timeout=min(seconds, JOIN_SECONDS))
        with self._cancellable(call):
            return call.result()

    def _patiently(self, attempt: Callable[[float], Result], patience: float) -> Result:
        """The result of an attempt, which is repeated while the learner is away."""
        deadline = time.monotonic() + patience
        pauses, waiting = _pauses(), Waiting("the learner")
        said: _Status | None = None
        while True:
            try:
                return attempt(max(deadline - time.monotonic(), 0.001))
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                with self._changed:
                    if self._closed:
                        raise Closed("the client was closed") from error
                status = _Status.of(error)
                if not status.transient:
                    raise Rejected(str(status)) from error
                if said is None or status.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    said = status  # what the learner itself said says more than that time was up
                waiting.say(str(said))
                pause = next(pauses)
                if time.monotonic() + pause >= deadline:
                    raise Unavailable(f"no answer from the learner in {patience:g} s; {said}") from error
            self._sleep(pause)

    @contextlib.contextmanager
    def _cancellable(self, call: _Call) -> Iterator[None]:
        """Has `close` cancel the call, and leaves it to nobody when its reader is done with it."""
        with self._changed:
            self._calls.add(call)
            if self._closed:
                call.cancel()
        try:
            yield
        finally:
            call.cancel()
            with self._changed:
                self._calls.discard(call)

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    # The thread.

    def _run(self) -> None:
        """Keeps a stream open until the client is closed or nothing can heal it."""
        try:
            pauses = _pauses()
            while True:
                session = _Session()
                status = self._stream(session)
                if self._closed:
                    return
                code, text = status.code, str(status)
                if not status.transient and code is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise (TakenOver if code is grpc.StatusCode.ALREADY_EXISTS else Rejected)(text)  # noqa: TRY301
                if session.answered:
                    pauses = _pauses()
                log.warning("the stream to the learner ended; connecting again", reason=text)
                self._sleep(next(pauses))
                self.join(give_up_after=float("inf"))  # or RunChanged
                if code is grpc.StatusCode.FAILED_PRECONDITION:
                    raise Rejected(text)  # noqa: TRY301  # and not for the run, which is the same
        except Closed:
            pass
        except Exception as error:  # noqa: BLE001  # a thread that ends without a word would leave push() waiting for ever
            failure = error if isinstance(error, LearnerError) else Rejected(f"the stream failed: {error!r}")
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _stream(self, session: _Session) -> _Status:
        """Runs one stream to its end; returns why it ended."""
        with self._changed:
            self._session = session
        call = self._stub.Push(self._requests(session))
        try:
            with self._cancellable(call):
                for response in call:
                    self._receive(session, response)
        except grpc.RpcError as error:
            return _Status.of(error)
        finally:
            with self._changed:
                session.over, self._session = True, None
                self._changed.notify_all()
        return _Status(grpc.StatusCode.OK, "the learner ended the stream")

    def _requests(self, session: _Session) -> Iterator[learner_pb2.PushRequest]:
        """What is sent on a stream. gRPC runs this in a thread that it ends by itself after the call."""
        hello = learner_pb2.PushHello(
            run=self._joined().run, incarnation=self._incarnation, actor_name=self._actor_name
        )
        yield learner_pb2.PushRequest(hello=hello)
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: session.over or (session.credits > 0 and session.sent < len(self._waiting))
                )
                if session.over:
                    return
                request = self._waiting[session.sent]
                session.sent += 1
                session.credits -= 1
            yield request

    def _receive(self, session: _Session, response: learner_pb2.PushResponse) -> None:
        with self._changed:
            if response.acknowledged >= self._next_number:
                text = f"the learner acknowledged {response.acknowledged}, but only {self._next_number - 1} were made"
                raise TakenOver(f"{text}: another process uses this incarnation")
            session.answered = True
            session.credits += response.credits
            while self._waiting and self._waiting[0].trajectory.number <= response.acknowledged:
                self._waiting.popleft()
                session.sent = max(session.sent - 1, 0)
            self._changed.notify_all()


def _pauses() -> Iterator[float]:
    """Longer and longer, and never the same for two clients."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # spreads clients, protects nothing
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _difference(ours: RunSpecification, theirs: RunSpecification) -> str:
    if ours.run != theirs.run:
        return f"the learner has the run {theirs.run!r} now, and not {ours.run!r}; join again"
    return f"the run {ours.run!r} has another specification now; join again"
