"""One unroll, followed through the services. Off, and then free, unless the environment names where to send traces.

An actor begins a trace for each unroll; the other services add to the trace that comes with a call or a trajectory, and begin
none. Between threads and processes a place in a trace travels as a W3C traceparent; an empty one is no trace.

This is the face that services use; `leco.telemetry.spans` makes spans with OpenTelemetry, and is not imported while it is off.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from leco.telemetry.spans import Spans

Kind = Literal["internal", "client", "server", "producer", "consumer"]
Attribute = str | int | float

TRACEPARENT = "traceparent"  # in the metadata of a call
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_NOTHING = contextlib.nullcontext()


class TracingError(ValueError):
    """Tracing was asked for and cannot be had. The message says what to change."""


class _Process:
    """What this process traces with; as with logs, it is one for all. None: tracing is off."""

    spans: Spans | None = None


def start_tracing(service: str) -> Callable[[], None]:
    """Turns tracing on if the environment has an address to send traces to, as OpenTelemetry names it.

    Args:
        service: "actor", "learner" or "hashcount".

    Returns:
        What sends the rest and ends it.

    Raises:
        TracingError: it cannot be turned on.
    """
    endpoint = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return lambda: None
    for name in PROTOCOLS:
        if (protocol := os.environ.get(name) or "grpc") != "grpc":
            raise TracingError(f"{name} is {protocol!r}, expected grpc: traces are sent by no other protocol")
    try:
        from leco.telemetry.spans import Spans  # noqa: PLC0415  # OpenTelemetry is an extra
    except ModuleNotFoundError as error:
        raise TracingError(
            f"{endpoint} is set, but what sends traces is not installed: pip install 'leco[tracing]', or unset it"
        ) from error
    spans = _Process.spans = Spans(service)

    def stop() -> None:
        _Process.spans = None
        spans.close()

    return stop


class UnrollTrace:
    """A span that begins in one thread and ends in another: `with` it there, and what is inside belongs to it.

    This one is no span at all.
    """

    traceparent = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_UNTRACED = UnrollTrace()


def begin(name: str, **attributes: Attribute) -> UnrollTrace:
    """Begins a trace."""
    spans = _Process.spans
    return _UNTRACED if spans is None else spans.begin(name, attributes)


def span(
    name: str, *, parent: str = "", links: Iterable[str] = (), kind: Kind = "internal", **attributes: Attribute
) -> AbstractContextManager[object]:
    """What happens inside it, as a part of a trace; nothing if there is none.

    Args:
        name: A word for it.
        parent: What it is a part of; if empty, what this thread or task is inside of.
        links: What else it has to do with.
        kind: "client" and "server", or "producer" and "consumer", are the two ends of a call or a message.
        attributes: More about it.
    """
    spans = _Process.spans
    return (spans and spans.span(name, parent, links, kind, attributes)) or _NOTHING


def answering(
    name: str, call: Callable[[], Iterable[tuple[str, str | bytes]] | None]
) -> AbstractContextManager[object]:
    """The answer to a call, if its metadata, which `call` gives, says what trace it belongs to."""
    if _Process.spans is None:
        return _NOTHING
    parent = next((value for key, value in call() or () if key == TRACEPARENT), "")
    return span(name, parent=parent, kind="server") if isinstance(parent, str) and parent else _NOTHING


def traceparent() -> str:
    """Of what this thread or task is inside of; empty if that is no trace."""
    spans = _Process.spans
    return "" if spans is None else spans.traceparent()


def calling() -> tuple[tuple[str, str], ...] | None:
    """The metadata of a call from inside a trace; None outside."""
    place = traceparent()
    return ((TRACEPARENT, place),) if place else None
