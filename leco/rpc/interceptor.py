"""What happens around every call: metrics, limits, refusals, and a clean answer to a bug."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from prometheus_client import Counter, Gauge, Histogram

from leco.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

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
        self.requests = Counter(
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
    """Counts, times and limits every call but those of health and reflection.

    An exception that a handler did not expect is logged and answered with INTERNAL, without details of the inside. Bytes that
    are no message are INVALID_ARGUMENT.

    Args:
        metrics: Where calls are counted.
        max_seconds: A unary call that takes longer ends with DEADLINE_EXCEEDED, even if its client set no deadline.
        max_calls: Calls in progress; more are answered with RESOURCE_EXHAUSTED.
    """

    def __init__(self, metrics: RpcMetrics, *, max_seconds: float, max_calls: int) -> None:
        self._metrics = metrics
        self._max_seconds = max_seconds
        self._max_calls = max_calls
        self._calls = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the handler of a call."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or method.startswith(_INFRASTRUCTURE):
            return handler
        name = method.rpartition("/")[2]
        kinds = {False: "unary", True: "stream"}
        kind = f"{kinds[bool(handler.request_streaming)]}_{kinds[bool(handler.response_streaming)]}"
        around = self._around_stream if handler.response_streaming else self._around_unary
        wrapped: grpc.RpcMethodHandler[Any, Any] = getattr(grpc, f"{kind}_rpc_method_handler")(
            around(name, getattr(handler, kind)),
            request_deserializer=_lenient(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )
        return wrapped

    def _around_unary(self, method: str, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(request: object, context: Context) -> object:
            response = None  # stays so if the call is refused: gRPC then sends the status alone
            with self._observed(method, context), tracing.answering(method, context.invocation_metadata):
                self._refuse_if_busy()
                try:
                    async with asyncio.timeout(self._max_seconds) as limit:
                        response = await behaviour(_checked(request), context)
                except TimeoutError:
                    if limit.expired():
                        text = f"{method} took longer than {self._max_seconds:g} s and was given up"
                        raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
                    raise
            return response

        return call

    def _around_stream(
        self, method: str, behaviour: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        async def call(request: object, context: Context) -> AsyncIterator[object]:
            with self._observed(method, context):
                self._refuse_if_busy()
                async for response in behaviour(_checked(request), context):
                    yield response

        return call

    def _refuse_if_busy(self) -> None:
        if self._calls > self._max_calls:
            text = f"{self._max_calls} calls are in progress, which is the most; repeat later"
            raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    @contextlib.contextmanager
    def _observed(self, method: str, context: Context) -> Iterator[None]:
        """Measures the call inside it, and turns exceptions into a status."""
        metrics, begin = self._metrics, time.perf_counter()
        code: object = grpc.StatusCode.CANCELLED  # by the client, or at the end of a drain, unless it ends otherwise
        self._calls += 1
        metrics.in_progress.labels(method).inc()
        try:
            yield
            code = context.code()
        except Refusal as refusal:
            code = _answer(context, refusal.code, refusal.detail)
        except Exception:
            log.exception("a call failed unexpectedly", method=method)
            code = _answer(context, grpc.StatusCode.INTERNAL, "internal error; see the service's log")
        finally:
            self._calls -= 1
            metrics.in_progress.labels(method).dec()
            metrics.seconds.labels(method).observe(time.perf_counter() - begin)
            metrics.requests.labels(method, _code_name(code)).inc()


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
    """The request, or the stream of them, or a refusal instead of a malformed one."""
    if isinstance(request, _Malformed):
        raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"these bytes are not the message expected: {request.reason}")
    return _checked_stream(request) if hasattr(request, "__aiter__") else request


async def _checked_stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _checked(request)


def _code_name(code: object) -> str:
    """The status by name; the aio API hands out None and plain numbers in places, whatever its annotations say."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((each.name for each in grpc.StatusCode if each.value[0] == (code or 0)), "UNKNOWN")
