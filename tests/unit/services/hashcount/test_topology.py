"""A cluster of Redis whose nodes answer but hold no slot: the client's IndexError is an error that is waited for."""

from __future__ import annotations

import asyncio

import pytest
import redis

from services.hashcount import topology
from services.hashcount.address import parse_address
from services.hashcount.redis_store import RedisStore
from services.hashcount.store import StoreUnavailableError


class Forming:
    """Stands for the client of a cluster: while `slots` is False it fails as redis-py does."""

    slots = False

    def __init__(self, **_: object) -> None:
        self.nodes_manager = self
        self.initialize()

    def initialize(self) -> None:
        if not self.slots:
            raise IndexError("list index out of range")

    def execute_command(self, *_: object) -> None:
        self.initialize()

    def get_primaries(self) -> list[str]:
        return ["a"]

    def get_redis_connection(self, _: str) -> Forming:
        return self

    def ping(self) -> bool:
        return True

    def info(self, _: str) -> dict[str, object]:
        return {}

    def close(self) -> None:
        pass


def test_no_slots_are_waited_for_at_the_start_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "RedisCluster", Forming)
    where = topology.connect(parse_address("redis+cluster://a:1"), password=None, threads=1)
    store = RedisStore(where, ttl=1.0, retry_window=1.0, threads=1, on_round_trip=lambda *_: None)

    async def check() -> None:
        for slots in (False, True, False, True):  # it forms, loses all, and has them again
            monkeypatch.setattr(Forming, "slots", slots)
            where.forget()
            if slots:
                await store.check()
            else:
                with pytest.raises(StoreUnavailableError, match="do not form a cluster yet"):
                    await store.check()
        await store.close()

    asyncio.run(check())
    monkeypatch.setattr(Forming, "slots", False)
    with pytest.raises(redis.exceptions.ClusterDownError):
        where.follow("PING")
