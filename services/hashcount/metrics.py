"""What the hash-count service counts about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram

from leco.rpc.interceptor import LATENCY_BUCKETS
from services.hashcount.store import Outcome, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client import CollectorRegistry


class HashCountMetrics:
    """The metrics beside those of the calls themselves (`leco.rpc.interceptor.RpcMetrics`)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.batches = Counter(
            "leco_hashcount_batches",
            "Batches of one episode, by what happened: counted, replayed (a retry), gap, stale, lost, conflict, finished, full, "
            "unavailable.",
            ["status"],
            registry=registry,
        )
        for status in Status:  # so that a rate over a status that never occurred is zero and not absent
            self.batches.labels(status.name.lower())
        self.codes = Counter("leco_hashcount_codes", "Codes counted, repeats included, retries not.", registry=registry)
        self.new_codes = Counter(
            "leco_hashcount_new_codes",
            "Codes counted that were new in their episode (their count is 1).",
            registry=registry,
        )
        self.live_episodes = Gauge(
            "leco_hashcount_live_episodes",
            "Episodes with a visit table in the store, of all runs and replicas; looked up every few seconds.",
            registry=registry,
        )
        self.store_up = Gauge(
            "leco_hashcount_store_up", "1 if the store answered when it was last asked.", registry=registry
        )
        self.store_round_trips = Histogram(
            "leco_hashcount_store_round_trip_seconds",
            "Round trips to Redis, one for each call and server.",
            registry=registry,
            buckets=LATENCY_BUCKETS,
        )
        self.store_errors = Counter(
            "leco_hashcount_store_errors", "Round trips to Redis that failed.", registry=registry
        )
        self.memory_bytes = Gauge(
            "leco_hashcount_memory_bytes",
            "What the store holds, over all its servers (Redis: all that is in it); looked up every few seconds.",
            registry=registry,
        )
        self._memory_limit_bytes = Gauge(
            "leco_hashcount_memory_limit_bytes",
            "What the store may hold (Redis: maxmemory); 0 if it has no limit.",
            registry=registry,
        )

    def round_trip(self, seconds: float, failed: bool) -> None:  # a callback
        """Notes a round trip to Redis."""
        self.store_round_trips.observe(seconds)
        if failed:
            self.store_errors.inc()

    def memory(self, used: int, limit: int) -> None:
        """Notes what the store holds and may hold."""
        self.memory_bytes.set(used)
        self._memory_limit_bytes.set(limit)

    def unavailable(self, batches: int) -> None:
        """Notes batches of a call for which no server of the store could be reached."""
        self.batches.labels("unavailable").inc(batches)

    def outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Notes what came of a call's batches."""
        statuses: dict[Status, int] = {}
        codes = new = 0
        for outcome in outcomes:
            statuses[outcome.status] = statuses.get(outcome.status, 0) + 1
            if outcome.status is Status.COUNTED and outcome.counts is not None:
                codes += len(outcome.counts) // 4
                new += outcome.new
        for status, number in statuses.items():
            self.batches.labels(status.name.lower()).inc(number)
        self.codes.inc(codes)
        self.new_codes.inc(new)
