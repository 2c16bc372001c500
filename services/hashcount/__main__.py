"""The hash-count service: `leco hashcount`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from leco.rpc.interceptor import RpcInterceptor, RpcMetrics
from leco.rpc.server import RpcServer, wait_for_signal
from leco.telemetry import configure_logging, serve_metrics
from leco.v1 import hash_count_pb2_grpc
from services.hashcount.config import Settings, read_settings
from services.hashcount.memory import MemoryStore
from services.hashcount.metrics import HashCountMetrics
from services.hashcount.redis_store import RedisStore
from services.hashcount.servicer import SERVICE, HashCountServicer
from services.hashcount.store import Store, StoreUnavailableError
from services.hashcount.topology import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

log = structlog.get_logger("leco.hashcount")

MAX_CALL_SECONDS = 30.0
MAX_CONNECTION_AGE_SECONDS = 300.0
CHECK_SECONDS = 2.0
SURVEY_SECONDS = 15.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the settings and serves until SIGTERM or Ctrl-C."""
    settings = read_settings(sys.argv[1:] if arguments is None else arguments)
    configure_logging(level=settings.log_level, log_format=settings.log_format)
    try:
        asyncio.run(serve(settings))
    except (OSError, ValueError) as error:  # an address or a file that cannot be used
        sys.exit(f"leco hashcount: {error}")


async def serve(settings: Settings) -> None:
    """Runs the service until a signal, then drains it."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    metrics = HashCountMetrics(registry)
    store = open_store(settings, metrics)
    server = RpcServer(
        SERVICE,
        interceptor=RpcInterceptor(RpcMetrics(registry, "hashcount"), max_seconds=MAX_CALL_SECONDS),
        tls=settings.tls,
        max_connection_age=MAX_CONNECTION_AGE_SECONDS,
    )
    hash_count_pb2_grpc.add_HashCountServiceServicer_to_server(HashCountServicer(store, metrics), server.grpc)
    stopped = asyncio.ensure_future(wait_for_signal())
    address = await server.start(settings.listen)
    async with contextlib.AsyncExitStack() as stack:
        metrics_port = None
        if settings.metrics_port is not None:
            host = address.rpartition(":")[0].strip("[]")
            metrics_port, stop_metrics = serve_metrics(registry, host=host, port=settings.metrics_port)
            stack.callback(stop_metrics)
        stack.push_async_callback(store.close)
        watcher = asyncio.create_task(watch_store(store, server, metrics))
        log.info("serving", address=address, metrics_port=metrics_port, store=settings.store_for_people)
        signal_name = await stopped
        log.info("draining", signal=signal_name, seconds=settings.drain_seconds)
        watcher.cancel()
        await server.drain(settings.drain_seconds)
    log.info("stopped")


def open_store(settings: Settings, metrics: HashCountMetrics) -> Store:
    """Makes the store that the settings name."""
    if settings.store == "memory":
        memory = MemoryStore(max_bytes=settings.max_memory, ttl=settings.ttl, retry_window=settings.retry_window)
        metrics.memory_bytes.set_function(lambda: memory.used_bytes)
        metrics.memory_limit_bytes.set(settings.max_memory)
        return memory
    return RedisStore(
        connect(settings.store, password=settings.store_password, threads=settings.store_connections),
        ttl=settings.ttl,
        retry_window=settings.retry_window,
        threads=settings.store_connections,
        on_round_trip=metrics.round_trip,
    )


async def watch_store(store: Store, server: RpcServer, metrics: HashCountMetrics) -> None:
    """Keeps the service's health equal to the store's, and the number of live episodes up to date."""
    up: bool | None = None
    next_survey = 0.0
    loop = asyncio.get_running_loop()
    while True:
        try:
            await store.check()
            now_up = True
        except StoreUnavailableError as error:
            now_up = False
            if up is not False:
                log.error(
                    "the store cannot be reached; calls are answered with UNAVAILABLE until it is back",
                    error=str(error),
                )
        if now_up and up is False:
            log.info("the store is back")
        up = now_up
        metrics.store_up.set(up)
        await server.set_serving(serving=up)
        if up and loop.time() >= next_survey:
            next_survey = loop.time() + SURVEY_SECONDS
            with contextlib.suppress(StoreUnavailableError):  # a part of a cluster is away
                metrics.live_episodes.set(await store.live_episodes())
        await asyncio.sleep(CHECK_SECONDS)


if __name__ == "__main__":
    main()
