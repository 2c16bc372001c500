"""A batch is its trajectories side by side, time first."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from leco.learning.state import init
from leco.learning.update import update
from leco.methods.table import find_method
from leco.types import EpisodeSummary
from services.learner.batching import make_batch
from support.learner_parts import A, T, networks, trajectory
from support.training_case import paper_config

CPU = torch.device("cpu")
FIELDS = {
    "observation_TBO": "observation",
    "start_TB": "start",
    "action_TB": "action",
    "reward_TB": "reward",
    "behaviour_logits_TBA": "behaviour_logits",
    "count_TB": "count",
}


def test_each_column_is_a_trajectory() -> None:
    trajectories = [trajectory(number) for number in range(1, 5)]
    batch = make_batch(trajectories, CPU, max_steps=9)
    for b, each in enumerate(trajectories):
        for column, name in FIELDS.items():
            tensor, array = getattr(batch, column), getattr(each, name)
            assert tensor[:, b].shape == array.shape
            for t in range(len(array)):
                assert np.array_equal(tensor[t, b].numpy(), array[t]), (column, t)
        assert batch.previous_action_B[b] == each.previous_action
        assert batch.previous_reward_B[b] == np.float32(each.previous_reward)
        assert np.array_equal(batch.core_state[:, :, b].numpy(), each.core_state)
    assert batch.start_TB.shape == (T + 1, 4)
    assert batch.behaviour_logits_TBA.shape == (T, 4, A)
    assert batch.core_state.shape == (1, 2, 4, 256)


def test_types_are_those_that_an_update_takes() -> None:
    batch = make_batch([trajectory(1), trajectory(2)], CPU, max_steps=9)
    assert batch.observation_TBO.dtype == torch.uint8
    assert batch.start_TB.dtype == torch.bool
    assert batch.previous_reward_B.dtype == batch.reward_TB.dtype == batch.core_state.dtype == torch.float32
    assert batch.count_TB is not None
    assert batch.count_TB.dtype == torch.int64
    after, _ = update(networks(), init(networks()), batch, find_method("no-int"), paper_config())
    assert after.updates == 1


@pytest.mark.parametrize("counted", [(False, False), (True, False), (False, True)])
def test_counts_are_there_only_if_every_trajectory_has_them(counted: tuple[bool, ...]) -> None:
    batch = make_batch([trajectory(number, counted=each) for number, each in enumerate(counted, 1)], CPU, max_steps=9)
    assert batch.count_TB is None


def test_last_observations_are_by_time_and_then_by_trajectory() -> None:
    several = [trajectory(number) for number in range(1, 9)]
    batch = make_batch(several, CPU, max_steps=9)
    assert batch.terminal_observation_FO is not None
    left = [list(each.terminal_observation) for each in several]
    ends = batch.start_TB[1:].nonzero().tolist()
    assert len({t for t, _ in ends}) > 1
    assert len(batch.terminal_observation_FO) == len(ends)
    for found, (_, b) in zip(batch.terminal_observation_FO, ends, strict=True):
        assert np.array_equal(found.numpy(), left[b].pop(0))


def test_an_episode_was_cut_off_if_its_time_was_over_and_it_was_not_solved() -> None:
    one, two = trajectory(1), trajectory(2)
    start = np.zeros(T + 1, bool)
    start[[0, 1, 2, T]] = True
    ends = [(9, True), (8, False), (9, False)]  # solved in the last moment, failed before it, cut off
    episodes = tuple(EpisodeSummary(0.0, length, success=success) for length, success in ends)
    one = dataclasses.replace(one, start=start, episodes=episodes)
    two = dataclasses.replace(two, start=np.zeros(T + 1, bool), episodes=())
    batch = make_batch([one, two], CPU, max_steps=9)
    assert batch.truncated_TB is not None
    assert batch.truncated_TB.nonzero().tolist() == [[T - 1, 0]]
    assert one.start[1], "the trajectory itself is not changed"


def test_an_episode_whose_simulator_failed_was_cut_off() -> None:
    one = trajectory(1)
    failed = dataclasses.replace(one.episodes[0], success=False, dropped=True)
    batch = make_batch([dataclasses.replace(one, episodes=(failed, *one.episodes[1:]))], CPU, max_steps=9)
    assert batch.truncated_TB is not None
    assert batch.truncated_TB.nonzero().tolist() == [[int(np.flatnonzero(one.start[1:])[0]), 0]]
