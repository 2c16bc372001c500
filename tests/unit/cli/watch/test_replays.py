"""What the page is told of an episode."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from leco.cli.watch.pictures import different_moments, first_views, without_surroundings
from leco.cli.watch.replays import document
from leco.evaluation.recording import Episode, Metadata

WALL = 2
FACTS = Metadata(
    run="run",
    task="Empty-5x5",
    method="leco",
    actions=("left", "right", "forward"),
    updates=10,
    frames=15_360,
    checkpoint="newest",
    seed=3,
    greedy=False,
    alpha=0.01,
    lambda_=0.5,
    leco="0.1.0",
)


def episode() -> Episode:
    """Walks on, turns right, turns left, walks on: the fourth moment is the second again."""
    grid = np.ones((1, 9, 9, 3), np.uint8)
    grid[0, [2, 6], 3:7] = grid[0, 2:7, [3, 6]] = (WALL, 5, 0)
    return Episode(
        level=1,
        solved=True,
        action_T=np.array([2, 1, 0, 2], np.int16),
        r_e_T=np.array([0, 0, 0, 0.9], np.float32),
        r_ep_T=np.array([1, 1, 0.707107, 1], np.float32),
        r_ta_T=np.array([0, 0.1, np.nan, 0.3], np.float32),
        r_i_T=np.zeros(4, np.float32),
        observation_TO=np.zeros((5, 7, 7, 3), np.uint8),
        code_TW=np.array([[1, 255], [2, 0], [3, 0], [2, 0], [4, 0]], np.uint8),
        count_T=np.array([1, 1, 1, 2, 1], np.uint32),
        x_T=np.array([3, 4, 4, 4, 5], np.int16),
        y_T=np.array([4, 4, 4, 4, 4], np.int16),
        direction_T=np.array([0, 0, 1, 0, 0], np.int8),
        scene_T=np.zeros(5, np.int32),
        grid_GXY=grid,
    )


def test_an_episode_with_its_rewards_codes_counts_and_pictures() -> None:
    found = document("abc", FACTS, episode())
    assert (found["id"], found["steps"], found["solved"], found["score"], found["frames"]) == (
        "abc",
        4,
        True,
        0.9,
        15_360,
    )
    assert found["action"] == ["forward", "right", "left", "forward"]
    assert found["r_e"] == [0, 0, 0, 0.9]
    assert found["r_ep"] == [1, 1, 0.707107, 1]
    assert found["r_ta"] == [0, 0.1, None, 0.3]
    assert found["codes"] == ["01ff", "0200", "0300", "0400"]
    assert found["code"] == [0, 1, 2, 1, 3]
    assert found["count"] == [1, 1, 1, 2, 1]
    assert found["picture"] == [0, 1, 2, 1, 3]
    assert found["view"] == [4, 5, 6, 7]  # after the moments
    assert (found["x"], found["direction"]) == ([3, 4, 4, 4, 5], [0, 0, 1, 0, 0])
    assert different_moments(episode()).first_P == [0, 1, 2, 4]
    assert first_views(episode()) == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("method", "there"), [("no-int", set()), ("rnd", {"r_ep"}), ("vq-only", {"r_ep", "codes"}), ("lirpg", {"r_ta"})]
)
def test_what_a_method_does_not_have_is_not_shown(method: str, there: set[str]) -> None:
    found = document("abc", dataclasses.replace(FACTS, method=method), episode())
    assert {"r_ep", "r_ta", "codes"} & found.keys() == there


def test_where_there_is_no_grid_each_moment_has_its_picture() -> None:
    without = episode()._replace(
        x_T=np.full(5, -1, np.int16),
        y_T=np.full(5, -1, np.int16),
        direction_T=np.full(5, -1, np.int8),
        scene_T=np.full(5, -1, np.int32),
        grid_GXY=np.zeros((0, 0, 0, 3), np.uint8),
    )
    found = document("abc", dataclasses.replace(FACTS, task="vizdoom-my-way-home"), without)
    assert found["picture"] == [0, 1, 2, 3, 4]
    assert "x" not in found
    assert without_surroundings(without) is without


def test_the_empty_surroundings_of_a_level_are_cut_off() -> None:
    inner = without_surroundings(episode())
    assert inner.grid_GXY.shape == (1, 5, 4, 3)
    assert (inner.x_T.tolist(), inner.y_T.tolist()) == ([1, 2, 2, 2, 3], [1] * 5)
    assert (inner.grid_GXY[0, [0, -1], :, 0] == WALL).all()
