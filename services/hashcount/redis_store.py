"""Visit tables in Redis, Valkey, or a cluster of either: any number of service replicas share them."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import redis
import structlog

from services.hashcount.redis_script import TABLE_PATTERN, ScriptCalls, load_script, reason
from services.hashcount.store import Status, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.hashcount.store import Batch, Outcome
    from services.hashcount.topology import Topology

T = TypeVar("T")
log = structlog.get_logger(__name__)

# The slot of this key is on another node now, or is being moved.
REDIRECTS = (redis.exceptions.MovedError, redis.exceptions.AskError, redis.exceptions.TryAgainError)
CROSS_SLOT = redis.exceptions.ClusterCrossSlotError
UNREACHABLE = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)
ANY_ERROR = (redis.exceptions.RedisError, redis.exceptions.RedisClusterException)
NOT_COVERED = redis.exceptions.ClusterDownError("no node of the cluster holds the slot of this episode now")


class RedisStore:
    """Has a script count all episodes of a call, some at a time, or in a cluster one at a time; one pipeline for each server.

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
        self._script, self._script_sha = load_script()
        self._inspected = False

    async def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Outcome]:
        """See `Store.count`."""
        calls = ScriptCalls(run, width, batches)
        replies: list[bytes | Exception] = [NOT_COVERED] * len(batches)

        def ask(server: redis.Redis, positions: Sequence[int]) -> None:
            for part, answer in self._ask_script(server, calls, positions):
                replies[part] = answer if isinstance(answer, list) else [answer] * (part.stop - part.start)

        try:
            if not self._topology.known:
                await self._in_thread(self._topology.learn)
            groups = self._topology.split(calls.records)
        except ANY_ERROR as error:
            raise StoreUnavailableError(reason(error)) from error
        await asyncio.gather(*(self._in_thread(ask, server, positions) for server, positions in groups))
        outcomes = calls.outcomes(replies)
        if all(outcome.status is Status.UNAVAILABLE for outcome in outcomes):
            raise StoreUnavailableError(outcomes[0].detail)
        return outcomes

    def _ask_script(
        self, server: redis.Redis, calls: ScriptCalls, positions: Sequence[int]
    ) -> list[tuple[slice, list[bytes] | Exception]]:
        """What the script answers to the batches at `positions`, some at a time, or the error in its place."""
        together = self._topology.together
        parts = calls.parts() if together else [slice(i, i + 1) for i in positions]
        answers = self._ask(server, [calls.arguments(part, self._ttl_ms, self._retry_window_ms) for part in parts])
        if together and any(isinstance(each, CROSS_SLOT) for each in answers):
            self._topology.together = False  # it is a node of a cluster, though its address does not say so
            return self._ask_script(server, calls, positions)
        return list(zip(parts, answers, strict=True))

    def _ask(self, server: redis.Redis, commands: Sequence[tuple[object, ...]]) -> list[list[bytes] | Exception]:
        """What the script answers to each of `commands`, or the error in its place."""
        replies = self._pipeline(server, commands)
        if isinstance(replies[0], redis.exceptions.ConnectionError):  # perhaps only this connection was cut
            replies = self._pipeline(server, commands)
        if isinstance(replies[0], UNREACHABLE):
            self._topology.forget()
        for i, reply in enumerate(replies):
            if isinstance(reply, REDIRECTS):
                try:
                    replies[i] = self._topology.follow("EVAL", self._script, *commands[i])
                except ANY_ERROR as error:
                    replies[i] = error
        return replies

    def _pipeline(self, server: redis.Redis, commands: Sequence[tuple[object, ...]]) -> list[list[bytes] | Exception]:
        """One round trip for all of `commands`."""
        pipeline = server.pipeline(transaction=False)
        # Loading a script that is there costs Redis a few microseconds, and saves us from ever missing it after a restart.
        pipeline.execute_command("SCRIPT LOAD", self._script)
        for command in commands:
            pipeline.execute_command("EVALSHA", self._script_sha, *command)
        begin = time.perf_counter()
        replies: list[list[bytes] | Exception]
        try:
            _, *replies = pipeline.execute(raise_on_error=False)
        except ANY_ERROR as error:
            _let_go(error)
            replies = [error] * len(commands)
        self._on_round_trip(time.perf_counter() - begin, isinstance(replies[0], UNREACHABLE))
        return replies

    async def check(self) -> None:
        """See `Store.check`. A cluster that lost a node still serves the episodes of the others."""

        def answers(server: redis.Redis) -> bool | Exception:
            with contextlib.suppress(redis.exceptions.ConnectionError):  # perhaps only this connection was cut
                return bool(server.ping())
            try:
                return bool(server.ping())
            except UNREACHABLE as error:
                self._topology.forget()
                return error

        answered = await self._on_all(answers)
        if True not in answered:
            raise StoreUnavailableError(", ".join(reason(each) for each in answered if isinstance(each, Exception)))
        if not self._inspected:
            await self._on_all(_warn_of_eviction)
            self._inspected = True

    async def live_episodes(self) -> int:
        """See `Store.live_episodes`. Walks all keys in small steps, which do not hold up the servers."""
        return sum(await self._on_all(lambda server: sum(1 for _ in server.scan_iter(match=TABLE_PATTERN, count=1000))))

    async def memory(self) -> tuple[int, int] | None:
        """See `Store.memory`. Everything that is in Redis, not only visit tables; without a limit if one server has none."""
        found = [
            (int(each["used_memory"]), int(each.get("maxmemory", 0))) for each in await self._on_all(_memory) if each
        ]
        if not found:
            return None
        used, limits = zip(*found, strict=True)
        return sum(used), sum(limits) if all(limits) else 0

    async def _on_all(self, job: Callable[[redis.Redis], T]) -> list[T]:
        def run() -> list[T]:
            if not self._topology.known:
                self._topology.learn()
            return [job(server) for server in self._topology.primaries()]

        try:
            return await self._in_thread(run)
        except ANY_ERROR as error:
            self._topology.forget()
            raise StoreUnavailableError(reason(error)) from error

    async def _in_thread(self, job: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, job, *arguments)

    async def close(self) -> None:
        """See `Store.close`."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._topology.close()


def _let_go(error: BaseException | None) -> None:
    """Drops what an exception of the client, and those that led to it, keep alive by reference cycles: a whole request."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _memory(server: redis.Redis) -> dict[str, Any]:
    try:
        return dict(server.info("memory"))
    except redis.exceptions.ResponseError:  # this user may not ask
        return {}


def _warn_of_eviction(server: redis.Redis) -> None:
    memory = _memory(server)
    policy = memory.get("maxmemory_policy", "noeviction")
    if memory.get("maxmemory", 0) and policy != "noeviction":
        log.warning(
            "Redis may evict visit tables when it is full; their episodes will be LOST. Set maxmemory-policy noeviction",
            policy=policy,
        )
