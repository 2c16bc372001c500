"""Tests of episodes that their environment draws."""

from __future__ import annotations

import gymnasium
import numpy as np

from leco.envs.gymnasium.environment import LARGEST_SEED
from leco.envs.gymnasium.painting import LONGEST_SIDE, paint
from leco.envs.registry import find_task

LEVEL = 2**40 + 7


def test_pictures_are_those_of_the_level_and_the_actions() -> None:
    actions = [0, 1, 1]
    pictures = paint(find_task("CartPole-v1"), LEVEL, actions)
    assert pictures is not None
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=LEVEL % LARGEST_SEED)
    for t, picture in enumerate(pictures):
        every = np.asarray(env.render())
        assert max(picture.shape) <= LONGEST_SIDE < max(every.shape)
        np.testing.assert_array_equal(picture, every[::2, ::2])
        if t < len(actions):
            env.step(actions[t])
    env.close()
    assert len(pictures) == 4


def test_an_environment_that_does_not_draw_itself_has_none() -> None:
    assert paint(find_task("support.own_envs:Ladder-v0"), LEVEL, [0]) is None
