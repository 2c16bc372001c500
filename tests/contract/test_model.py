"""Random interleavings of batches, retries, duplicates, finals and expiry, against a model too simple to be wrong.

The model keeps every code that was ever counted and counts them anew for each answer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from services.hashcount.store import Status
from support.harness import RETRY_WINDOW, TTL, Batch

if TYPE_CHECKING:
    from support.harness import Counting

RUNS = itertools.count()
EPISODES = st.sampled_from(["p", "q", "r"])
RUN_NAMES = st.sampled_from(["first", "second"])
CODES = st.lists(st.sampled_from([b"\0\0", b"\0\1", b"ab", b"\xff\xff"]), min_size=1, max_size=6)


@dataclass
class ModelEpisode:
    batches: list[Batch] = field(default_factory=list)
    expires: float = 0.0

    @property
    def finished(self) -> bool:
        return self.batches[-1].final

    def last_counts(self) -> list[int]:
        """Each code of the last batch, counted over all that came up to it."""
        everything = [code for batch in self.batches for code in batch.codes]
        first = len(everything) - len(self.batches[-1].codes)
        return [everything[: i + 1].count(everything[i]) for i in range(first, len(everything))]


class Model:
    """What the contract says, written down naively."""

    def __init__(self) -> None:
        self.episodes: dict[tuple[str, str], ModelEpisode] = {}
        self.now = 0.0

    def episode(self, run: str, name: str) -> ModelEpisode | None:
        known = self.episodes.get((run, name))
        return known if known is not None and known.expires > self.now else None

    def count(self, run: str, batch: Batch) -> tuple[Status, list[int] | None]:
        known = self.episode(run, batch.episode_id)
        if known is None:
            if batch.sequence > 0:
                return Status.LOST, None
            known = self.episodes[run, batch.episode_id] = ModelEpisode()
        else:
            last = len(known.batches) - 1
            if batch.sequence == last:
                same = known.batches[-1] == batch
                return (Status.REPLAYED, known.last_counts()) if same else (Status.CONFLICT, None)
            if batch.sequence < last:
                return Status.STALE, None
            if known.finished:
                return Status.FINISHED, None
            if batch.sequence > last + 1:
                return Status.GAP, None
        known.batches.append(batch)
        known.expires = self.now + (RETRY_WINDOW if batch.final else TTL)
        return Status.COUNTED, known.last_counts()

    def live(self) -> int:
        return sum(not e.finished for e in self.episodes.values() if e.expires > self.now)


class Machine(RuleBasedStateMachine):
    """Drives both and compares. `way` is set by the test."""

    way: Counting

    @initialize()
    def begin(self) -> None:
        self.prefix = f"model-{next(RUNS)}"
        self.model = Model()
        self.sent: list[tuple[str, Batch]] = []
        self.live_before = self.way.live_episodes()

    def send(self, run: str, *batches: Batch) -> None:
        answers = self.way.count(f"{self.prefix}-{run}", 2, batches)
        assert [(a.status, a.counts) for a in answers] == [self.model.count(run, batch) for batch in batches]
        self.sent.extend((run, batch) for batch in batches)

    def next_sequence(self, run: str, name: str) -> int:
        known = self.model.episode(run, name)
        return 0 if known is None else len(known.batches)

    @rule(run=RUN_NAMES, name=EPISODES, codes=CODES, final=st.booleans())
    def go_on(self, run: str, name: str, codes: list[bytes], final: bool) -> None:
        self.send(run, Batch(name, self.next_sequence(run, name), codes, final))

    @rule(run=RUN_NAMES, codes=st.lists(CODES, min_size=3, max_size=3), skip=st.integers(0, 6))
    def go_on_together(self, run: str, codes: list[list[bytes]], skip: int) -> None:
        """All three, or two of them and a batch that comes too early."""
        names = ("p", "q", "r")
        batches = [
            Batch(name, self.next_sequence(run, name) + (place == skip), each, final=False)
            for place, (name, each) in enumerate(zip(names, codes, strict=True))
        ]
        self.send(run, *batches)

    @rule(run=RUN_NAMES, name=EPISODES)
    def end_empty(self, run: str, name: str) -> None:
        self.send(run, Batch(name, self.next_sequence(run, name), [], final=True))

    @rule(data=st.data(), codes=CODES)
    def send_again(self, data: st.DataObject, codes: list[bytes]) -> None:
        """A batch that was sent before, and with it one that is new."""
        if self.sent:
            run, batch = data.draw(st.sampled_from(self.sent[-6:]))
            other = next(name for name in ("p", "q", "r") if name != batch.episode_id)
            new = Batch(other, self.next_sequence(run, other), codes, final=False)
            self.send(run, *data.draw(st.sampled_from([[batch], [batch, new], [new, batch]])))

    @rule(run=RUN_NAMES, name=EPISODES, codes=CODES, sequence=st.integers(0, 6), final=st.booleans())
    def send_anything(self, run: str, name: str, codes: list[bytes], sequence: int, final: bool) -> None:
        self.send(run, Batch(name, sequence, codes, final))

    @rule(seconds=st.sampled_from([RETRY_WINDOW / 2, RETRY_WINDOW + 1, TTL / 2, TTL + 1]))
    def wait(self, seconds: float) -> None:
        self.way.advance(seconds)
        self.model.now += seconds

    @rule()
    def count_the_living(self) -> None:
        # Episodes of earlier examples may expire meanwhile, but none can appear.
        assert self.model.live() <= self.way.live_episodes() <= self.model.live() + self.live_before


def test_every_interleaving_agrees_with_the_model(way: Counting) -> None:
    machine = type("BoundMachine", (Machine,), {"way": way})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
