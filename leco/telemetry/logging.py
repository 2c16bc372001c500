"""What a running service tells people: structured logs and a Prometheus endpoint."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Literal

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import EventDict, Processor

METRICS_SECONDS = 10.0
LogFormat = Literal["auto", "human", "json"]


def configure_logging(*, level: str = "info", log_format: LogFormat = "auto") -> None:
    """Sends the logs of this process, the libraries' included, to standard error.

    Args:
        level: "debug", "info", "warning" or "error": the least severe line that is shown.
        log_format: "human" for aligned, coloured lines; "json" for one object a line with `timestamp`, `level`, `logger` and
            `event`; "auto" for human on a terminal and JSON otherwise.
    """
    if log_format == "auto":
        log_format = "human" if sys.stderr.isatty() else "json"
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[Processor]
    if log_format == "json":
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        last = [_escape, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _escape(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Shows control characters in values, for example in an actor's name, instead of sending them to the terminal."""
    for name, value in event.items():
        if name not in ("event", "exception", "stack") and isinstance(value, str) and not value.isprintable():
            event[name] = ascii(value)[1:-1]
    return event


def new_registry() -> CollectorRegistry:
    """A registry that already has what every process measures: memory, processor time, files, garbage collection."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def serve_metrics(registry: CollectorRegistry, *, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serves `registry` at http://host:port/metrics from a daemon thread, in clear text. A client has 10 s for its request.

    Returns:
        The port really used (for `port` 0 a free one) and a function that stops the server.

    Raises:
        OSError: the port cannot be had; the message names it.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise OSError(error.errno, f"cannot serve metrics on {host}:{port}: {error.strerror}") from error

    # A client that says nothing, or does not read, must not keep a thread for ever.
    handler: Any = server.RequestHandlerClass
    server.RequestHandlerClass = type("Handler", (handler,), {"timeout": METRICS_SECONDS})

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, stop
