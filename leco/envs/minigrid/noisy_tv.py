"""MultiRoom with a noisy television: a ball whose colour the agent can change for ever, and to no purpose.

The idea is that of RIDE (Raileanu and Rocktaschel, ICLR 2020); the paper plays it with seven rooms of 2 x 2 cells. Whoever is
rewarded for what is new may stay with the ball. Importing this file registers the task with gymnasium.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from minigrid.core.world_object import Ball
from minigrid.envs.multiroom import MultiRoomEnv

TASK_ID = "MiniGrid-MultiRoom-N7-S4-NoisyTV-v0"


class NoisyTvEnv(MultiRoomEnv):
    """MultiRoom with one ball in the first room. The action `drop` gives the ball a random colour, and drops nothing.

    - Each of MiniGrid's six colours is equally likely, the present one too. The ball changes wherever it is and whether or not
      the agent sees it.
    - The ball never lies on the agent or right before the door, so there is always a way past it. (In RIDE's own version it may
      lie before the door, and must then be picked up.)
    - It can be picked up, as any ball. Then the agent carries it to the end of the episode, and sees it in its own cell.
    - Rooms, doors, agent and goal are those of a MultiRoom with the same seed. All random numbers are the environment's own.
    """

    ball: Ball

    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)  # type: ignore[no-untyped-call]  # MiniGrid is annotated in part
        first = self.rooms[0]
        self.ball = Ball(self._rand_color())
        self.place_obj(self.ball, first.top, first.size, reject_fn=_before_the_door)

    def step(self, action: Any) -> Any:
        """One action, as in MiniGrid but for `drop`."""
        if action == self.actions.drop:
            self.ball.color = self._rand_color()
            action = self.actions.done  # which does nothing
        return super().step(action)


def _before_the_door(env: NoisyTvEnv, place: tuple[int, int]) -> bool:
    """Whether this is the cell from which one leaves the first room."""
    (x, y), (door_x, door_y) = place, env.rooms[0].exitDoorPos
    return bool(abs(x - door_x) + abs(y - door_y) == 1)


if TASK_ID not in gymnasium.registry:
    gymnasium.register(
        TASK_ID,
        entry_point="leco.envs.minigrid.noisy_tv:NoisyTvEnv",
        kwargs={"minNumRooms": 7, "maxNumRooms": 7, "maxRoomSize": 4},
    )
