"""What leco's rivals share, and the numbers of the recurrent PPO that is written here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import minigrid  # noqa: F401  # it registers its tasks
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from minigrid.wrappers import ImgObsWrapper
from rivals.count_bonus import STEPS, CountBonus
from rivals.envpool_ppo import GAMMA, Policy, Rollout, advantages
from rivals.network import OneHotCells
from rivals.successes import Successes

from leco.models.kinds.minigrid import OneHotCells as OneHotCellsOfLeco
from leco.report.metrics import read_table, when_reached
from leco.rewards import EpisodicCount

if TYPE_CHECKING:
    from pathlib import Path


def test_the_count_pays_what_lecos_pays() -> None:
    made = gymnasium.make_vec(
        "MiniGrid-DoorKey-5x5-v0",
        4,
        "sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        wrappers=[lambda env: ImgObsWrapper(gymnasium.wrappers.TimeLimit(env, 40))],
    )
    envs = EpisodicCount(made, hash="exact", worth="first-visit", alpha=0.02)
    bonus, rng = CountBonus(4, alpha=0.02), np.random.default_rng(0)
    observation = envs.reset(seed=1)[0]
    for e in range(4):
        bonus.begin(e, observation[e])
    paid_TE, expected_TE = [], []
    for _ in range(3 * STEPS + 10):
        observation, _, terminated, truncated, info = envs.step(rng.integers(0, 7, 4))
        done = terminated | truncated
        paid_TE.append([bonus.add(e, info["final_obs"][e] if done[e] else observation[e]) for e in range(4)])
        expected_TE.append(info["bonus"])
        for ended in np.flatnonzero(done).tolist():
            bonus.begin(ended, observation[ended])
    envs.close()
    np.testing.assert_allclose(paid_TE, expected_TE, atol=1e-7)
    assert (
        len(np.unique(np.round(paid_TE, 6))) == 7
    )  # nothing at first; then one price each for old and new, three times


def test_cells_as_categories_are_lecos() -> None:
    observation = np.random.default_rng(0).integers(0, (11, 6, 4), (5, 7, 7, 3))
    given = torch.from_numpy(observation)
    expected = OneHotCellsOfLeco()(given.permute(0, 3, 1, 2).float())
    torch.testing.assert_close(OneHotCells()(given), expected)


def test_the_file_says_when_ninety_of_the_last_hundred_were_solved(tmp_path: Path) -> None:
    successes = Successes(tmp_path / "metrics.csv")
    for episode in range(150):
        successes.ended(solved=episode >= 50)
        successes.write(10 * episode)
    found = when_reached(read_table(tmp_path / "metrics.csv"))
    assert found is not None
    assert found.frames == 1390
    assert found.success == pytest.approx(0.9)


def rollout(**given: Any) -> Rollout:
    steps = len(given["reward"])
    empty = torch.zeros(steps, 1)
    fields = dict.fromkeys(Rollout._fields, empty) | {name: empty.bool() for name in ("terminated", "done")}
    return Rollout(**{**fields, **{name: torch.tensor(value).unsqueeze(1) for name, value in given.items()}})


def test_advantages_end_with_episodes_and_a_time_limit_is_no_end_of_the_value() -> None:
    value = [1.0, 2.0, 3.0, 4.0]
    reward = [0.5, 0.25, 0.0]
    ends = [False, True, False]
    solved = advantages(rollout(reward=reward, value=value, terminated=ends, done=ends), 0.5)
    late = advantages(rollout(reward=reward, value=value, done=ends), 0.5)
    first = 0.5 + GAMMA * 2.0 - 1.0
    assert solved[:2, 0].tolist() == pytest.approx([first + GAMMA * 0.5 * (0.25 - 2.0), 0.25 - 2.0])
    cut = 0.25 + GAMMA * 3.0 - 2.0
    assert late[:2, 0].tolist() == pytest.approx([first + GAMMA * 0.5 * cut, cut])


def test_a_policy_forgets_where_an_episode_begins() -> None:
    torch.manual_seed(0)
    policy = Policy()
    observation = torch.randint(0, 4, (3, 1, 7, 7, 3))
    state = torch.zeros(1, 64), torch.zeros(1, 64)
    starts = torch.tensor([[True], [False], [True]])
    logits, value, *_ = policy(observation, starts, *state)
    alone = policy(observation[2:], starts[2:], *state)
    torch.testing.assert_close(logits[2], alone[0][0])
    torch.testing.assert_close(value[2], alone[1][0])
    kept, *_ = policy(observation, torch.tensor([[True], [False], [False]]), *state)
    assert (kept[2] - logits[2]).abs().max() > 1e-5
