"""The hash-count service: `leco hashcount`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import structlog

from leco.rpc.hashcount_client import SERVICE
from leco.rpc.interceptor import RpcInterceptor, RpcMetrics
from leco.rpc.server import RpcServer, wait_for_signal
from leco.telemetry.logging import configure_logging, new_registry, serve_metrics
from leco.telemetry.tracing import start_tracing
from leco.v1 import hash_count_pb2_grpc
from services.hashcount.config import HashCountSettings, read_settings
from services.hashcount.memory import MemoryStore
from services.hashcount.metrics import HashCountMetrics
from services.hashcount.redis_store import RedisStore
from services.hashcount.servicer import HashCountServicer
from services.hashcount.store import Store, StoreUnavailableError
from services.hashcount.topology import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

log = structlog.get_logger("leco.hashcount")

MAX_CALL_SECONDS = 30.0
MAX_CALLS = 256
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


async def serve(settings: HashCountSettings) -> None:
    """Runs the service until a signal, then drains it."""
    registry = new_registry()
    metrics = HashCountMetrics(registry)
    rpc_metrics = RpcMetrics(registry, "hashcount")
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(start_tracing("hashcount"))
        store = open_store(settings, metrics)
        stack.push_async_callback(store.close)
        metrics_port = None
        if settings.metrics_port is not None:
            host = settings.listen.rpartition(":")[0].strip("[]")
            metrics_port, stop_metrics = serve_metrics(registry, host=host, port=settings.metrics_port)
            stack.callback(stop_metrics)
        server = RpcServer(
            SERVICE,
            interceptor=RpcInterceptor(rpc_metrics, max_seconds=MAX_CALL_SECONDS, max_calls=MAX_CALLS),
            tls=settings.tls,
            max_connection_age=MAX_CONNECTION_AGE_SECONDS,
        )
        hash_count_pb2_grpc.add_HashCountServiceServicer_to_server(HashCountServicer(store, metrics), server.grpc)
        stopped = asyncio.ensure_future(wait_for_signal())
        address = await server.start(settings.listen)
        watcher = StoreWatcher(store, server, metrics)
        await watcher.look()
        watching = asyncio.create_task(watcher.run())
        if settings.store_is_open:
            log.info("Redis is used without a password: whoever reaches it can change visit tables")
        log.info("serving", address=address, metrics_port=metrics_port, store=settings.store_for_people)
        await asyncio.wait((stopped, watching), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():  # a bug: without it health would stay as it is for ever
            watching.result()
        log.info("draining", signal=stopped.result(), seconds=settings.drain_seconds)
        watching.cancel()
        await server.drain(settings.drain_seconds)
    log.info("stopped")


def open_store(settings: HashCountSettings, metrics: HashCountMetrics) -> Store:
    """Makes the store that the settings name."""
    if settings.store is None:
        memory = MemoryStore(
            max_bytes=settings.max_memory,
            ttl=settings.ttl,
            retry_window=settings.retry_window,
        )
        metrics.memory_bytes.set_function(
            lambda: memory.used_bytes
        )  # at every scrape, and not only when it is surveyed
        return memory
    return RedisStore(
        connect(settings.store, password=settings.store_password, threads=settings.store_connections),
        ttl=settings.ttl,
        retry_window=settings.retry_window,
        threads=settings.store_connections,
        on_round_trip=metrics.round_trip,
    )


class StoreWatcher:
    """Keeps the service's health equal to the store's, and the number of live episodes up to date."""

    def __init__(self, store: Store, server: RpcServer, metrics: HashCountMetrics) -> None:
        self._store = store
        self._server = server
        self._metrics = metrics
        self._up: bool | None = None
        self._next_survey = 0.0

    async def run(self) -> None:
        """Looks again and again."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Looks once."""
        before, self._up = self._up, True
        try:
            await self._store.check()
        except StoreUnavailableError as error:
            self._up = False
            if before is not False:
                text = "the store cannot be reached; calls are answered with UNAVAILABLE until it is back"
                log.error(text, error=str(error))
        if self._up and before is False:
            log.warning("the store is back")  # as loud as what it ends
        self._metrics.store_up.set(self._up)
        self._server.set_serving(serving=self._up)
        now = asyncio.get_running_loop().time()
        if self._up and now >= self._next_survey:
            self._next_survey = now + SURVEY_SECONDS
            with contextlib.suppress(StoreUnavailableError):  # a part of a cluster is away
                self._metrics.live_episodes.set(await self._store.live_episodes())
                if (memory := await self._store.memory()) is not None:
                    self._metrics.memory(*memory)


if __name__ == "__main__":
    main()
