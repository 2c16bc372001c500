"""Tests of how actions of any space are numbered, and which of them may be taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from leco.envs.gymnasium.actions import Actions


@pytest.mark.parametrize(
    ("space", "every"),
    [
        (spaces.Discrete(3), [0, 1, 2]),
        (spaces.Discrete(3, start=-1), [-1, 0, 1]),
        (spaces.MultiDiscrete([2, 3]), [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]),
        (spaces.MultiBinary(2), [[0, 0], [0, 1], [1, 0], [1, 1]]),
    ],
)
def test_numbers_are_the_actions_in_order(space: Any, every: list[Any]) -> None:
    actions = Actions(space)
    found = [actions.decode(number) for number in range(actions.count)]
    assert [np.asarray(each).tolist() for each in found] == every
    assert all(each in space for each in found)


def test_a_mask_has_a_bit_for_each_action_or_for_each_choice_of_each_part() -> None:
    assert Actions(spaces.Discrete(3)).mask([1, 0, 1]).tolist() == [True, False, True]
    actions = Actions(spaces.MultiDiscrete([2, 3]))
    assert actions.mask([0, 1, 1, 0, 1]).tolist() == [False, False, False, True, False, True]
    assert actions.mask([0, 0, 0, 0, 0, 1]).tolist() == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("given", "message"), [([1, 1], "has 2 elements, expected 3"), ([0, 0, 0], "forbids every action")]
)
def test_an_impossible_mask_is_refused(given: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Actions(spaces.Discrete(3)).mask(given)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-1, 1, (2,)), "its actions are continuous, and leco learns to choose one of finitely many"),
        (spaces.Text(3), "its actions are of the space Text"),
        (spaces.MultiDiscrete([30, 30]), r"has 900 actions \(30 x 30\), and at most 512 can be learned"),
    ],
)
def test_too_many_actions_are_refused_in_a_sentence(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Actions(space)
