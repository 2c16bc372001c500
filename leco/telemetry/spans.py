"""Spans made with OpenTelemetry and sent by OTLP over gRPC, as its environment variables say (docs/tracing.md)."""

from __future__ import annotations

import os
import threading
from importlib import metadata
from typing import TYPE_CHECKING, Self

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from leco.telemetry.tracing import TRACEPARENT, Attribute, Kind, UnrollTrace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

LAST_SECONDS = 3.0  # a service that drains has little time
_propagator = TraceContextTextMapPropagator()


class Spans:
    """Makes spans, and sends them from a thread of its own. What the collector does not take is lost, and holds up nobody.

    Args:
        service: "actor", "learner" or "hashcount".
    """

    def __init__(self, service: str) -> None:
        name, version = os.environ.get("OTEL_SERVICE_NAME") or f"leco-{service}", metadata.version("leco")
        resource = Resource.create({"service.name": name, "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("leco", version)

    def begin(self, name: str, attributes: Mapping[str, Attribute]) -> UnrollTrace:
        """See `leco.telemetry.tracing.begin`."""
        return _Traced(self._tracer.start_span(name, context.Context(), attributes=attributes))

    def span(
        self, name: str, parent: str, links: Iterable[str], kind: Kind, attributes: Mapping[str, Attribute]
    ) -> AbstractContextManager[object] | None:
        """See `leco.telemetry.tracing.span`; None if it would be part of nothing."""
        inside = _context(parent) if parent else context.get_current()
        if not trace.get_current_span(inside).get_span_context().is_valid:
            return None
        others = [trace.get_current_span(_context(link)).get_span_context() for link in dict.fromkeys(links)]
        return self._tracer.start_as_current_span(
            name,
            inside,
            kind=trace.SpanKind[kind.upper()],
            attributes=attributes,
            links=[trace.Link(other) for other in others],  # those that are malformed lead nowhere, and are left out
        )

    def traceparent(self) -> str:
        """See `leco.telemetry.tracing.traceparent`."""
        return _traceparent(context.get_current())

    def close(self) -> None:
        """Sends the rest, unless the collector takes too long."""
        sending = threading.Thread(target=self._provider.shutdown, name="leco-last-spans", daemon=True)
        sending.start()
        sending.join(LAST_SECONDS)


class _Traced(UnrollTrace):
    """One that is a span."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._context = trace.set_span_in_context(span, context.Context())
        self.traceparent = _traceparent(self._context)

    def __enter__(self) -> Self:
        self._token = context.attach(self._context)
        return self

    def __exit__(self, *_: object) -> None:
        context.detach(self._token)
        self._span.end()


def _traceparent(inside: context.Context) -> str:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, inside)
    return carrier.get(TRACEPARENT, "")


def _context(place: str) -> context.Context:
    """What a traceparent stands for; nothing if it is malformed."""
    return _propagator.extract({TRACEPARENT: place}, context.Context())
