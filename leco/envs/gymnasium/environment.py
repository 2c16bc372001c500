"""Environments of Gymnasium, vectorised by Gymnasium: one after the other in this process, or each in a process of its own.

E     environments
F     episodes that ended in this step
O...  shape of one observation
"""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from leco.envs.gymnasium.single import make_single
from leco.envs.vector import Steps, checked_actions, checked_num_envs, checked_seed, episode_seed

if TYPE_CHECKING:
    from leco.envs.gymnasium.single import Single
    from leco.envs.task import EnvironmentConfig

SLOW_SECONDS = 1e-3  # a step that takes longer is worth a process (benchmarks/vectorisation.py)
TRIED = 32  # steps that are timed
LARGEST_SEED = 2**31  # what every simulator takes


class GymnasiumEnv:
    """E environments of one task; see `VectorEnv`.

    Gymnasium's own automatic reset is switched off: it would begin an episode without a seed of its own, and in one of its modes
    take a step for it that no policy chose.

    Args:
        name: The task's id.
        given: How one is made, and what it is.
        num_envs: How many; at least 1.
        seed: At least 0.

    Attributes:
        truncated_E: bool [E], whether the episode that ended in the last step was truncated: its state was not terminal.
    """

    def __init__(self, name: str, given: EnvironmentConfig, num_envs: int, seed: int) -> None:
        self._seed, self._num_actions = checked_seed(seed), given.num_actions
        self._episode_E = np.full(checked_num_envs(num_envs), -1)
        one = partial(make_single, name, given)
        self._shape = given.layout.shape
        if in_processes(one, num_envs, given):
            # Not by a fork, which would copy the threads' locks of whoever asks: gRPC has many.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["leco.envs.gymnasium.single"])
            self._envs: Any = AsyncVectorEnv(
                [one] * num_envs, context="forkserver", copy=False, autoreset_mode=AutoresetMode.DISABLED
            )
        else:
            self._envs = SyncVectorEnv([one] * num_envs, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        found = self._envs.single_observation_space.shape, int(self._envs.single_action_space.n)
        if found != (self._shape, self._num_actions):
            self.close()
            raise ValueError(
                f"{name} has observations and actions {found} here, and had {self._shape, self._num_actions} when the run began: "
                "install what it had then, or begin another run"
            )
        self._ready = False
        self.truncated_E = np.zeros(num_envs, np.bool_)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """O..., the shape of one observation."""
        return self._shape

    @property
    def num_actions(self) -> int:
        """How many actions the task has."""
        return self._num_actions

    @property
    def num_envs(self) -> int:
        """E, how many environments there are."""
        return len(self._episode_E)

    def reset(self, seed: int | None = None) -> npt.NDArray[np.uint8]:
        """Starts every environment at its episode 0."""
        if seed is not None:
            self._seed = checked_seed(seed)
        self._episode_E[:] = -1
        self._ready = True
        return self._begin(np.ones(self.num_envs, np.bool_))

    def step(self, action_E: npt.ArrayLike) -> Steps:
        """Takes one action in each environment."""
        action_E = checked_actions(action_E, self.num_envs, self._num_actions)
        if not self._ready:
            raise RuntimeError("reset() must be called before step()")
        seen_EO, reward_E, terminated_E, truncated_E, info = self._envs.step(action_E)
        done_E = terminated_E | truncated_E
        self.truncated_E = truncated_E & ~terminated_E
        reward_E = reward_E.astype(np.float32)
        if not done_E.any():
            return Steps(seen_EO.copy(), reward_E, done_E, done_E.copy(), seen_EO[:0].copy())
        success_E = done_E & np.asarray(info["solved"], np.bool_)
        terminal_FO = seen_EO[done_E]  # a copy, since the index is an array
        return Steps(self._begin(done_E), reward_E, done_E, success_E, terminal_FO)

    def close(self) -> None:
        """Closes the environments, and ends their processes."""
        self._ready = False
        if not self._envs.closed:
            self._envs.close()

    def _begin(self, which_E: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
        """What all environments show when some have begun their next episode."""
        self._episode_E[which_E] += 1
        seeds = [
            episode_seed(self._seed, e, int(episode)) % LARGEST_SEED if which_E[e] else None
            for e, episode in enumerate(self._episode_E)
        ]
        seen_EO, _ = self._envs.reset(seed=seeds, options={"reset_mask": which_E.copy()})
        first_EO: npt.NDArray[np.uint8] = seen_EO.copy()
        return first_EO


def in_processes(one: partial[Single], num_envs: int, given: EnvironmentConfig) -> bool:
    """Whether each environment had better step in a process of its own: where a step is slow and processors are many."""
    if given.processes != "auto":
        return given.processes == "always"
    if num_envs == 1 or len(os.sched_getaffinity(0)) == 1:
        return False
    return seconds_of_step(one) > SLOW_SECONDS


def seconds_of_step(one: partial[Single]) -> float:
    """How long a step of an environment takes, with actions drawn evenly; the median."""
    random, spent = np.random.default_rng(0), []
    with closing(one()) as env:
        seen = env.reset(seed=0)[0]
        for _ in range(TRIED):
            mask = seen[-env.encoder.layout.actions :] if env.encoder.layout.actions else np.ones(env.num_actions)
            action = int(random.choice(np.flatnonzero(mask)))
            begin = time.perf_counter()
            seen, _, terminated, truncated, _ = env.step(action)
            spent.append(time.perf_counter() - begin)
            if terminated or truncated:
                seen = env.reset(seed=0)[0]
    return float(np.median(spent))
