"""Who gets a place, and who loses it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leco.rpc.places import NoPlaceError, Places, host_of
from support.waiting import PATIENCE

LONG = 10 * PATIENCE


def places(count: int, *, seconds: float = LONG, contended: float = LONG, max_waiting: int = 100) -> Places:
    return Places(count, seconds=seconds, contended_seconds=contended, max_waiting=max_waiting)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Clients:
    """Tasks that hold places until they are let go."""

    def __init__(self, at: Places) -> None:
        self._at = at
        self.inside: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}

    async def come(self, *peers: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._hold(peer)) for peer in peers]
        await settled()
        return tasks

    async def _hold(self, peer: str) -> None:
        async with self._at.hold(peer):
            self.inside.append(peer)
            self._leave[peer] = asyncio.Event()
            await self._leave[peer].wait()

    async def leave(self, peer: str) -> None:
        self._leave[peer].set()
        await settled()


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE))


def test_the_host_is_all_but_the_port() -> None:
    assert host_of("ipv4:10.0.0.1:40312") == "ipv4:10.0.0.1"
    assert host_of("ipv6:%5B::1%5D:40312") == "ipv6:%5B::1%5D"


def test_a_free_place_goes_to_the_host_that_holds_the_fewest_then_to_its_connection() -> None:
    async def test() -> None:
        clients = Clients(places(2))
        await clients.come("a:1", "a:2", "a:1", "a:3", "b:1")
        assert clients.inside == ["a:1", "a:2"]
        await clients.leave("a:2")
        assert clients.inside[2:] == ["b:1"], "the last to come, but of a host that has none"
        await clients.leave("b:1")
        assert clients.inside[3:] == ["a:3"], "of the same host the connection that has none"

    run(test())


def test_who_takes_too_long_loses_the_place_sooner_if_others_wait() -> None:
    async def test() -> None:
        clients = Clients(places(1, contended=0.01))
        [slow] = await clients.come("a:1")
        await asyncio.sleep(0.05)
        assert not slow.done(), "nobody waits"
        await clients.come("b:1")
        with pytest.raises(NoPlaceError, match="s were not enough"):
            await slow
        await settled()
        assert clients.inside == ["a:1", "b:1"]

    run(test())


def test_a_connection_that_was_in_time_before_does_not_wait_for_strangers() -> None:
    async def test() -> None:
        clients = Clients(places(1))
        [good] = await clients.come("a:good")
        await clients.leave("a:good")
        await good
        [stranger] = await clients.come("a:stranger")
        await clients.come("a:other")
        assert not stranger.done()
        await clients.come("a:good")
        with pytest.raises(NoPlaceError):
            await stranger
        await settled()
        assert clients.inside[2:] == ["a:good"], "before the other, who waited longer"

    run(test())


def test_trust_ends_with_a_place_that_was_not_left_in_time() -> None:
    async def test() -> None:
        at = places(1, seconds=0.05)
        clients = Clients(at)
        [good] = await clients.come("a:1")
        await clients.leave("a:1")
        await good
        with pytest.raises(NoPlaceError):
            await (await clients.come("a:1"))[0]
        assert not at._trusted

    run(test())


def test_only_so_many_wait_and_a_waiter_that_is_cancelled_takes_no_place() -> None:
    async def test() -> None:
        clients = Clients(places(1, max_waiting=2))
        _, second, third, fourth = await clients.come("a:1", "a:2", "a:3", "a:4")
        with pytest.raises(NoPlaceError, match="2 calls wait already"):
            await fourth
        clients._leave["a:1"].set()
        await asyncio.sleep(0)  # the place is given to the second, who does not know it yet
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await settled()
        assert clients.inside[-1] == "a:3"
        await clients.leave("a:3")
        await third
        await clients.come("a:5")
        assert clients.inside[-1] == "a:5"

    run(test())
