"""What every environment of leco does. An implementation passes by naming itself: see the classes at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest

from leco.envs.gymnasium.environment import LARGEST_SEED
from leco.envs.minigrid import noisy_tv
from leco.envs.minigrid.compiled import CompiledMiniGrid
from leco.envs.minigrid.reference import ReferenceMiniGrid, make_one
from leco.envs.registry import find_task, make
from leco.envs.task import EnvironmentConfig
from leco.envs.vector import episode_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gymnasium.envs.registration import EnvSpec

    from leco.envs.vector import VectorEnv

EMPTY = "MiniGrid-Empty-5x5-v0"  # the agent begins in the corner, always
IDLE = 6
SOLUTION = (2, 2, 1, 2, 2)


class Contract:
    """Of a task of which every level is different, and that the actions 0, 1 and 2 do not solve; and of EMPTY."""

    implementation: Callable[[EnvSpec, int, int], VectorEnv]
    rooms = "MiniGrid-MultiRoom-N2-S4-v0"
    most = 40  # steps of an episode
    change = 1  # an action that changes what is seen, or may
    various = 2  # a seed of which the first levels all look different

    @staticmethod
    def level(seed: int, environment: int, episode: int) -> int:
        """The seed that MiniGrid makes the level of an episode from."""
        return episode_seed(seed, environment, episode)

    def make(self, task_id: str, environments: int, seed: int = 0) -> VectorEnv:
        return type(self).implementation(gymnasium.registry[task_id], environments, seed)

    def test_says_what_it_is(self) -> None:
        env = self.make(self.rooms, 3)
        assert (env.observation_shape, env.num_actions, env.num_envs) == ((7, 7, 3), 7, 3)

    def test_gives_the_shapes_and_types_that_it_promises(self) -> None:
        env = self.make(self.rooms, 3)
        first = env.reset()
        steps = env.step([2, 2, 2])
        assert [(str(a.dtype), a.shape) for a in (first, *steps)] == [
            ("uint8", (3, 7, 7, 3)),
            ("uint8", (3, 7, 7, 3)),
            ("float32", (3,)),
            ("bool", (3,)),
            ("bool", (3,)),
            ("uint8", (0, 7, 7, 3)),
        ]

    def test_a_solved_episode(self) -> None:
        env = self.make(EMPTY, 1)
        first = env.reset()
        for t, action in enumerate(SOLUTION):
            steps = env.step([action])
            solved = t == 4
            assert steps.done_E.tolist() == steps.success_E.tolist() == [solved]
            assert steps.reward_E.tolist() == [np.float32(1 - 0.9 * (5 / 100)) if solved else 0]
        np.testing.assert_array_equal(steps.observation_EO, first)  # the next episode begins in the same corner
        # It ended on the goal in the lower right corner, looking down: a wall ahead and one on the right, which is on the left
        # of the view; the agent's own cell shows an empty hand.
        assert steps.terminal_observation_FO.shape == (1, 7, 7, 3)
        assert steps.terminal_observation_FO[0, 3, 6].tolist() == [1, 0, 0]
        assert steps.terminal_observation_FO[0, 3, 5].tolist() == [2, 5, 0]
        assert steps.terminal_observation_FO[0, 4, 6].tolist() == [1, 0, 0]
        assert steps.terminal_observation_FO[0, 2, 6].tolist() == [2, 5, 0]

    def test_time_runs_out_without_success(self) -> None:
        env = self.make(EMPTY, 2)
        first = env.reset()
        for _ in range(99):
            assert not env.step([IDLE, IDLE]).done_E.any()
        steps = env.step([IDLE, 1])
        assert steps.done_E.tolist() == [True, True]
        assert steps.success_E.tolist() == [False, False]
        assert steps.reward_E.tolist() == [0, 0]
        np.testing.assert_array_equal(steps.terminal_observation_FO[0], first[0])
        assert (steps.terminal_observation_FO[1] != first[1]).any()  # it had turned
        np.testing.assert_array_equal(steps.observation_EO, first)

    def test_a_task_solved_in_its_last_step_is_solved(self) -> None:
        env = self.make(EMPTY, 1)
        env.reset()
        for action in (*[IDLE] * 95, *SOLUTION):
            steps = env.step([action])
        assert steps.done_E.tolist() == steps.success_E.tolist() == [True]
        assert steps.reward_E.tolist() == [np.float32(1 - 0.9)]

    def test_an_episode_ends_by_itself_and_counts_its_own_time(self) -> None:
        env = self.make(EMPTY, 3)
        first = env.reset()
        for action in SOLUTION:
            steps = env.step([IDLE, action, IDLE])
        assert steps.done_E.tolist() == [False, True, False]
        assert len(steps.terminal_observation_FO) == 1
        np.testing.assert_array_equal(steps.observation_EO, first)
        for _ in range(94):
            assert not env.step([IDLE] * 3).done_E.any()
        assert env.step([IDLE] * 3).done_E.tolist() == [True, False, True]
        for _ in range(4):
            assert not env.step([IDLE] * 3).done_E.any()
        assert env.step([IDLE] * 3).done_E.tolist() == [False, True, False]

    def test_terminal_observations_are_those_of_minigrid(self) -> None:
        env = self.make(self.rooms, 3, seed=4)
        action_TE = np.random.default_rng(0).choice([0, 1, 2, self.change], (self.most, 3))
        env.reset()
        singles: list[Any] = [make_one(gymnasium.registry[self.rooms]) for _ in range(3)]
        for e, single in enumerate(singles):
            single.reset(seed=self.level(4, e, 0))
        for action_E in action_TE:
            steps = env.step(action_E)
            last = [single.step(int(action))[0]["image"] for single, action in zip(singles, action_E, strict=True)]
        assert steps.done_E.all()
        np.testing.assert_array_equal(steps.terminal_observation_FO, last)
        for e, single in enumerate(singles):
            np.testing.assert_array_equal(steps.observation_EO[e], single.reset(seed=self.level(4, e, 1))[0]["image"])

    def test_episodes_depend_on_seed_environment_and_number_alone(self) -> None:
        many, one = self.make(self.rooms, 4, seed=self.various), self.make(self.rooms, 1, seed=self.various)
        starts_KE, start_K = [many.reset()], [one.reset()]
        for t in range(2 * self.most):
            steps, other = many.step([(0, self.change)[t % 2]] * 4), one.step([IDLE])
            if (t + 1) % self.most == 0:
                starts_KE.append(steps.observation_EO)
                start_K.append(other.observation_EO)
        np.testing.assert_array_equal(np.array(starts_KE)[:, 0], np.array(start_K)[:, 0])
        assert len(np.unique(np.array(starts_KE).reshape(12, -1), axis=0)) == 12

    def test_reset_starts_from_the_first_episode_again(self) -> None:
        env = self.make(self.rooms, 2, seed=1)
        first = env.reset()
        for _ in range(self.most + 5):
            later = env.step([self.change, 2]).observation_EO
        assert (later != first).any()
        np.testing.assert_array_equal(env.reset(), first)
        for _ in range(self.most - 1):
            assert not env.step([IDLE, IDLE]).done_E.any()
        assert env.step([IDLE, IDLE]).done_E.all()

    def test_reset_takes_a_new_seed_and_keeps_it(self) -> None:
        env, other = self.make(self.rooms, 2, seed=1), self.make(self.rooms, 2, seed=2)
        first, expected = env.reset(), other.reset()
        np.testing.assert_array_equal(env.reset(seed=2), expected)
        np.testing.assert_array_equal(env.reset(), expected)
        assert (first != expected).any()

    def test_arrays_belong_to_the_caller(self) -> None:
        env, twin = self.make(self.rooms, 2), self.make(self.rooms, 2)
        kept: list[Any] = [env.reset()]
        twin.reset()
        copies = [kept[0].copy()]
        for t in range(2 * self.most + 10):
            action_E = [2, (0, self.change)[t // 2 % 2]]
            steps, expected = env.step(action_E), twin.step(action_E)
            for part, truth in zip(steps, expected, strict=True):
                np.testing.assert_array_equal(part, truth)
            if t % 2:
                for part in steps:
                    part[...] = 1  # whatever a caller does to them changes nothing in the environments
            kept += steps
            copies += [part.copy() for part in steps]
        for array, copy in zip(kept, copies, strict=True):
            np.testing.assert_array_equal(array, copy)

    @pytest.mark.parametrize(
        ("action_E", "message"),
        [
            ([0], r"shape \[1\], expected \[2\]"),
            (0, r"shape \[\], expected \[2\]"),
            ([[0, 0]], r"shape \[1, 2\], expected \[2\]"),
            ([0.0, 1.0], "must be integers, not float64"),
            ([True, False], "must be integers, not bool"),
            ([0, 7], "action 7 of environment 1 is not one of 0 to 6"),
            ([-1, 0], "action -1 of environment 0 is not one of 0 to 6"),
            (np.array([3, 2**63], np.uint64), "action 9223372036854775808 of environment 1 is not one of 0 to 6"),
        ],
    )
    def test_bad_actions_are_refused_and_change_nothing(self, action_E: Any, message: str) -> None:
        env, twin = self.make(self.rooms, 2), self.make(self.rooms, 2)
        env.reset()
        twin.reset()
        with pytest.raises(ValueError, match=message):
            env.step(action_E)
        for _ in range(self.most):
            for part, truth in zip(env.step([2, self.change]), twin.step([2, self.change]), strict=True):
                np.testing.assert_array_equal(part, truth)

    @pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint64])
    def test_any_integers_are_actions(self, dtype: type) -> None:
        env, twin = self.make(self.rooms, 2), self.make(self.rooms, 2)
        env.reset()
        twin.reset()
        got, expected = env.step(np.array([1, 2], dtype)), twin.step([1, 2])
        np.testing.assert_array_equal(got.observation_EO, expected.observation_EO)

    def test_needs_a_reset_before_a_step(self) -> None:
        env = self.make(EMPTY, 1)
        with pytest.raises(RuntimeError, match=r"reset\(\) must be called before step\(\)"):
            env.step([0])

    def test_cannot_be_stepped_after_close(self) -> None:
        env = self.make(EMPTY, 1)
        env.reset()
        env.close()
        with pytest.raises(RuntimeError):
            env.step([0])

    def test_refuses_impossible_sizes_and_seeds(self) -> None:
        with pytest.raises(ValueError, match="at least 1 environment, not 0"):
            self.make(EMPTY, 0)
        with pytest.raises(ValueError, match="a seed must be an integer of at least 0, not -1"):
            self.make(EMPTY, 1, seed=-1)
        with pytest.raises(ValueError, match="a seed must be"):
            self.make(EMPTY, 1).reset(seed=1.5)  # type: ignore[arg-type]


class TestReference(Contract):
    implementation = ReferenceMiniGrid


class TestCompiled(Contract):
    implementation = CompiledMiniGrid


class TestGymnasium(Contract):
    """MiniGrid as any other environment of Gymnasium's."""

    various = 9

    @staticmethod
    def level(seed: int, environment: int, episode: int) -> int:
        return episode_seed(seed, environment, episode) % LARGEST_SEED

    def make(self, task_id: str, environments: int, seed: int = 0) -> VectorEnv:
        given = EnvironmentConfig(wrappers=("minigrid.wrappers:ImgObsWrapper",), success="reward", processes="never")
        env = make(find_task(task_id, given), environments, seed)
        self.made.append(env)
        return env

    @pytest.fixture(autouse=True)
    def _closed(self) -> Iterator[None]:
        self.made: list[VectorEnv] = []
        yield
        for env in self.made:
            env.close()


class NoisyTv(Contract):
    """Steps draw random numbers here, which must be the episode's own as well."""

    rooms = noisy_tv.TASK_ID
    most = 140
    change = 4


class TestReferenceNoisyTv(NoisyTv):
    implementation = ReferenceMiniGrid


class TestCompiledNoisyTv(NoisyTv):
    implementation = CompiledMiniGrid
