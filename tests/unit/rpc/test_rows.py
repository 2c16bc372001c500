"""The contract of observations that are rows of bytes: their numbers are finite, and actions are allowed by their masks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leco.rpc.codec import (
    CodecError,
    specification_from_message,
    specification_to_message,
    trajectory_from_message,
    trajectory_to_message,
)
from leco.types import EpisodeSummary, RunSpecification, Trajectory, TrajectorySpec

T, A = 4, 3
SPEC = TrajectorySpec(
    unroll_length=T, observation_shape=(6 + 8 + A,), action_count=A, core_state_shape=(2,), numbers=2, masked=True
)


def trajectory() -> Trajectory:
    """Six bytes of an image, two numbers, and a mask that forbids the first action; an episode ends by a limit."""
    row = np.concatenate([np.arange(6, dtype=np.uint8), np.array([0.5, -2], "<f4").view(np.uint8), [0, 1, 1]])
    observation = np.tile(row.astype(np.uint8), (T + 1, 1))
    last = observation[:1].copy()
    last[:, -A:] = 1
    return Trajectory(
        number=1,
        parameters_version=1,
        previous_action=-1,
        previous_reward=0.0,
        observation=observation,
        start=np.array([True, False, True, False, False]),
        terminal_observation=last,
        action=np.array([1, 2, 1, 2], np.int32),
        reward=np.zeros(T, np.float32),
        behaviour_logits=np.zeros((T, A), np.float32),
        core_state=np.zeros(2, np.float32),
        count=None,
        episodes=(EpisodeSummary(0.0, 2, success=False, truncated=True),),
    )


def sent(made: Trajectory, spec: TrajectorySpec = SPEC) -> Trajectory:
    return trajectory_from_message(trajectory_to_message(made), spec)


def test_rows_survive_the_wire() -> None:
    found = sent(trajectory())
    np.testing.assert_array_equal(found.observation, trajectory().observation)
    assert found.episodes == trajectory().episodes
    assert found.episodes[0].truncated


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        (
            "observation",
            (2, slice(6, 10)),
            np.array([math.nan], "<f4").view(np.uint8),
            "the numbers of observation[2, 0] is nan",
        ),
        ("observation", (4, slice(10, 14)), np.array([math.inf], "<f4").view(np.uint8), "observation[4, 1] is inf"),
        (
            "terminal_observation",
            (0, slice(6, 10)),
            np.array([-math.inf], "<f4").view(np.uint8),
            "terminal_observation[0, 0]",
        ),
        ("observation", (1, -1), 2, "the action mask of observation[1, 2] is 2, expected 0 or 1"),
        (
            "observation",
            (4, slice(-A, None)),
            0,
            "the action mask of observation allows nothing, expected at least one action",
        ),
        ("observation", (1, -1), 0, "action[1] is 2, expected one that its action mask allows"),
        ("action", (0,), 0, "action[0] is 0, expected one that its action mask allows"),
    ],
)
def test_what_breaks_the_contract_is_refused_with_the_reason(name: str, index: Any, value: Any, message: str) -> None:
    made = trajectory()
    array = getattr(made, name).copy()
    array[index] = value
    with pytest.raises(CodecError) as caught:
        sent(replace(made, **{name: array}))
    assert message in str(caught.value)


def test_numbers_alone_need_no_mask() -> None:
    spec = replace(SPEC, masked=False, observation_shape=(8,))
    made = trajectory()
    bare = replace(made, observation=made.observation[:, 6:14], terminal_observation=made.terminal_observation[:, 6:14])
    assert sent(bare, spec).observation.shape == (T + 1, 8)


def test_a_specification_says_where_they_are() -> None:
    made = RunSpecification(
        run="r", task="t", method="m", environments=1, code_width=0, configuration_toml="", trajectories=SPEC
    )
    assert specification_from_message(specification_to_message(made)) == made
    with pytest.raises(CodecError, match=r"observation_shape is \[10\], expected one axis of at least 11"):
        specification_to_message(replace(made, trajectories=replace(SPEC, observation_shape=(10,))))
    with pytest.raises(CodecError, match=r"observation_shape is \[7, 7, 3\], expected one axis"):
        specification_to_message(replace(made, trajectories=replace(SPEC, observation_shape=(7, 7, 3))))
