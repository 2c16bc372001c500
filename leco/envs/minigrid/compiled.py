"""MiniGrid, stepped by a compiled kernel: MiniGrid generates the levels, numba plays them. Same results, a hundred times faster.

E     environments
F     episodes that ended in this step
D     drops that change the colour of a ball; see `leco.envs.minigrid.kernel`
O...  shape of one observation: [V, V, 3], V the width of the agent's view
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from minigrid.core.actions import Actions

from leco.envs.minigrid import kernel
from leco.envs.minigrid.levels import LevelSource
from leco.envs.vector import Steps, checked_actions, checked_num_envs, checked_seed, episode_seed

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


class CompiledMiniGrid:
    """E environments of one MiniGrid task that has no `refusal`; see `VectorEnv`.

    The first `reset` of a process compiles the kernel, which takes seconds.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int) -> None:
        self._source = LevelSource(spec)
        self._shape = (self._source.view, self._source.view, 3)
        self._see_through = self._source.see_through
        self._seed = checked_seed(seed)
        self._episode_E = np.zeros(checked_num_envs(num_envs), np.int64)
        self._cell_EHW = np.zeros((num_envs, *self._source.size), np.int32)
        self._agent_E = np.zeros(num_envs, kernel.AGENT)
        self._colour_ED = np.zeros((num_envs, self._source.drops), np.int32)
        self._reward_S = self._source.rewards()
        self._ready = False

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """O..., the shape of one observation."""
        return self._shape

    @property
    def num_actions(self) -> int:
        """How many actions the task has."""
        return len(Actions)

    @property
    def num_envs(self) -> int:
        """E, how many environments there are."""
        return len(self._episode_E)

    def reset(self, seed: int | None = None) -> npt.NDArray[np.uint8]:
        """Starts every environment at its episode 0."""
        if seed is not None:
            self._seed = checked_seed(seed)
        self._episode_E[:] = -1
        observation_EO = np.empty((self.num_envs, *self._shape), np.uint8)
        self._begin(np.arange(self.num_envs), observation_EO)
        self._ready = True
        return observation_EO

    def step(self, action_E: npt.ArrayLike) -> Steps:
        """Takes one action in each environment."""
        action_E = checked_actions(action_E, self.num_envs, self.num_actions)
        if not self._ready:
            raise RuntimeError("reset() must be called before step()")
        observation_EO = np.empty((self.num_envs, *self._shape), np.uint8)
        reward_E = np.empty(self.num_envs, np.float32)
        done_E = np.empty(self.num_envs, np.bool_)
        kernel.step(
            action_E,
            self._cell_EHW,
            self._agent_E,
            self._colour_ED,
            self._reward_S,
            self._see_through,
            observation_EO,
            reward_E,
            done_E,
        )
        which_F = np.flatnonzero(done_E)
        terminal_FO = observation_EO[which_F]  # a copy, since the index is an array
        if len(which_F):
            self._begin(which_F, observation_EO)
        # MiniGrid rewards nothing but the solution, and that with at least 0.1.
        return Steps(observation_EO, reward_E, done_E, reward_E > 0, terminal_FO)

    def close(self) -> None:
        """Nothing is held but memory; the environments only say no from now on."""
        self._ready = False

    def _begin(self, which_F: npt.NDArray[np.int64], observation_EO: npt.NDArray[np.uint8]) -> None:
        """The next episode of the environments `which_F`, and their first observations."""
        for e in which_F.tolist():
            self._episode_E[e] += 1
            level = self._source.generate(episode_seed(self._seed, e, int(self._episode_E[e])))
            self._cell_EHW[e] = level.cell_HW
            self._agent_E[e] = (level.x, level.y, level.direction, kernel.EMPTY, 0, 0)
            self._colour_ED[e] = level.colour_D
        kernel.draw(which_F, self._cell_EHW, self._agent_E, self._see_through, observation_EO)
