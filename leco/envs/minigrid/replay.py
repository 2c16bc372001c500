"""An episode of MiniGrid once more, by MiniGrid itself: where the agent was, and what the level looked like.

T     actions of the episode
G     different grids
X, Y  width and height of the level
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from minigrid.core.actions import Actions

from leco.envs.minigrid.levels import refusal
from leco.envs.minigrid.reference import make_one, specification

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.envs.task import Task

_ONLY_MOVE = (Actions.left, Actions.right, Actions.forward)


class Replay(NamedTuple):
    """From before the first action to after the last: T + 1 moments.

    x_T, y_T, direction_T   of the agent
    scene_T                 which of the grids shows the level
    grid_GXY                uint8 [G, X, Y, 3], as MiniGrid encodes them; each that differs from the one before
    """

    x_T: npt.NDArray[np.int16]
    y_T: npt.NDArray[np.int16]
    direction_T: npt.NDArray[np.int8]
    scene_T: npt.NDArray[np.int32]
    grid_GXY: npt.NDArray[np.uint8]


class Replayer:
    """Plays episodes of one MiniGrid task again."""

    def __init__(self, task: Task) -> None:
        spec = specification(task.id, {} if task.environment is None else task.environment.kwargs)
        env: Any = make_one(spec).unwrapped
        # Observations are known already, and drawing them would be most of the work; no random number depends on them.
        env.gen_obs = dict
        self._env = env
        self._moves_by_itself = refusal(spec) is not None
        self._may_be_cut = spec.max_episode_steps is not None  # by a wrapper, which is not there

    def play(self, level: int, action_T: Sequence[int]) -> Replay:
        """The episode with these actions in the level of this seed.

        Raises:
            ValueError: it is over before the last action, so these are the actions of another level.
        """
        env = self._env
        env.reset(seed=level)
        grids, scenes = [env.grid.encode()], [0]
        places = [(*env.agent_pos, env.agent_dir)]
        for t, action in enumerate(action_T):
            _, _, ended, cut, _ = env.step(action)
            places.append((*env.agent_pos, env.agent_dir))
            if (self._moves_by_itself or action not in _ONLY_MOVE) and not np.array_equal(
                grid := env.grid.encode(), grids[-1]
            ):
                grids.append(grid)
            scenes.append(len(grids) - 1)
            last = t + 1 == len(action_T)
            if (ended or cut) != last and not (last and self._may_be_cut):
                raise ValueError(f"level {level} ends after another number of actions than {len(action_T)}")
        x_T, y_T, direction_T = np.array(places).T
        return Replay(
            x_T.astype(np.int16),
            y_T.astype(np.int16),
            direction_T.astype(np.int8),
            np.array(scenes, np.int32),
            np.stack(grids),
        )
