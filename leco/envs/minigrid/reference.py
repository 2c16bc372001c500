"""MiniGrid, stepped by MiniGrid: the truth that the compiled environments are compared with, and what steps the tasks that
they do not know.

    E     environments
    F     episodes that ended in this step
    O...  shape of one observation
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import gymnasium
import minigrid  # noqa: F401  # registers its tasks with gymnasium
import numpy as np
import numpy.typing as npt
from minigrid.minigrid_env import MiniGridEnv

from leco.envs.gymnasium.making import find_spec
from leco.envs.minigrid import (
    noisy_tv,  # noqa: F401  # register their tasks too
    obstructed_maze,  # noqa: F401  # register their tasks too
)
from leco.envs.vector import Steps, checked_actions, checked_num_envs, checked_seed, episode_seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.envs.registration import EnvSpec


def specification(name: str, kwargs: Mapping[str, Any]) -> EnvSpec:
    """How Gymnasium makes the environment of an id, and what else its constructor is given."""
    spec = deepcopy(find_spec(name)) if ":" in name else deepcopy(gymnasium.registry[name])
    spec.kwargs.update(kwargs)
    return spec


def limits(env: gymnasium.Env[Any, Any]) -> tuple[int, int] | None:
    """How many actions an environment has, and after how many steps it truncates; None if it does not show MiniGrid's view."""
    inner, space = env.unwrapped, env.observation_space
    if not isinstance(inner, MiniGridEnv) or not isinstance(env.action_space, gymnasium.spaces.Discrete):
        return None
    view = space["image"] if isinstance(space, gymnasium.spaces.Dict) else None
    return (int(env.action_space.n), int(inner.max_steps)) if view is not None and view.shape == (7, 7, 3) else None


def make_one(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    """One environment as gymnasium makes it, with all of its wrappers but the one that only looks for mistakes.

    It is made from a specification, since gymnasium warns of every name that is not the latest version, and the papers' are not.
    """
    return gymnasium.make(spec, disable_env_checker=True)


class ReferenceMiniGrid:
    """E environments of one MiniGrid task in a Python loop; see `VectorEnv`."""

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int) -> None:
        self._envs = [make_one(spec) for _ in range(checked_num_envs(num_envs))]
        space = self._envs[0].observation_space["image"]  # type: ignore[index]  # MiniGrid's observations are dictionaries
        self._shape: tuple[int, ...] = space.shape
        self._actions = int(self._envs[0].action_space.n)  # type: ignore[attr-defined]  # always discrete
        self._seed = checked_seed(seed)
        self._episode_E: list[int] = []

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """O..., the shape of one observation."""
        return self._shape

    @property
    def num_actions(self) -> int:
        """How many actions the task has."""
        return self._actions

    @property
    def num_envs(self) -> int:
        """E, how many environments there are."""
        return len(self._envs)

    def reset(self, seed: int | None = None) -> npt.NDArray[np.uint8]:
        """Starts every environment at its episode 0."""
        if seed is not None:
            self._seed = checked_seed(seed)
        self._episode_E = [-1] * len(self._envs)
        return np.stack([self._begin(e) for e in range(len(self._envs))])

    def step(self, action_E: npt.ArrayLike) -> Steps:
        """Takes one action in each environment."""
        action_E = checked_actions(action_E, len(self._envs), self._actions)
        if not self._episode_E:
            raise RuntimeError("reset() must be called before step()")
        observation_EO = np.empty((len(self._envs), *self._shape), np.uint8)
        reward_E = np.zeros(len(self._envs), np.float32)
        done_E, success_E = np.zeros((2, len(self._envs)), np.bool_)
        last: list[npt.NDArray[np.uint8]] = []
        for e, env in enumerate(self._envs):
            seen, reward, terminated, truncated, _ = env.step(int(action_E[e]))
            reward_E[e] = reward
            done_E[e] = terminated or truncated
            success_E[e] = terminated and float(reward) > 0
            observation_EO[e] = seen["image"]
            if done_E[e]:
                last.append(observation_EO[e].copy())
                observation_EO[e] = self._begin(e)
        terminal_FO = np.array(last, np.uint8).reshape(-1, *self._shape)
        return Steps(observation_EO, reward_E, done_E, success_E, terminal_FO)

    def close(self) -> None:
        """Closes MiniGrid's environments."""
        for env in self._envs:
            env.close()
        self._episode_E = []

    def _begin(self, e: int) -> npt.NDArray[np.uint8]:
        """The first observation of the next episode of environment e."""
        self._episode_E[e] += 1
        seen, _ = self._envs[e].reset(seed=episode_seed(self._seed, e, self._episode_E[e]))
        image: npt.NDArray[np.uint8] = seen["image"]
        return image
