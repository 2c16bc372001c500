"""What tests of faults rely on without seeing it: faults that are weaker or stronger than asked for would let them pass."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support import redis_servers
from support.ports import free_port
from support.redis_servers import HOST, Proxy, RedisServer
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer("--enable-debug-command", "yes") as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    shared_server.client().flushall()
    return shared_server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(HOST, server.port) as proxy:
        yield proxy


def client_of(proxy: Proxy) -> redis.Redis:
    """A client that is connected already, so that the next request is the test's own, and that never retries."""
    client = redis.Redis.from_url(proxy.url, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0))
    client.ping()
    return client


def test_a_failed_start_says_why_and_leaves_no_process() -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    with pytest.raises(RuntimeError, match=r"--no-such-option(.|\n)*FATAL CONFIG"):
        RedisServer("--no-such-option", "1").start()
    assert children.read_text() == before


@pytest.mark.parametrize(("options", "offset"), [((), 0), (("--cluster-enabled", "yes"), 10_000)])
def test_another_port_is_chosen_when_the_first_or_its_cluster_bus_is_in_use(
    options: tuple[str, ...], offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = free_port(), free_port()
    candidates = [first, second]
    monkeypatch.setattr(redis_servers, "free_port", lambda: candidates.pop(0))
    with socket.create_server((HOST, first + offset)), RedisServer(*options) as server:
        assert server.port == second


def test_advance_expires_exactly_the_keys_whose_time_has_come(server: RedisServer) -> None:
    client = server.client()
    client.set("forever", 1)
    client.set("due", 1, ex=6000)
    client.set("later", 1, ex=12_000)
    client.hset("hash", "field", "1")
    client.expire("hash", 12_000)
    server.advance(6000)
    assert set(client.keys()) == {b"forever", b"later", b"hash"}
    server.advance(6000)
    assert client.keys() == [b"forever"]


def test_a_cut_reply_of_a_long_pipeline_is_of_all_its_commands(proxy: Proxy, server: RedisServer) -> None:
    with client_of(proxy) as client, client.pipeline(transaction=False) as pipe:
        for number in range(20_000):
            pipe.set(f"key{number}", "x" * 50)
            if number == 10_000:  # a silence is not the end
                pipe.execute_command("DEBUG", "SLEEP", 0.2)
        proxy.cut_replies = 2
        with pytest.raises(redis.ConnectionError):
            pipe.execute()
    assert server.client().dbsize() == 20_000
    assert (proxy.cuts, proxy.cut_replies) == (1, 1)


def test_a_cut_request_has_no_effect(proxy: Proxy, server: RedisServer) -> None:
    with client_of(proxy) as client:
        proxy.cut_requests = 1
        with pytest.raises(redis.ConnectionError):
            client.incr("count")
        assert server.client().get("count") is None
        assert client.incr("count") == 1
    assert (proxy.cuts, proxy.cut_requests) == (1, 0)
