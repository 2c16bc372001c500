"""Visit tables in Redis, Valkey, or a cluster of either: any number of service replicas share them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from array import array
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import redis
import structlog

from services.hashcount import store
from services.hashcount.store import Batch, Outcome, Status, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")
log = structlog.get_logger(__name__)

SCRIPT = resources.files("services.hashcount").joinpath("count.lua").read_bytes()
SCRIPT_SHA = hashlib.sha1(SCRIPT, usedforsecurity=False).hexdigest()  # the name by which Redis knows a script
TABLE_PATTERN = b"leco1:*:t"

# The slot of this key is on another node now, or is being moved.
REDIRECTS = (redis.exceptions.MovedError, redis.exceptions.AskError, redis.exceptions.TryAgainError)
UNREACHABLE = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)
ANY_ERROR = (redis.exceptions.RedisError, redis.exceptions.RedisClusterException)


class Topology(Protocol):
    """Where the keys are: one server, or the nodes of a cluster."""

    known: bool
    """Whether the servers are known. If not, `learn` must be called before the rest."""

    def learn(self) -> None:
        """Finds out which server holds which keys. Blocks."""
        ...

    def split(self, keys: Sequence[bytes]) -> Iterable[tuple[redis.Redis, list[int]]]:
        """Groups the positions of `keys` by the server that holds them; leaves out those that none holds. Does not block."""
        ...

    def follow(self, *command: object) -> Any:  # what Redis answers
        """Runs one command wherever its key has moved to. Blocks."""
        ...

    def forget(self) -> None:
        """Hears that a server could not be reached: what is known may be out of date. Does not block."""
        ...

    def primaries(self) -> Iterable[redis.Redis]:
        """Every server that holds keys. Does not block."""
        ...

    def close(self) -> None:
        """Closes all connections."""
        ...


class RedisStore:
    """Sends one script for each episode, all episodes of a call in one pipeline for each server.

    Because a batch that arrives twice is answered from its record, every failure of the connection may simply be retried.

    Args:
        topology: Where the keys are.
        ttl: Seconds after its last batch when an episode that never ended expires.
        retry_window: Seconds for which the answer to a final batch is kept.
        threads: Pipelines in progress at once; each has a connection of its own.
        on_round_trip: Is told the seconds that each pipeline took, and whether it failed.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        ttl: float,
        retry_window: float,
        threads: int,
        on_round_trip: Callable[[float, bool], None],
    ) -> None:
        self._topology = topology
        self._ttl_ms = int(ttl * 1000)
        self._retry_window_ms = int(retry_window * 1000)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="redis")
        self._on_round_trip = on_round_trip
        self._inspected = False

    async def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Outcome]:
        """See `Store.count`."""
        prepared = [_Prepared(run, width, batch) for batch in batches]
        try:
            if not self._topology.known:
                await self._in_thread(self._topology.learn)
            groups = self._topology.split([each.record for each in prepared])
        except ANY_ERROR as error:
            raise StoreUnavailableError(_reason(error)) from error
        outcomes: list[Outcome] = [_NOT_COVERED] * len(batches)

        def count_on(server: redis.Redis, positions: Sequence[int]) -> None:
            for position, outcome in zip(
                positions, self._count_on(server, [prepared[p] for p in positions]), strict=True
            ):
                outcomes[position] = outcome

        await asyncio.gather(*(self._in_thread(count_on, server, positions) for server, positions in groups))
        if all(outcome.status is Status.UNAVAILABLE for outcome in outcomes):
            raise StoreUnavailableError(outcomes[0].detail)
        return outcomes

    def _count_on(self, server: redis.Redis, prepared: Sequence[_Prepared]) -> list[Outcome]:
        commands = [each.arguments(self._ttl_ms, self._retry_window_ms) for each in prepared]
        replies = self._pipeline(server, commands)
        if isinstance(replies[0], redis.exceptions.ConnectionError):  # perhaps only this connection was cut
            replies = self._pipeline(server, commands)
        if isinstance(replies[0], UNREACHABLE):
            self._topology.forget()
        for i, reply in enumerate(replies):
            if isinstance(reply, REDIRECTS):
                try:
                    replies[i] = self._topology.follow("EVAL", SCRIPT, *commands[i])
                except ANY_ERROR as error:
                    replies[i] = error
        return [each.outcome(reply) for each, reply in zip(prepared, replies, strict=True)]

    def _pipeline(self, server: redis.Redis, commands: Sequence[tuple[object, ...]]) -> list[bytes | Exception]:
        """One round trip: the script for each of `commands`; what it answered, or the error in its place."""
        pipeline = server.pipeline(transaction=False)
        # Loading a script that is there costs Redis a few microseconds, and saves us from ever missing it after a restart.
        pipeline.execute_command("SCRIPT LOAD", SCRIPT)
        for command in commands:
            pipeline.execute_command("EVALSHA", SCRIPT_SHA, *command)
        begin = time.perf_counter()
        replies: list[bytes | Exception]
        try:
            _, *replies = pipeline.execute(raise_on_error=False)
        except ANY_ERROR as error:
            replies = [error] * len(commands)
        self._on_round_trip(time.perf_counter() - begin, isinstance(replies[0], UNREACHABLE))
        return replies

    async def check(self) -> None:
        """See `Store.check`. A cluster that lost a node still serves the episodes of the others."""

        def answers(server: redis.Redis) -> bool | Exception:
            try:
                return bool(server.ping())
            except UNREACHABLE as error:
                self._topology.forget()
                return error

        answered = await self._on_all(answers)
        if True not in answered:
            raise StoreUnavailableError(", ".join(_reason(each) for each in answered if isinstance(each, Exception)))
        if not self._inspected:
            await self._on_all(_warn_of_eviction)
            self._inspected = True

    async def live_episodes(self) -> int:
        """See `Store.live_episodes`. Walks all keys in small steps, which do not hold up the servers."""
        return sum(await self._on_all(lambda server: sum(1 for _ in server.scan_iter(match=TABLE_PATTERN, count=1000))))

    async def _on_all(self, job: Callable[[redis.Redis], T]) -> list[T]:
        def run() -> list[T]:
            if not self._topology.known:
                self._topology.learn()
            return [job(server) for server in self._topology.primaries()]

        try:
            return await self._in_thread(run)
        except ANY_ERROR as error:
            self._topology.forget()
            raise StoreUnavailableError(_reason(error)) from error

    async def _in_thread(self, job: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, job, *arguments)

    async def close(self) -> None:
        """See `Store.close`."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._topology.close()


_NOT_COVERED = Outcome(Status.UNAVAILABLE, detail="no node of the cluster holds this episode's slot now")


class _Prepared:
    """One batch on its way to the script and back."""

    __slots__ = ("_batch", "_table", "_times", "_width", "record")

    def __init__(self, run: str, width: int, batch: Batch) -> None:
        name = f"leco1:{{{run}/{batch.episode_id}}}:".encode()  # in braces: what Redis Cluster chooses the slot by
        self.record, self._table = name + b"r", name + b"t"
        self._batch = batch
        self._width = width
        self._times: Counter[bytes] = Counter()

    def arguments(self, ttl_ms: int, retry_window_ms: int) -> tuple[object, ...]:
        """The arguments of EVALSHA after the script's name, as count.lua wants them."""
        batch = self._batch
        self._times = Counter(batch.codes)  # in order of first appearance
        times = array("H", self._times.values())
        return (
            *(2, self.record, self._table, batch.sequence, batch.digest(), int(batch.final), self._width),
            *(ttl_ms, retry_window_ms, b"".join(self._times), _little_endian(times)),
        )

    def outcome(self, reply: bytes | Exception) -> Outcome:
        """What the script's answer means."""
        if isinstance(reply, Exception):
            return _failure(reply)
        letter, rest = reply[:1], reply[1:]
        sequence = self._batch.sequence
        match letter:
            case b"C":
                return Outcome(Status.COUNTED, self._counts(rest))
            case b"R":
                return Outcome(Status.REPLAYED, self._counts(rest))
            case b"G":
                return store.gap(sequence, int(rest) + 1)
            case b"S":
                return store.stale(sequence, int(rest))
            case b"F":
                return store.finished(sequence, int(rest))
            case b"L":
                return store.lost(sequence)
            case b"D":
                return store.other_content(sequence)
            case b"W":
                return store.other_width(self._width, int(rest))
        raise AssertionError(f"count.lua answered {reply!r}")

    def _counts(self, before: bytes) -> array[int]:
        """Each code's count at its moment, from how often each distinct code was seen before the batch."""
        if not before:
            return array("I")
        counters = {code: count(int(n) + 1) for code, n in zip(self._times, before.split(b","), strict=True)}
        return array("I", map(next, map(counters.__getitem__, self._batch.codes)))


def _warn_of_eviction(server: redis.Redis) -> None:
    memory = server.info("memory")
    policy = memory.get("maxmemory_policy", "noeviction")
    if memory.get("maxmemory", 0) and policy != "noeviction":
        log.warning(
            "Redis may evict visit tables when it is full; their episodes will be LOST. Set maxmemory-policy noeviction",
            policy=policy,
        )


def _little_endian(values: array[int]) -> bytes:
    if not _NATIVE_IS_LITTLE:
        values.byteswap()
    return values.tobytes()


_NATIVE_IS_LITTLE = array("H", [1]).tobytes()[0] == 1


def _failure(error: Exception) -> Outcome:
    if isinstance(error, redis.exceptions.OutOfMemoryError) or str(error).startswith("OOM "):
        return Outcome(
            Status.FULL,
            detail="Redis has reached its maxmemory and nothing is evicted; repeat when episodes have ended",
        )
    return Outcome(Status.UNAVAILABLE, detail=_reason(error))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
