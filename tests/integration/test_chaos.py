"""Everything fails at random while many clients count: not one count may differ from the client's own recount.

The clients' choices and the faults follow from a seed. A failure names it; LECO_CHAOS_SEED=... takes it again, though
the timing of processes and sockets stays the machine's own.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import SERVICE
from support.recounting import Recounter
from support.redis_servers import HOST, Proxy, RedisServer
from support.service_process import ServiceProcess
from support.waiting import until

log = logging.getLogger(__name__)

THREADS = 6
FAULTS = ["cut replies"] * 22 + ["cut requests"] * 11 + ["refuse"] * 5 + ["kill Redis"] * 4 + ["kill a replica"] * 3


class World:
    """Two replicas, one Redis behind a proxy, and what can happen to them."""

    def __init__(self, stack: ExitStack, rng: random.Random) -> None:
        self._stack, self._rng = stack, rng
        self.redis = stack.enter_context(RedisServer())
        self.proxy = stack.enter_context(Proxy(HOST, self.redis.port))
        self.services: list[ServiceProcess] = []  # all that ever ran
        self.replicas = [self._replica("127.0.0.1:0") for _ in range(2)]

    def _replica(self, address: str) -> ServiceProcess:
        self.services.append(ServiceProcess("--store", self.proxy.url, "--listen", address))
        return self._stack.enter_context(self.services[-1])

    def suffer(self, fault: str) -> None:
        match fault:
            case "cut replies":
                self.proxy.cut_replies = self._rng.randint(1, 4)
            case "cut requests":
                self.proxy.cut_requests = self._rng.randint(1, 3)
            case "refuse":
                self.proxy.refuse(True)
                time.sleep(self._rng.uniform(0.0, 0.2))
                self.proxy.refuse(False)
            case "kill Redis":
                self.redis.kill()
                time.sleep(self._rng.uniform(0.0, 0.2))
                self.redis.start()
            case "kill a replica":
                which = self._rng.randrange(2)
                self.replicas[which].kill()
                self.replicas[which] = self._replica(self.replicas[which].address)

    def heal(self) -> None:
        self.proxy.cut_replies = self.proxy.cut_requests = 0


def await_progress(players: list[Recounter], plays: list[Future[None]]) -> None:
    """Until the clients have had 100 more batches counted, or one has failed."""
    goal = sum(player.tally["counted"] for player in players) + 100
    until(lambda: any(play.done() for play in plays) or sum(player.tally["counted"] for player in players) >= goal)


def test_no_count_is_wrong_whatever_fails() -> None:
    seed = int(os.environ.get("LECO_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    log.warning("LECO_CHAOS_SEED=%d", seed)  # which pytest shows of a test that failed, in whatever way
    rng = random.Random(seed)
    with ExitStack() as stack:
        world = World(stack, rng)
        target = "ipv4:" + ",".join(replica.address for replica in world.replicas)
        channel = stack.enter_context(open_channel(target, service=SERVICE))
        players = [Recounter(channel, number, seed) for number in range(THREADS)]
        stop = threading.Event()
        with ThreadPoolExecutor(THREADS) as pool:
            plays = [pool.submit(player.play, stop) for player in players]
            try:
                for fault in rng.sample(FAULTS, len(FAULTS)):
                    world.suffer(fault)
                    if rng.random() < 0.8:  # else the next fault meets what this one left
                        await_progress(players, plays)
                    if any(play.done() for play in plays):
                        break  # with an error
            finally:
                world.heal()
                stop.set()
        tally = sum((player.tally for player in players), Counter())
        story = f"seed {seed}: {dict(tally)}, {world.proxy.cuts} cuts"
        errors = [error for play in plays if (error := play.exception()) is not None]
        assert not errors, f"{story}; {len(errors)} clients failed, the first with {errors[0]!r}"
        # A client repeats also what failed for a bug in the service.
        bugs = [line for service in world.services for line in service.lines if "failed unexpectedly" in line]
        assert not bugs, f"{story}; {bugs}"
        # Without these the test would have proved nothing.
        assert tally["counted"] >= 2000, story
        assert min(tally["recovered"], tally["repeated"], tally["lost"]) >= 20, story
