"""What happens around every call: metrics, limits, refusals, and a clean answer to a bug."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import grpc
import structlog
from google.protobuf.message import DecodeError
from prometheus_client import Counter as CounterMetric
from prometheus_client import Gauge, Histogram

from leco.rpc.places import NoPlaceError, Places, host_of
from leco.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator

    from prometheus_client import CollectorRegistry

log = structlog.get_logger(__name__)

# From a tenth of a millisecond, about what gRPC itself costs, to the longest wait that a client would accept.
LATENCY_BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
_INFRASTRUCTURE = ("/grpc.health.", "/grpc.reflection.")
INFRASTRUCTURE_CALLS = 8  # of one connection; a client of ours has one
# What unfinished requests may take of memory is so many messages of the largest size.
ARRIVING = 16
ARRIVAL_SECONDS = 10.0
CONTENDED_ARRIVAL_SECONDS = 1.0
# Calls whose request is not read yet. Each holds a flow-control window of it, 64 KB.
MAX_WAITING = 1024

Context = grpc.aio.ServicerContext[Any, Any]


class Refusal(Exception):  # noqa: N818  # it is an answer
    """Raised by a handler to answer with a status other than OK.

    It is turned into that status without gRPC's `abort`, whose exception would keep the request in memory, by a reference cycle,
    until the garbage collector runs.
    """

    def __init__(self, code: grpc.StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class RpcMetrics:
    """The metrics of a service's calls.

    Args:
        registry: Where they are registered.
        service: The word for the service in metric names, for example "hashcount".
    """

    def __init__(self, registry: CollectorRegistry, service: str) -> None:
        self.requests = CounterMetric(
            f"leco_{service}_rpc_requests", "Calls that ended, by gRPC status.", ["method", "code"], registry=registry
        )
        self.seconds = Histogram(
            f"leco_{service}_rpc_duration_seconds",
            "Time from a call's arrival in the handler to its end.",
            ["method"],
            registry=registry,
            buckets=LATENCY_BUCKETS,
        )
        self.in_progress = Gauge(f"leco_{service}_rpc_in_progress", "Calls in progress.", ["method"], registry=registry)


class RpcInterceptor(grpc.aio.ServerInterceptor):
    """Counts, times and limits every call; those of health and reflection are only limited.

    gRPC itself would wait for a request for ever, and hold what has come of it. Here a request is read in one of a few places
    (`Places`), so that as many unfinished ones as a client likes take no more memory than these. A call counts as one in
    progress when its request, or the first one of a stream, has come.

    An exception that a handler did not expect is logged and answered with INTERNAL, without details of the inside. Bytes that
    are no message are INVALID_ARGUMENT.

    Args:
        metrics: Where calls are counted.
        max_seconds: A call with one request that takes longer, also because its client does not read the answer, ends with
            DEADLINE_EXCEEDED, even if its client set no deadline.
        max_calls: Calls in progress; more are answered with RESOURCE_EXHAUSTED. One host may have three quarters of
            them, and streams of requests may be as many, half of them by one host: there is always room for others.
    """

    def __init__(self, metrics: RpcMetrics, *, max_seconds: float, max_calls: int) -> None:
        self._metrics = metrics
        self._max_seconds = max_seconds
        self._max_calls = max_calls
        self._calls: Counter[str] = Counter()  # in progress, by the limits that they count for
        self._arriving = Places(
            ARRIVING, seconds=ARRIVAL_SECONDS, contended_seconds=CONTENDED_ARRIVAL_SECONDS, max_waiting=MAX_WAITING
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = str(handler_call_details.method)
        # Its requests are always a stream, which looks the same to a client, but we are the ones who read it.
        make, around = (
            (grpc.stream_stream_rpc_method_handler, self._around_streams)
            if handler.response_streaming
            else (grpc.stream_unary_rpc_method_handler, self._around_unary)
        )
        wrapped: grpc.RpcMethodHandler[Any, Any] = make(
            around(method, handler),
            request_deserializer=_lenient(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )
        return wrapped

    def _around_unary(self, method: str, handler: Any) -> Callable[..., Awaitable[Any]]:
        async def call(_requests: object, context: Context) -> object:
            response = None  # stays so if the call is refused: gRPC then sends the status alone
            with self._observed(method, context):
                request = await self._only_request(context)
                with self._in_progress(method, context), tracing.answering(_name(method), context.invocation_metadata):
                    async with self._limited(method):
                        response = await handler.unary_unary(request, context)
            return response

        return call

    def _around_streams(self, method: str, handler: Any) -> Callable[..., Awaitable[None]]:
        async def many_requests(_requests: object, context: Context) -> None:
            with self._observed(method, context):
                first = await self._arrival(context)
                limits = self._arriving if method.startswith(_INFRASTRUCTURE) else None
                with self._in_progress(method, context, stream=True):
                    await _write(handler.stream_stream(_Requests(context, first, limits), context), context)

        async def one_request(_requests: object, context: Context) -> None:
            with self._observed(method, context):
                request = await self._only_request(context)
                with self._in_progress(method, context):
                    if method.startswith(_INFRASTRUCTURE):  # a watch of health goes on for as long as the connection
                        await _write(handler.unary_stream(request, context), context)
                    else:
                        async with self._limited(method):
                            await _write(handler.unary_stream(request, context), context)

        return many_requests if handler.request_streaming else one_request

    async def _arrival(self, context: Context) -> Any:
        async with _place(self._arriving, context, "the request did not arrive in time"):
            return await context.read()

    async def _only_request(self, context: Context) -> Any:
        request = await self._arrival(context)
        if request is grpc.aio.EOF:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a request")
        return _checked(request)

    @contextlib.asynccontextmanager
    async def _limited(self, method: str) -> AsyncIterator[None]:
        """Ends what takes too long."""
        try:
            async with asyncio.timeout(self._max_seconds) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"{_name(method)} took longer than {self._max_seconds:g} s and was given up"
            raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None

    @contextlib.contextmanager
    def _in_progress(self, method: str, context: Context, *, stream: bool = False) -> Iterator[None]:
        """Counts the call inside it, or refuses it."""
        most, peer = self._max_calls, context.peer()
        limits = {"calls": most, f"calls by {host_of(peer)}": most * 3 // 4}
        if stream:
            limits |= {"streams": most * 3 // 4, f"streams by {host_of(peer)}": most // 2}
        if method.startswith(_INFRASTRUCTURE):
            limits = {f"calls of this kind by {peer}": INFRASTRUCTURE_CALLS}
        for name, limit in limits.items():
            if self._calls[name] >= limit:
                text = f"{limit} {name} are in progress, which is the most; repeat later"
                raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._calls.update(limits.keys())
        try:
            yield
        finally:
            self._calls.subtract(limits.keys())
            for name in limits:
                if not self._calls[name]:
                    del self._calls[name]

    @contextlib.contextmanager
    def _observed(self, method: str, context: Context) -> Iterator[None]:
        """Turns exceptions into a status, and measures the call inside it if it is the service's own."""
        code: object = grpc.StatusCode.CANCELLED  # by the client, or at the end of a drain, unless it ends otherwise
        with self._measured(method, lambda: code):
            try:
                yield
                code = context.code()
            except Refusal as refusal:
                code = _answer(context, refusal.code, refusal.detail)
            except grpc.aio.BaseError:  # the client is gone, and cannot be read or written to
                pass
            except Exception:
                log.exception("a call failed unexpectedly", method=_name(method))
                code = _answer(context, grpc.StatusCode.INTERNAL, "internal error; see the service's log")

    @contextlib.contextmanager
    def _measured(self, method: str, code: Callable[[], object]) -> Iterator[None]:
        if method.startswith(_INFRASTRUCTURE):
            yield
            return
        metrics, name, begin = self._metrics, _name(method), time.perf_counter()
        metrics.in_progress.labels(name).inc()
        try:
            yield
        finally:
            metrics.in_progress.labels(name).dec()
            metrics.seconds.labels(name).observe(time.perf_counter() - begin)
            metrics.requests.labels(name, _code_name(code())).inc()


class _Requests:
    """The requests of a stream. Not a generator, which would keep the last one in memory.

    Args:
        context: Of the call.
        first: The first one, already read.
        places: Where the others are read; None if whoever reads has a limit of its own.
    """

    def __init__(self, context: Context, first: object, places: Places | None) -> None:
        self._context = context
        self._first = [first]
        self._places = places

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if (request := self._first.pop() if self._first else await self._next()) is grpc.aio.EOF:
            raise StopAsyncIteration
        return _checked(request)

    async def _next(self) -> Any:
        if self._places is None:
            return await self._context.read()
        async with _place(self._places, self._context, "the next request did not arrive in time"):
            return await self._context.read()


@contextlib.asynccontextmanager
async def _place(places: Places, context: Context, otherwise: str) -> AsyncIterator[None]:
    """A place for this call, or a refusal."""
    try:
        async with places.hold(context.peer()):
            yield
    except NoPlaceError as error:
        raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{otherwise}: {error}; repeat later") from None


async def _write(responses: AsyncGenerator[Any], context: Context) -> None:
    async with contextlib.aclosing(responses):
        async for response in responses:
            await context.write(response)


def _name(method: str) -> str:
    return method.rpartition("/")[2]


def _answer(context: Context, code: grpc.StatusCode, detail: str) -> grpc.StatusCode:
    context.set_code(code)
    context.set_details(detail)
    return code


@dataclass(frozen=True, slots=True)
class _Malformed:
    """Takes the place of a request that could not be read."""

    reason: str


def _lenient(deserializer: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Gives a value for malformed bytes, too: gRPC itself would answer UNKNOWN, and log a traceback for each."""

    def read(data: bytes) -> object:
        try:
            return data if deserializer is None else deserializer(data)
        except DecodeError as error:
            return _Malformed(str(error))

    return read


def _checked(request: Any) -> Any:
    """The request, or a refusal instead of a malformed one."""
    if isinstance(request, _Malformed):
        raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"these bytes are not the message expected: {request.reason}")
    return request


def _code_name(code: object) -> str:
    """The status by name; the aio API hands out None and plain numbers in places, whatever its annotations say."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((each.name for each in grpc.StatusCode if each.value[0] == (code or 0)), "UNKNOWN")
