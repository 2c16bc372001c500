"""From unrolls to trajectories: in order, numbered, one unroll at a time, and errors where they are seen."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from leco.rpc.learner_client import Rejected
from leco.telemetry.tracing import UnrollTrace
from leco.types import EpisodeSummary
from services.actor.metrics import ActorMetrics
from services.actor.rollout import Ending, Unroll
from services.actor.sender import PendingUnroll, Sender
from services.actor.visit_counter import VisitCounts
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from leco.learning.state import Params
    from leco.types import Trajectory

T, E, A = 3, 2, 4


def made(seed: int = 0) -> Unroll:
    """An unroll of random numbers, in which the episodes of environment 1 end in steps 0 and 2."""
    random = np.random.default_rng(seed)
    start_TE = np.zeros((T + 1, E), bool)
    start_TE[1, 1] = start_TE[3, 1] = True
    endings = [
        Ending(t, random.integers(9, size=5).astype(np.uint8), EpisodeSummary(t, t + 1, success=t == 2)) for t in (0, 2)
    ]
    return Unroll(
        observation_TEO=random.integers(255, size=(T + 1, E, 5)).astype(np.uint8),
        start_TE=start_TE,
        action_TE=random.integers(A, size=(T, E)).astype(np.int32),
        reward_TE=random.random((T, E)).astype(np.float32),
        logits_TEA=random.random((T, E, A)).astype(np.float32),
        previous_action_E=np.array([2, -1], np.int32),
        previous_reward_E=np.array([0.5, 0], np.float32),
        core_LCEH=random.random((1, 2, E, 6)).astype(np.float32),
        endings=[[], endings],
    )


class Learner:
    """Stands for the client, to hold it up and to let it fail."""

    def __init__(self) -> None:
        self.pushed: list[Trajectory] = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.failure: Exception | None = None
        self.waited = 0.0  # what it says of each push

    def push(self, trajectory: Trajectory) -> float:
        self.entered.set()
        assert self.open.wait(PATIENCE)
        if self.failure is not None:
            raise self.failure
        self.pushed.append(trajectory)
        return self.waited

    def drain(self, _timeout: float | None) -> int:
        return 0


class Case:
    def __init__(self, count: Callable[[Unroll], Any] | None = None) -> None:
        self.learner, self.registry = Learner(), CollectorRegistry()
        self.loaded: list[tuple[int, Params]] = []
        counter: Any = None if count is None else SimpleNamespace(count=count, load_hash=self._load_hash)
        self.sender = Sender(self.learner, counter, ActorMetrics(self.registry))  # type: ignore[arg-type]

    def _load_hash(self, version: int, tensors: Params) -> None:
        self.loaded.append((version, tensors))

    def send(self, unroll: Unroll, version: int = 1, intrinsic: Params | None = None) -> None:
        self.sender.send(PendingUnroll(unroll, version, intrinsic or {}, UnrollTrace()))

    @property
    def pushing(self) -> float:
        return self.registry.get_sample_value("leco_actor_time_seconds_total", {"activity": "pushing"}) or 0.0

    @property
    def uncounted(self) -> float | None:
        return self.registry.get_sample_value("leco_actor_uncounted_trajectories_total")


def test_each_environment_is_a_trajectory_and_they_are_numbered_in_order() -> None:
    coarse_T1 = np.ones((3, 1), np.uint32)
    counts = [
        VisitCounts(np.array([1, 2, 3], np.uint32)),
        VisitCounts(np.array([4, 5, 6], np.uint32), coarse_T1, 7 * coarse_T1),
    ]
    case, unrolls = Case(lambda _: counts), [made(seed) for seed in range(3)]
    for version, unroll in enumerate(unrolls, 5):
        case.send(unroll, version)
    case.sender.finish()
    pushed = case.learner.pushed
    assert [each.number for each in pushed] == [1, 2, 3, 4, 5, 6]
    assert [each.parameters_version for each in pushed] == [5, 5, 6, 6, 7, 7]
    for i, trajectory in enumerate(pushed):
        unroll, e = unrolls[i // E], i % E
        assert (trajectory.observation == unroll.observation_TEO[:, e]).all()
        assert (trajectory.start == unroll.start_TE[:, e]).all()
        assert (trajectory.action == unroll.action_TE[:, e]).all()
        assert (trajectory.reward == unroll.reward_TE[:, e]).all()
        assert (trajectory.behaviour_logits == unroll.logits_TEA[:, e]).all()
        assert (trajectory.core_state == unroll.core_LCEH[:, :, e]).all()
        assert (trajectory.previous_action, trajectory.previous_reward) == ((2, 0.5), (-1, 0.0))[e]
        found = (trajectory.count, trajectory.coarse_count, trajectory.coarse_code)
        assert all(one is other for one, other in zip(found, counts[e], strict=True))
    assert pushed[0].terminal_observation.shape == (0, 5)
    assert pushed[0].episodes == ()
    assert (pushed[1].terminal_observation == np.stack([x.observation_O for x in unrolls[0].endings[1]])).all()
    assert [each.length for each in pushed[1].episodes] == [1, 3]
    assert case.uncounted == 0


def test_what_could_not_be_counted_is_sent_without_counts_and_noted() -> None:
    case = Case(lambda _: [None, VisitCounts(np.array([1, 2, 3], np.uint32))])
    case.send(made())
    case.sender.finish()
    assert [each.count is None for each in case.learner.pushed] == [True, False]
    assert case.uncounted == 1


def test_a_method_that_counts_nothing_sends_no_counts_which_is_no_failure() -> None:
    case = Case()
    case.send(made())
    case.sender.finish()
    assert [each.count for each in case.learner.pushed] == [None, None]
    assert case.uncounted == 0


def test_the_hash_is_made_ready_before_an_unroll_is_counted() -> None:
    events: list[str] = []
    counted = VisitCounts(np.ones(T, np.uint32))

    def count(_unroll: Unroll) -> list[Any]:
        events.append(f"count after {case.loaded[-1]}")
        return [counted, counted]

    case = Case(count)
    for version in (1, 2):
        case.send(made(), version, {"codebook": torch.tensor(version)})
    case.sender.finish()
    assert events == [f"count after {(v, {'codebook': torch.tensor(v)})}" for v in (1, 2)]


def test_one_unroll_is_sent_and_none_waits() -> None:
    case = Case()
    case.learner.open.clear()
    case.send(made(1))  # returns at once
    assert case.learner.entered.wait(PATIENCE)
    second = threading.Thread(target=case.send, args=(made(2), 2))
    second.start()
    second.join(0.2)
    assert second.is_alive(), "the second was taken while the first was being sent"
    assert case.learner.pushed == []
    case.learner.open.set()
    second.join(PATIENCE)
    assert not second.is_alive()
    case.sender.finish()
    assert [each.parameters_version for each in case.learner.pushed] == [1, 1, 2, 2]


def test_a_learner_that_lets_an_unroll_wait_is_noticed() -> None:
    """By what the client says of its waiting, which leaves out the time in which it packs."""
    case = Case()
    told = []
    for waited in (0.0, 1000.0, 0.0):
        case.learner.waited = waited
        case.send(made())
        case.sender.wait_until_sent()
        told.append((case.sender.backpressured, case.pushing >= 1000 * E))
    case.sender.finish()
    assert told == [(False, False), (True, True), (False, True)]


@pytest.mark.parametrize("where", ["send", "wait_until_sent", "finish"])
def test_what_the_learner_refuses_is_raised_where_the_actor_sees_it(where: str) -> None:
    case = Case()
    case.learner.failure = Rejected("no")
    case.send(made())
    with pytest.raises(Rejected, match="no"):
        {"send": lambda: case.send(made()), "finish": case.sender.finish}.get(where, case.sender.wait_until_sent)()
    until(lambda: not case.sender._thread.is_alive())
    assert case.learner.pushed == []


def test_a_failure_of_counting_is_raised_too_and_nothing_is_sent() -> None:
    def count(_unroll: Unroll) -> list[Any]:
        raise RuntimeError("no counts")

    case = Case(count)
    case.send(made())
    with pytest.raises(RuntimeError, match="no counts"):
        case.sender.finish()
    assert case.learner.pushed == []


def test_finish_waits_for_what_is_being_sent_and_ends_the_thread() -> None:
    case = Case()
    case.learner.open.clear()
    case.send(made())
    threading.Timer(0.1, case.learner.open.set).start()
    case.sender.finish()
    assert len(case.learner.pushed) == E
    assert not case.sender._thread.is_alive()
