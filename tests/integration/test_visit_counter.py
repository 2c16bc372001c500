"""Counts of an unroll, by the real client and service, against a dictionary for each episode."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leco.models.hash_function import HashFunction
from leco.rpc.hashcount_client import CountResult, HashCountClient
from leco.types import EpisodeSummary
from services.actor.rollout import Ending, Unroll
from services.actor.visit_counter import EpisodeSegment, VisitCounter, VisitCounts, segments
from support.harness import memory_counting, through_grpc
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from leco.rpc.hashcount_client import CodeBatch

    Codes = npt.NDArray[np.uint8]

KINDS = 3  # of observations, so that each comes again and again


def made(start_TE: npt.NDArray[np.bool_], random: np.random.Generator) -> Unroll:
    """An unroll in which episodes start as said, and all observations are random. An observation is one byte."""
    steps, environments = start_TE.shape[0] - 1, start_TE.shape[1]
    summary = EpisodeSummary(0.0, 1, success=False)
    ends = [
        [
            Ending(t, random.integers(KINDS, size=1).astype(np.uint8), summary)
            for t in range(steps)
            if start_TE[t + 1, e]
        ]
        for e in range(environments)
    ]
    nothing_TE, nothing_E = np.zeros((steps, environments), np.float32), np.zeros(environments, np.float32)
    return Unroll(
        observation_TEO=random.integers(KINDS, size=(steps + 1, environments, 1)).astype(np.uint8),
        start_TE=start_TE,
        action_TE=nothing_TE.astype(np.int32),
        reward_TE=nothing_TE,
        logits_TEA=nothing_TE[..., None],
        previous_action_E=nothing_E.astype(np.int32),
        previous_reward_E=nothing_E,
        core_LCEH=nothing_E[None, None, :, None],
        endings=ends,
    )


def in_line(unrolls: Sequence[Unroll]) -> list[Unroll]:
    """Each begins with the observation that the one before ended with."""
    for one, following in pairwise(unrolls):
        following.observation_TEO[0] = one.observation_TEO[-1]
        following.start_TE[0] = one.start_TE[-1]
    return list(unrolls)


def patterns(rates: Sequence[float], steps: int, environments: int, seed: int) -> list[Unroll]:
    random = np.random.default_rng(seed)
    unrolls = [made(random.random((steps + 1, environments)) < rate, random) for rate in rates]
    unrolls[0].start_TE[0] = True
    return in_line(unrolls)


class Naive:
    """What the counts should be: a dictionary for the episode of each environment."""

    def __init__(self) -> None:
        self.seen: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def counts(self, unroll: Unroll) -> npt.NDArray[np.uint32]:
        steps, environments = unroll.action_TE.shape
        count_ET = np.zeros((environments, steps), np.uint32)
        for e in range(environments):
            ends = iter(unroll.endings[e])
            for t in range(steps):
                if unroll.start_TE[t, e]:
                    self.seen[e] = Counter([int(unroll.observation_TEO[t, e, 0])])
                over = unroll.start_TE[t + 1, e]
                next_O = next(ends).observation_O if over else unroll.observation_TEO[t + 1, e]
                self.seen[e][int(next_O[0])] += 1
                count_ET[e, t] = self.seen[e][int(next_O[0])]
        return count_ET


HASH = HashFunction(2, lambda observation_NO: torch.cat([observation_NO, observation_NO + 100], 1))


class Through(HashCountClient):
    """The client of another, which notes what is asked and may lose an answer; or the service may be exchanged."""

    def __init__(self, client: HashCountClient, fails: Callable[[CodeBatch], bool] = lambda _: False) -> None:
        self.client, self.fails = client, fails
        self.asked: list[CodeBatch] = []
        self.calls = 0

    def count(self, batches: Sequence[CodeBatch]) -> list[CountResult]:
        self.asked += batches
        self.calls += 1
        results = self.client.count(batches)
        return [
            CountResult(7, None, "lost on its way") if self.fails(batch) else result
            for batch, result in zip(batches, results, strict=True)
        ]


@pytest.fixture(scope="module")
def client() -> Iterator[HashCountClient]:
    with memory_counting() as store, through_grpc(store) as service:
        yield HashCountClient(
            service.channel, run="segments", code_width=2, attempt_seconds=PATIENCE, patience_seconds=PATIENCE
        )


def counted(counts: list[VisitCounts | None]) -> list[list[int] | None]:
    return [None if each is None else each.count_T.tolist() for each in counts]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=5),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_counts_are_those_of_a_dictionary_for_each_episode(
    client: HashCountClient, rates: list[float], steps: int, environments: int, seed: int
) -> None:
    through, naive = Through(client), Naive()
    counter = VisitCounter(through, HASH, environments)
    unrolls = patterns(rates, steps, environments, seed)
    for unroll in unrolls:
        assert counted(counter.count(unroll)) == naive.counts(unroll).tolist()
    assert through.calls == len(unrolls)
    _check_what_was_asked(through.asked, unrolls)


def of_levels(observation_NO: torch.Tensor) -> torch.Tensor:
    """The observation, whether it is the last kind, and nothing at all, as four bytes each; levels have no code in common."""
    level_NL = torch.cat([observation_NO, observation_NO == KINDS - 1, torch.zeros_like(observation_NO)], 1)
    level_NL4 = torch.nn.functional.pad(level_NL.unsqueeze(2), (0, 3))
    level_NL4[:, :, 3] = torch.arange(3)
    return level_NL4.flatten(1).to(torch.uint8)


class Coarser(Naive):
    """The counts of a coarser level."""

    def __init__(self, level: Callable[[int], int]) -> None:
        super().__init__()
        self.level = level

    def counts(self, unroll: Unroll) -> npt.NDArray[np.uint32]:
        coarse = np.vectorize(self.level, otypes=[np.uint8])
        endings = [[e._replace(observation_O=coarse(e.observation_O)) for e in ends] for ends in unroll.endings]
        return super().counts(unroll._replace(observation_TEO=coarse(unroll.observation_TEO), endings=endings))


@pytest.mark.parametrize("seed", range(5))
def test_every_level_is_counted_by_itself_and_coarse_codes_are_told(seed: int) -> None:
    with memory_counting() as store, through_grpc(store) as service:
        client = HashCountClient(service.channel, run="levels", code_width=4, patience_seconds=PATIENCE)
        counter = VisitCounter(client, HashFunction(4, of_levels, levels=3), 3)
        levels: list[Naive] = [Naive(), Coarser(lambda kind: int(kind == KINDS - 1)), Coarser(lambda _: 0)]
        for unroll in patterns([0.3, 0.0, 0.5], 6, 3, seed):
            expected_LET = [level.counts(unroll) for level in levels]
            for e, found in enumerate(counter.count(unroll)):
                assert found is not None
                assert found.coarse_count_TM is not None
                assert found.coarse_code_TM is not None
                assert found.count_T.tolist() == expected_LET[0][e].tolist()
                assert found.coarse_count_TM.T.tolist() == [each[e].tolist() for each in expected_LET[1:]]
                led_to_T = unroll.observation_TEO[1:, e, 0].copy()
                led_to_T[unroll.start_TE[1:, e]] = [ending.observation_O[0] for ending in unroll.endings[e]]
                assert found.coarse_code_TM[:, 0].tolist() == ((led_to_T == KINDS - 1) + (1 << 24)).tolist()
                assert found.coarse_code_TM[:, 1].tolist() == [2 << 24] * len(led_to_T)


def _check_what_was_asked(asked: Sequence[CodeBatch], unrolls: Sequence[Unroll]) -> None:
    """Numbers without gaps; an episode is final exactly at its end; every observation once."""
    by_episode: defaultdict[str, list[CodeBatch]] = defaultdict(list)
    for batch in asked:
        by_episode[batch.episode_id].append(batch)
    for batches in by_episode.values():
        assert [batch.sequence for batch in batches] == list(range(len(batches)))
        assert not any(batch.final for batch in batches[:-1])
    actions = sum(unroll.action_TE.size for unroll in unrolls)
    began = sum(int(unroll.start_TE[:-1].sum()) for unroll in unrolls)
    ended = sum(int(unroll.start_TE[1:].sum()) for unroll in unrolls)
    assert len(by_episode) == began
    assert sum(batch.final for batch in asked) == ended
    assert sum(len(batch.codes) for batch in asked) == actions + began


def test_the_first_observation_is_counted_once_and_the_true_last_one_at_the_end(client: HashCountClient) -> None:
    """By hand: A a return to A in the next unroll; B the terminal observation and not the first of the next episode."""
    start_TE = np.zeros((4, 1), bool)
    start_TE[0] = start_TE[2] = True
    unroll = made(start_TE, np.random.default_rng(0))
    unroll.observation_TEO[:, 0, 0] = [0, 0, 1, 1]
    unroll.endings[0][0].observation_O[0] = 0
    counter = VisitCounter(Through(client), HASH, 1)
    assert counted(counter.count(unroll)) == [[2, 3, 2]]
    following = made(np.zeros((3, 1), bool), np.random.default_rng(0))
    following.observation_TEO[:, 0, 0] = [1, 1, 0]
    assert counted(counter.count(following)) == [[3, 1]]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ([1, 0, 0, 0], [EpisodeSegment(0, 3, fresh=True, final=False)]),
        ([0, 0, 0, 0], [EpisodeSegment(0, 3, fresh=False, final=False)]),
        ([0, 0, 0, 1], [EpisodeSegment(0, 3, fresh=False, final=True)]),
        ([0, 0, 1, 0], [EpisodeSegment(0, 2, fresh=False, final=True), EpisodeSegment(2, 3, fresh=True, final=False)]),
        ([1, 1, 0, 1], [EpisodeSegment(0, 1, fresh=True, final=True), EpisodeSegment(1, 3, fresh=True, final=True)]),
    ],
)
def test_segments_by_hand(start: list[int], expected: list[EpisodeSegment]) -> None:
    assert segments(np.array(start, bool)) == expected


def test_a_lost_answer_leaves_its_environment_uncounted_until_its_next_episode(client: HashCountClient) -> None:
    steps, environments = 4, 3
    random = np.random.default_rng(2)
    starts = np.zeros((5, steps + 1, environments), bool)
    starts[0, 0] = True
    starts[2, 2, 1] = True  # environment 1 ends an episode inside unroll 2, in which it is lost
    starts[3, steps, 2] = True  # environment 2 at the end of unroll 3
    unrolls = in_line([made(each, random) for each in starts])
    naive = Naive()
    expected: list[list[list[int] | None]] = [list(naive.counts(unroll).tolist()) for unroll in unrolls]
    for position, e in ((1, 1), (2, 1), (1, 2), (2, 2), (3, 2)):
        expected[position][e] = None
    through = Through(client)
    counter = VisitCounter(through, HASH, environments)
    for position, unroll in enumerate(unrolls):
        first = len(through.asked)
        lost = [batch.episode_id for batch in through.asked[-2:]] if position == 1 else []
        through.fails = lambda batch, lost=lost: batch.episode_id in lost  # type: ignore[misc]
        assert counted(counter.count(unroll)) == expected[position], position
        # What was lost is not asked about again: the service could only say no.
        assert len(through.asked) - first == [3, 3, 2, 2, 3][position]


def test_nothing_is_asked_when_all_environments_are_lost(client: HashCountClient) -> None:
    starts = np.zeros((4, 3, 2), bool)
    starts[0, 0] = starts[2, 2] = True
    unrolls = in_line([made(each, np.random.default_rng(5)) for each in starts])
    naive = Naive()
    expected = [naive.counts(unroll).tolist() for unroll in unrolls]
    through = Through(client, lambda _: True)
    counter = VisitCounter(through, HASH, 2)
    for unroll in unrolls[:3]:
        assert counted(counter.count(unroll)) == [None, None]
    assert through.calls == 1
    through.fails = lambda _: False
    assert counted(counter.count(unrolls[3])) == expected[3]


def test_a_failure_in_an_episode_that_ends_in_the_unroll_costs_only_this_unroll(client: HashCountClient) -> None:
    starts = np.zeros((2, 4, 1), bool)
    starts[0, 0] = starts[0, 2] = True
    unrolls = in_line([made(each, np.random.default_rng(3)) for each in starts])
    naive = Naive()
    expected = [naive.counts(unroll).tolist() for unroll in unrolls]
    through = Through(client, lambda batch: batch.final)
    counter = VisitCounter(through, HASH, 1)
    assert counted(counter.count(unrolls[0])) == [None]
    assert counted(counter.count(unrolls[1])) == expected[1]


def test_a_service_that_lost_its_tables_marks_exactly_what_it_cannot_know(client: HashCountClient) -> None:
    """Environment 0 is inside an episode when another, empty service takes over; environment 1 begins one."""
    starts = np.zeros((3, 4, 2), bool)
    starts[0, 0] = starts[0, 3, 1] = True
    starts[1, 3, 0] = True
    unrolls = in_line([made(each, np.random.default_rng(4)) for each in starts])
    naive = Naive()
    expected: list[list[list[int] | None]] = [list(naive.counts(unroll).tolist()) for unroll in unrolls]
    expected[1][0] = None
    through = Through(client)
    counter = VisitCounter(through, HASH, 2)
    results = [counted(counter.count(unrolls[0]))]
    with memory_counting() as empty, through_grpc(empty) as service:
        through.client = HashCountClient(
            service.channel, run="segments", code_width=2, attempt_seconds=PATIENCE, patience_seconds=PATIENCE
        )
        results += [counted(counter.count(unroll)) for unroll in unrolls[1:]]
    assert results == expected
