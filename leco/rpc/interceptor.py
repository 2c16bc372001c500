"""What happens around every call: metrics, a limit on its time, and a clean answer to a bug."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from prometheus_client import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

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
    """Counts and times every call but those of health and reflection.

    A unary call that takes longer than `max_seconds` ends with DEADLINE_EXCEEDED even if its client set no deadline. An exception
    that a handler did not turn into a status is logged and answered with INTERNAL, without details of the inside.
    """

    def __init__(self, metrics: RpcMetrics, *, max_seconds: float) -> None:
        self._metrics = metrics
        self._max_seconds = max_seconds

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
        kind = (
            ("stream" if handler.request_streaming else "unary")
            + "_"
            + ("stream" if handler.response_streaming else "unary")
        )
        behaviour = getattr(handler, kind)
        wrapped = (
            self._around_stream(name, behaviour) if handler.response_streaming else self._around_unary(name, behaviour)
        )
        constructor = getattr(grpc, f"{kind}_rpc_method_handler")
        wrapped_handler: grpc.RpcMethodHandler[Any, Any] = constructor(
            wrapped, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )
        return wrapped_handler

    def _around_unary(
        self, method: str, behaviour: Callable[..., Awaitable[object]]
    ) -> Callable[..., Awaitable[object]]:
        async def call(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> object:
            async with _Observed(self._metrics, method, context):
                try:
                    async with asyncio.timeout(self._max_seconds):
                        return await behaviour(request, context)
                except TimeoutError:
                    await context.abort(
                        grpc.StatusCode.DEADLINE_EXCEEDED,
                        f"{method} took longer than {self._max_seconds:g} s and was given up",
                    )
                    raise AssertionError from None  # abort never returns

        return call

    def _around_stream(
        self, method: str, behaviour: Callable[..., AsyncIterator[object]]
    ) -> Callable[..., AsyncIterator[object]]:
        async def call(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[object]:
            async with _Observed(self._metrics, method, context):
                async for response in behaviour(request, context):
                    yield response

        return call


class _Observed:
    """Measures what happens inside it, and turns an unexpected exception into INTERNAL."""

    def __init__(self, metrics: RpcMetrics, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._metrics, self._method, self._context = metrics, method, context
        self._begin = 0.0

    async def __aenter__(self) -> None:
        self._metrics.in_progress.labels(self._method).inc()
        self._begin = time.perf_counter()

    async def __aexit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        code: object = self._context.code()  # None or 0 until something else was set
        expected = error is None or isinstance(error, grpc.aio.AbortError | asyncio.CancelledError | GeneratorExit)
        if not expected:
            code = grpc.StatusCode.INTERNAL
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            code = grpc.StatusCode.CANCELLED
        self._metrics.in_progress.labels(self._method).dec()
        self._metrics.seconds.labels(self._method).observe(time.perf_counter() - self._begin)
        self._metrics.requests.labels(self._method, _code_name(code)).inc()
        if not expected:
            log.error("a call failed unexpectedly", method=self._method, exc_info=error)
            await self._context.abort(grpc.StatusCode.INTERNAL, "internal error; see the service's log")


def _code_name(code: object) -> str:
    """The status by name; the aio API hands out None and plain numbers in places, whatever its annotations say."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((each.name for each in grpc.StatusCode if each.value[0] == (code or 0)), "UNKNOWN")
