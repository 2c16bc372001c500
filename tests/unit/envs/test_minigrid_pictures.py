"""MiniGrid's views as pictures are those of MiniGrid's own wrapper, to the bit."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from minigrid.wrappers import RGBImgPartialObsWrapper

from leco.envs.minigrid import pictures
from leco.envs.minigrid.compiled import CompiledMiniGrid
from leco.envs.minigrid.reference import ReferenceMiniGrid, make_one
from leco.envs.minigrid.tiles import DrawnMiniGrid, draw_views
from leco.envs.registry import TASKS, find_task, make
from leco.envs.vector import episode_seed
from support.minigrid_player import Restless
from support.minigrid_zoo import open_zoo, pickup_zoo

TASK = "MultiRoom-N2-S4-RGB"


@pytest.mark.parametrize(
    "spec",
    [
        pickup_zoo(see_through=False, view=7),
        pickup_zoo(see_through=True, view=5),
        open_zoo(),
        gymnasium.registry[find_task("ObstructedMaze-Full").id],
        gymnasium.registry[find_task("MultiRoom-N7-S4-NoisyTV").id],
        gymnasium.registry["MiniGrid-LavaGapS7-v0"],
    ],
    ids=["pickup", "see-through", "doors", "maze", "noisy", "lava"],
)
def test_what_is_drawn_is_what_minigrid_draws(spec: Any) -> None:
    """In levels with every object in every state, in hand too."""
    single: Any = RGBImgPartialObsWrapper(make_one(spec))
    drawn, player = DrawnMiniGrid(ReferenceMiniGrid(spec, 1, 3)), Restless(1)
    episode = 0
    shown, (seen, _) = drawn.reset()[0], single.reset(seed=episode_seed(3, 0, 0))
    assert drawn.observation_shape == shown.shape == single.observation_space["image"].shape
    for _ in range(250):
        np.testing.assert_array_equal(shown, seen["image"], strict=True)
        action = player(single.unwrapped)
        steps, (seen, _, terminated, truncated, _) = drawn.step([action]), single.step(action)
        shown = steps.observation_EO[0]
        assert steps.done_E[0] == (terminated or truncated)
        if steps.done_E[0]:
            np.testing.assert_array_equal(steps.terminal_observation_FO, seen["image"][None], strict=True)
            episode += 1
            seen, _ = single.reset(seed=episode_seed(3, 0, episode))


def test_all_environments_are_drawn_and_keep_their_views() -> None:
    drawn, cells = make(TASK, 3, 1), make("MultiRoom-N2-S4", 3, 1)
    assert isinstance(drawn, DrawnMiniGrid)
    assert isinstance(drawn._env, CompiledMiniGrid)
    np.testing.assert_array_equal(drawn.reset(), draw_views(cells.reset()))
    random = np.random.default_rng(0)
    for _ in range(90):
        action_E = random.integers(0, 7, 3)
        got, expected = drawn.step(action_E), cells.step(action_E)
        np.testing.assert_array_equal(drawn.view_EO, expected.observation_EO)
        np.testing.assert_array_equal(got.observation_EO, draw_views(expected.observation_EO))
        np.testing.assert_array_equal(got.terminal_observation_FO, draw_views(expected.terminal_observation_FO))
        for name in ("reward_E", "done_E", "success_E"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    assert len(got.observation_EO) == 3
    assert drawn.num_actions == cells.num_actions
    drawn.close()
    with pytest.raises(RuntimeError):
        drawn.step([0, 0, 0])


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.family == "minigrid"])
def test_every_task_of_minigrid_can_be_seen_as_a_picture(name: str) -> None:
    task, cells = find_task(name + pictures.SUFFIX), TASKS[name]
    assert (task.observation_shape, task.name) == ((56, 56, 3), name + "-RGB")
    assert (task.max_steps, task.gamma, task.num_actions) == (cells.max_steps, cells.gamma, cells.num_actions)
    assert find_task(task.id) == task


def test_so_can_any_other_that_minigrid_registers() -> None:
    task = find_task("MiniGrid-LavaGapS7-v0-RGB")
    assert make(task, 2, 0).reset().shape == (2, 56, 56, 3)
    for wrong in ("KeyCorridorS3R4-RGB", "KeyCorridorS3R3-rgb"):
        with pytest.raises(ValueError, match="did you mean 'KeyCorridorS3R3-RGB'"):
            find_task(wrong)
    with pytest.raises(ValueError, match="there is no task 'MiniGrid-LavaGapS99-v0-RGB'; did you mean 'MiniGrid-Lava"):
        find_task("MiniGrid-LavaGapS99-v0-RGB")


def test_episodes_can_be_played_again() -> None:
    task = find_task(TASK)
    found = pictures.replayer(task).play(episode_seed(5, 0, 0), [1] * task.max_steps)
    assert (np.diff(found[2]) % 4 == 1).all()  # directions
