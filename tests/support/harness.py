"""One face for everything that counts, so that one suite of tests can drive it: stores directly, or through gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from prometheus_client import CollectorRegistry

from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import SERVICE, CodeBatch, HashCountClient
from leco.rpc.interceptor import RpcInterceptor, RpcMetrics
from leco.rpc.server import RpcServer
from leco.v1 import hash_count_pb2_grpc
from services.hashcount import store as stores
from services.hashcount.address import parse_address
from services.hashcount.memory import MemoryStore
from services.hashcount.metrics import HashCountMetrics
from services.hashcount.redis_store import RedisStore
from services.hashcount.servicer import HashCountServicer
from services.hashcount.store import Status, Store
from services.hashcount.topology import connect
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    import grpc

    from leco.rpc.tls import ServerTls

TTL = 1000.0
RETRY_WINDOW = 100.0


@dataclass(frozen=True)
class Answer:
    """A status, with counts exactly if it is COUNTED or REPLAYED."""

    status: Status
    counts: list[int] | None
    detail: str = ""


class Batch(NamedTuple):
    """What a test sends of one episode: codes one by one, which it can count by hand."""

    episode_id: str
    sequence: int
    codes: Sequence[bytes]
    final: bool


class Counting(Protocol):
    """Something that counts."""

    def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Answer]: ...

    def live_episodes(self) -> int: ...

    def advance(self, seconds: float) -> None:
        """Lets so much time go by for the store."""


class LoopThread:
    """An event loop in a thread of its own, for code that is not asynchronous."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=PATIENCE)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Direct:
    """A store, called directly."""

    store: Store
    loop: LoopThread
    advance: Callable[[float], None]

    def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Answer]:
        packed = [stores.Batch(b.episode_id, b.sequence, b"".join(b.codes), b.final) for b in batches]
        outcomes = self.loop.run(self.store.count(run, width, packed))
        return [
            Answer(o.status, None if o.counts is None else np.frombuffer(o.counts, "<u4").tolist(), o.detail)
            for o in outcomes
        ]

    def live_episodes(self) -> int:
        return int(self.loop.run(self.store.live_episodes()))


def count_by_client(client: HashCountClient, width: int, batches: Sequence[Batch]) -> list[Answer]:
    """Has the real client send what a test made."""
    sent = [
        CodeBatch(b.episode_id, b.sequence, np.frombuffer(b"".join(b.codes), np.uint8).reshape(-1, width), b.final)
        for b in batches
    ]
    return [
        Answer(Status(r.status), None if r.counts is None else r.counts.tolist(), r.detail) for r in client.count(sent)
    ]


@dataclass
class ThroughGrpc:
    """The same store behind the real server, called by the real client."""

    direct: Direct
    channel: grpc.Channel
    patience_seconds: float = PATIENCE

    def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Answer]:
        # An attempt is not repeated for its slowness: its answer would be REPLAYED.
        client = HashCountClient(
            self.channel,
            run=run,
            code_width=width,
            attempt_seconds=self.patience_seconds,
            patience_seconds=self.patience_seconds,
        )
        return count_by_client(client, width, batches)

    def live_episodes(self) -> int:
        return self.direct.live_episodes()

    def advance(self, seconds: float) -> None:
        self.direct.advance(seconds)


@contextlib.contextmanager
def memory_counting(*, max_bytes: int = 1 << 30) -> Iterator[Direct]:
    clock, loop = Clock(), LoopThread()
    try:
        yield Direct(
            MemoryStore(max_bytes=max_bytes, ttl=TTL, retry_window=RETRY_WINDOW, clock=clock), loop, clock.advance
        )
    finally:
        loop.close()


@contextlib.contextmanager
def redis_counting(url: str, advance: Callable[[float], None] = lambda _: None) -> Iterator[Direct]:
    loop = LoopThread()
    store = RedisStore(
        connect(parse_address(url), password=None, threads=4),
        ttl=TTL,
        retry_window=RETRY_WINDOW,
        threads=4,
        on_round_trip=lambda _seconds, _failed: None,
    )
    try:
        yield Direct(store, loop, advance)
    finally:
        loop.run(store.close())
        loop.close()


@dataclass
class Serving:
    """A running server."""

    address: str
    server: RpcServer
    registry: CollectorRegistry


@contextlib.contextmanager
def serving(
    store: Store, loop: LoopThread, *, tls: ServerTls | None = None, max_seconds: float = PATIENCE, max_calls: int = 256
) -> Iterator[Serving]:
    """The service's own server and servicer in front of `store`, on a free port."""
    registry = CollectorRegistry()

    async def start() -> tuple[RpcServer, str]:
        interceptor = RpcInterceptor(RpcMetrics(registry, "hashcount"), max_seconds=max_seconds, max_calls=max_calls)
        server = RpcServer(SERVICE, interceptor=interceptor, tls=tls)
        servicer = HashCountServicer(store, HashCountMetrics(registry))
        hash_count_pb2_grpc.add_HashCountServiceServicer_to_server(servicer, server.grpc)
        address = await server.start("127.0.0.1:0")
        server.set_serving(serving=True)
        return server, address

    server, address = loop.run(start())
    try:
        yield Serving(address, server, registry)
    finally:
        loop.run(server.drain(1.0))


@contextlib.contextmanager
def through_grpc(direct: Direct) -> Iterator[ThroughGrpc]:
    with serving(direct.store, direct.loop) as running, open_channel(running.address, service=SERVICE) as channel:
        yield ThroughGrpc(direct, channel)
