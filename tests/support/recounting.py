"""Clients that count episodes and count them again by themselves: every answer is held against their own."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from leco.rpc.hashcount_client import CodeBatch, CountResult, HashCountClient
from services.hashcount.store import Status

if TYPE_CHECKING:
    import threading

    import grpc

EPISODES = 4  # of each client at a time
WIDTH = 2


class Episode:
    """What one client knows: the codes that were counted, the last batch, and one whose outcome is not known yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: list[CodeBatch] = []
        self.pending: CodeBatch | None = None

    def choose(self, rng: random.Random) -> CodeBatch:
        """The batch whose outcome is open, else now and then the last one again, else the next one."""
        if self.pending is None and self.batches and (self.batches[-1].final or rng.random() < 0.1):
            return self.batches[-1]
        if self.pending is None:
            # Few codes, so that they repeat within and across batches, and at times more than the script takes at once.
            size = 1500 if rng.random() < 0.01 else rng.randint(1, 12)
            numbers = np.array([rng.randrange(3 * size) for _ in range(size)], ">u2")
            codes = numbers.view(np.uint8).reshape(size, WIDTH)
            self.pending = CodeBatch(self.name, len(self.batches), codes, final=rng.random() < 0.05)
        return self.pending

    def expected(self, batch: CodeBatch) -> list[int]:
        """Each code of `batch`, counted over all that is known to be in the episode up to it."""
        seen: Counter[bytes] = Counter()
        counts: list[int] = []
        for each in (*self.batches[: batch.sequence], batch):
            counts = []
            for code in map(bytes, each.codes):
                seen[code] += 1
                counts.append(seen[code])
        return counts


class Recounter:
    """One client thread with several episodes. `tally` says what happened to it."""

    def __init__(self, channel: grpc.Channel, number: int, seed: int) -> None:
        self._rng = random.Random(f"{seed} {number}")
        self._names = (f"p{number}-{i}" for i in itertools.count())
        self._client = HashCountClient(
            channel, run="chaos", code_width=WIDTH, attempt_seconds=2.0, patience_seconds=3.0
        )
        self._episodes = [Episode(next(self._names)) for _ in range(EPISODES)]
        self.tally: Counter[str] = Counter()

    def play(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._call(self._rng.sample(range(EPISODES), self._rng.randint(1, EPISODES)))
        while still_open := [i for i in range(EPISODES) if self._episodes[i].pending]:
            self._call(still_open)

    def _call(self, chosen: list[int]) -> None:
        batches = [self._episodes[i].choose(self._rng) for i in chosen]
        for i, batch, result in zip(chosen, batches, self._client.count(batches), strict=True):
            if self._is_over(self._episodes[i], batch, result):
                self._episodes[i] = Episode(next(self._names))

    def _is_over(self, episode: Episode, batch: CodeBatch, result: CountResult) -> bool:
        """Holds the answer against the model and notes it; whether the episode has ended or must be given up."""
        status, is_new = Status(result.status), batch is episode.pending
        what = f"{status.name} for batch {batch.sequence} of {batch.episode_id}, {len(episode.batches)} known: {result.detail}"
        if status is Status.UNAVAILABLE:
            assert result.counts is None, what
            self.tally["unavailable"] += 1
            return False
        if status in (Status.LOST, Status.GAP):
            assert result.counts is None, what
            assert batch.sequence > 0, what
            self.tally["lost"] += 1
            return True
        assert status in (Status.COUNTED, Status.REPLAYED), what
        assert result.counts is not None, what
        assert result.counts.tolist() == episode.expected(batch), what
        if not is_new:
            self.tally["repeated"] += 1
            return batch.final
        self.tally["counted"] += 1
        self.tally["recovered"] += status is Status.REPLAYED  # counted by a call whose answer never came
        episode.batches.append(batch)
        episode.pending = None
        return False
