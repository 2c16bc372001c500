"""Tests of vectors of Gymnasium's environments, against a plain loop."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest

from leco.envs.gymnasium.environment import LARGEST_SEED
from leco.envs.registry import find_task, make
from leco.envs.task import EnvironmentConfig
from leco.envs.vector import episode_seed, truncated_now

ENVS, STEPS, SEED = 3, 40, 5
PROCESSES: tuple[Any, ...] = ("never", "always")


def own(name: str, **given: Any) -> Any:
    return find_task(f"support.own_envs:{name}", EnvironmentConfig(**given))


@pytest.mark.parametrize("processes", PROCESSES)
def test_it_does_what_a_plain_loop_does(processes: Any) -> None:
    task = own("Counting-v0", processes=processes)
    singles: list[Any] = [gymnasium.make("Counting-v0", disable_env_checker=True) for _ in range(ENVS)]
    episode_E = [0] * ENVS

    def begin(e: int) -> Any:
        return singles[e].reset(seed=episode_seed(SEED, e, episode_E[e]) % LARGEST_SEED)[0]

    def numbers(raw: Any) -> list[float]:  # symlog, since bounds 2 ** 40 apart say nothing
        return np.log1p(raw).astype(np.float32).tolist()

    actions = np.random.default_rng(0).integers(0, 3, (STEPS, ENVS))
    with closing(make(task, ENVS, SEED)) as env:
        first_EO = env.reset()
        assert first_EO.view("<f4").tolist() == [numbers(begin(e)) for e in range(ENVS)]
        ends = set()
        for action_E in actions:
            steps = env.step(action_E)
            truncated_E = truncated_now(env)
            last = []
            for e in range(ENVS):
                raw, reward, terminated, truncated, info = singles[e].step(int(action_E[e]) + 1)
                done = terminated or truncated
                assert (steps.reward_E[e], steps.done_E[e], truncated_E[e]) == (reward, done, truncated)
                assert steps.success_E[e] == (done and info["success"])
                if done:
                    ends.add((terminated, truncated))
                    last.append(numbers(raw))
                    episode_E[e] += 1
                    raw = begin(e)
                assert steps.observation_EO[e].view("<f4").tolist() == numbers(raw)
            assert steps.terminal_observation_FO.view("<f4").tolist() == last
        assert ends == {(True, False), (False, True)}


@pytest.mark.parametrize("processes", PROCESSES)
def test_masks_are_those_of_the_moment_and_all_is_allowed_after_the_end(processes: Any) -> None:
    task = own("Ladder-v0", processes=processes)
    assert (task.num_actions, task.layout.actions, task.layout.numbers, task.solvable) == (6, 6, 15, True)
    with closing(make(task, 2, 0)) as env:
        seen_EO = env.reset()
        solved = 0
        for _ in range(25):
            mask_EA = seen_EO[:, -6:]
            np.testing.assert_array_equal(mask_EA[:, :3], seen_EO[:, :-6].copy().view("<f4")[:, :3])  # the free hand
            steps = env.step(mask_EA.argmax(1))
            assert (steps.terminal_observation_FO[:, -6:] == 1).all()
            solved += int(steps.success_E.sum())
            seen_EO = steps.observation_EO
        assert solved == 4


def test_a_failure_of_an_environment_says_what_it_was() -> None:
    with closing(make(own("Counting-v0", kwargs={"bad_after": 2}, processes="never"), 2, 0)) as env:
        env.reset()
        env.step([0, 0])
        with pytest.raises(ValueError, match="gave the reward nan, expected a finite number"):
            env.step([0, 0])


def test_another_environment_than_the_runs_is_refused() -> None:
    task = own("Radar-v0")
    known = EnvironmentConfig(family="gymnasium", image=(16, 16, 3), numbers=2, num_actions=5, wrappers=())
    with pytest.raises(ValueError, match=r"had .* when the run began"):
        make(find_task(task.name, known), 1, 0)
