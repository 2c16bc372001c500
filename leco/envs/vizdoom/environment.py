"""ViZDoom: first-person tasks in pixels, a stand-in for DMLab that pip installs. See docs/vizdoom.md.

E     environments
F     episodes that ended in this step
O...  shape of one observation
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from leco.envs.vector import Steps, checked_actions, checked_num_envs, checked_seed, episode_seed
from leco.envs.vizdoom.engine import CRASHES, OBSERVATION_SHAPE, Engine
from leco.envs.vizdoom.guard import Guard
from leco.envs.vizdoom.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

_MOST_CRASHES = 3  # in a row, in one environment: then it is no accident


class VizdoomEnv:
    """E environments of one scenario, each with an engine process of its own, stepped in turn; see `FixedLengthEnv`.

    An engine that crashes is started again and its episode dropped: it is reported as ended, without reward or success, in what
    was seen last.

    Args:
        scenario: a name of SCENARIOS.
        num_envs: how many; at least 1.
        seed: at least 0.

    Attributes:
        dropped_E: bool [E], whether the episode that ended in the last step was dropped, or cut to spread ends.
    """

    def __init__(self, scenario: str, num_envs: int, seed: int) -> None:
        if scenario not in SCENARIOS:
            raise ValueError(f"there is no ViZDoom scenario {scenario!r}; known are {', '.join(SCENARIOS)}")
        checked_num_envs(num_envs)
        self._seed = checked_seed(seed)
        self._scenario = SCENARIOS[scenario]
        self._guard = Guard()
        self._engines = [Engine(self._scenario, self._guard.mark) for _ in range(num_envs)]
        self._seen_EO = np.zeros((num_envs, *OBSERVATION_SHAPE), np.uint8)
        self._episode_E: list[int] = []
        self._crashes_E = [0] * num_envs
        self._left_E: list[int] = []  # actions until a first episode is cut to spread ends; below 0 there is no cut
        self._dropped = 0
        self.dropped_E = np.zeros(num_envs, np.bool_)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """O..., the shape of one observation: height, width, red-green-blue."""
        return OBSERVATION_SHAPE

    @property
    def num_actions(self) -> int:
        """How many actions the task has."""
        return len(self._scenario.actions)

    @property
    def num_envs(self) -> int:
        """E, how many environments there are."""
        return len(self._engines)

    @property
    def dropped_episodes(self) -> int:
        """How many episodes were cut short because the engine crashed."""
        return self._dropped

    def reset(self, seed: int | None = None, *, first_lengths: Sequence[int] | None = None) -> npt.NDArray[np.uint8]:
        """Starts every environment at its episode 0."""
        if seed is not None:
            self._seed = checked_seed(seed)
        if self._guard.closed:
            raise RuntimeError("the environments are closed")
        self._episode_E = [-1] * len(self._engines)
        self._left_E = list(first_lengths or [0] * self.num_envs)
        for e in range(len(self._engines)):
            self._begin(e)
        return self._seen_EO.copy()

    def step(self, action_E: npt.ArrayLike) -> Steps:
        """Takes one action in each environment."""
        action_E = checked_actions(action_E, len(self._engines), self.num_actions)
        if not self._episode_E:
            raise RuntimeError("reset() must be called before step()")
        reward_E = np.zeros(len(self._engines), np.float32)
        done_E, success_E = np.zeros((2, len(self._engines)), np.bool_)
        self.dropped_E = np.zeros(len(self._engines), np.bool_)
        last: list[npt.NDArray[np.uint8]] = []
        for e, engine in enumerate(self._engines):
            try:
                reward_E[e], done_E[e] = engine.act(int(action_E[e]), self._seen_EO[e])
                self._crashes_E[e] = 0
                success_E[e] = done_E[e] and self._scenario.can_be_solved and reward_E[e] > 0
            except CRASHES as crash:
                self._dropped += 1
                done_E[e] = self.dropped_E[e] = True
                self._crashed(e, crash)
            self._left_E[e] -= 1
            if self._left_E[e] == 0 and not done_E[e]:
                done_E[e] = self.dropped_E[e] = True
            if done_E[e]:
                self._left_E[e] = 0
                last.append(self._seen_EO[e].copy())
                self._begin(e)
        terminal_FO = np.array(last, np.uint8).reshape(-1, *OBSERVATION_SHAPE)
        return Steps(self._seen_EO.copy(), reward_E, done_E, success_E, terminal_FO)

    def close(self) -> None:
        """Ends the engines."""
        for engine in self._engines:
            engine.close()
        self._guard.close()
        self._episode_E = []

    def _begin(self, e: int) -> None:
        """Sees the first observation of the next episode of environment e."""
        self._episode_E[e] += 1
        seed = episode_seed(self._seed, e, self._episode_E[e])
        while True:
            try:
                self._engines[e].begin(seed, self._seen_EO[e])
            except CRASHES as crash:
                self._crashed(e, crash)
            else:
                return

    def _crashed(self, e: int, crash: Exception) -> None:
        """Takes note of a crash, and gives up if there was no completed step since too many of them."""
        self._crashes_E[e] += 1
        if self._crashes_E[e] >= _MOST_CRASHES:
            raise RuntimeError(
                f"ViZDoom crashed {self._crashes_E[e]} times in a row in environment {e} without one completed step: {crash}"
            ) from crash
        _log.warning(
            "ViZDoom crashed in episode %d of environment %d and is started again: %s", self._episode_E[e], e, crash
        )
