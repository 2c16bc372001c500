"""MiniGrid's views as pictures: what its `RGBImgPartialObsWrapper` shows, from a table of tiles that MiniGrid has drawn once.

N  views        E  environments        V  width of a view, in cells        S  of a tile, in pixels
M  different cells
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import WorldObj

if TYPE_CHECKING:
    from leco.envs.vector import Steps, VectorEnv

TILE = 8  # S, as the wrapper has it if nobody says otherwise
_UP = 3  # where the agent looks in its own view
_NUMBERS = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX))


def draw_views(view_NVVC: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Views of cells as pictures, [N, V, V, 3] -> [N, V S, V S, 3]: what is seen lit up, the agent below in the middle."""
    count, size = view_NVVC.shape[:2]
    row_of_cell_MSW, row_of_agent_MSW = _tiles()
    number_NVV = np.ravel_multi_index(tuple(np.moveaxis(view_NVVC, -1, 0)), _NUMBERS)
    row_S = np.arange(TILE)
    # A view is column by column, a picture row by row.
    row_NVSVW = row_of_cell_MSW[number_NVV.swapaxes(1, 2)[:, :, None], row_S[:, None]]
    row_NVSVW[:, size - 1, :, size // 2] = row_of_agent_MSW[number_NVV[:, size // 2, size - 1, None], row_S]
    picture_NHWC: npt.NDArray[np.uint8] = row_NVSVW.view(np.uint8).reshape(count, size * TILE, size * TILE, 3)
    return picture_NHWC


@cache
def _tiles() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The tile of each (object, colour, state), and the same with the agent on it, who carries the object.

    Each is [M, S, W]: a row of a tile is W words of eight bytes.
    """
    made = np.zeros((2, *_NUMBERS, TILE, TILE, 3), np.uint8)
    states = range(_NUMBERS[2])
    for kind, colour, state in itertools.product(OBJECT_TO_IDX.values(), COLOR_TO_IDX.values(), states):
        thing = WorldObj.decode(kind, colour, state)
        seen = kind != OBJECT_TO_IDX["unseen"]
        for agent, direction in enumerate((None, _UP)):
            made[agent, kind, colour, state] = Grid.render_tile(thing, direction, seen, TILE)
    of_cell, of_agent = made.reshape(2, -1, TILE, 3 * TILE).view(np.uint64)
    return of_cell, of_agent


class DrawnMiniGrid:
    """Environments of MiniGrid that show pictures instead of cells; see `VectorEnv`.

    Attributes:
        view_EO: What they show now, as cells.
    """

    def __init__(self, env: VectorEnv) -> None:
        self._env = env
        self.view_EO = np.zeros((env.num_envs, *env.observation_shape), np.uint8)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of a picture."""
        height, width, _ = self._env.observation_shape
        return height * TILE, width * TILE, 3

    @property
    def num_actions(self) -> int:
        """How many actions the task has."""
        return self._env.num_actions

    @property
    def num_envs(self) -> int:
        """E, how many environments there are."""
        return self._env.num_envs

    def reset(self, seed: int | None = None) -> npt.NDArray[np.uint8]:
        """Starts every environment at its episode 0."""
        self.view_EO = self._env.reset(seed)
        return draw_views(self.view_EO)

    def step(self, action_E: npt.ArrayLike) -> Steps:
        """Takes one action in each environment."""
        steps = self._env.step(action_E)
        self.view_EO = steps.observation_EO
        return steps._replace(
            observation_EO=draw_views(steps.observation_EO),
            terminal_observation_FO=draw_views(steps.terminal_observation_FO),
        )

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()
