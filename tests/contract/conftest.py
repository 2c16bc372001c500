"""The six ways to count that must all behave the same."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from support.harness import Counting, memory_counting, redis_counting, through_grpc
from support.redis_servers import RedisClusterServers, RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

WAYS = ("memory", "redis", "cluster", "memory-grpc", "redis-grpc", "cluster-grpc")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisClusterServers]:
    with RedisClusterServers() as cluster:
        yield cluster


@pytest.fixture(scope="session", params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[Counting]:
    """One way to count, kept for the whole session: tests tell their episodes apart by run."""
    kind, _, wire = request.param.partition("-")
    with contextlib.ExitStack() as stack:
        if kind == "memory":
            direct = stack.enter_context(memory_counting())
        else:
            server = request.getfixturevalue("redis_server" if kind == "redis" else "redis_cluster")
            direct = stack.enter_context(redis_counting(server.url, server.advance))
        yield stack.enter_context(through_grpc(direct)) if wire else direct
