"""Levels crowded with every object that MiniGrid has, in every state: a few steps meet what ordinary levels hide."""

from __future__ import annotations

from typing import Any

from gymnasium.envs.registration import EnvSpec
from minigrid.core.constants import COLOR_NAMES
from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall, WorldObj
from minigrid.envs.keycorridor import KeyCorridorEnv
from minigrid.envs.unlock import UnlockEnv


def fill(env: Any) -> list[WorldObj]:
    """A level of random objects within walls, and an agent among them; gives the objects."""
    env.grid = Grid(env.width, env.height)
    env.grid.wall_rect(0, 0, env.width, env.height)
    things = []
    for x in range(1, env.width - 1):
        for y in range(1, env.height - 1):
            if env._rand_int(0, 100) < 35:
                thing = _thing(env, 0)
                env.grid.set(x, y, thing)
                things.append(thing)
    x, y = env._rand_int(1, env.width - 1), env._rand_int(1, env.height - 1)
    env.grid.set(x, y, None)
    env.agent_pos, env.agent_dir = (x, y), env._rand_int(0, 4)
    env.mission = ""
    return [thing for thing in things if thing in env.grid]


def _thing(env: Any, deep: int) -> WorldObj:
    # Few colours, so that a key often fits.
    colour = env._rand_elem(("red", "red", "blue")) if env._rand_int(0, 10) else env._rand_color()
    kind = env._rand_int(0, 16)
    if kind < 4:
        state = env._rand_int(0, 4)
        return Door(colour, is_open=state == 0, is_locked=state > 1)
    if kind < 6 and deep < 2:
        return Box(colour, _thing(env, deep + 1) if env._rand_bool() else None)
    if kind < 10:
        return Key(colour)
    simple = {10: Goal(), 11: Lava(), 12: Floor(colour), 13: Wall(colour)}
    return simple.get(kind, Ball(colour)) if deep == 0 else Ball(colour)


class PickupZoo(KeyCorridorEnv):
    """One object that can be picked up is the target; or what is in it, even a door, which nobody can pick up."""

    def __init__(self, *, see_through: bool, **kwargs: Any) -> None:
        super().__init__(num_rows=2, room_size=4, max_steps=60, **kwargs)
        self.see_through_walls = see_through

    def _gen_grid(self, width: int, height: int) -> None:  # noqa: ARG002  # MiniGrid's signature
        things = [thing for thing in fill(self) if thing.can_pickup()] or [Ball()]
        self.obj = self._rand_elem(things)
        inside = getattr(self.obj, "contains", None)
        if inside is not None and self._rand_bool():
            self.obj = inside


class Hidden(KeyCorridorEnv):
    """The target is in a box in a box in front of the agent; a ball that looks the same lies on the agent's right."""

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid = Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        self.obj = Ball("green")
        self.grid.set(2, 1, Box("red", Box("blue", self.obj)))
        self.grid.set(1, 2, Ball("green"))
        self.agent_pos, self.agent_dir = (1, 1), 0


class OpenZoo(UnlockEnv):
    """One of the doors that are not open is the target."""

    def _gen_grid(self, width: int, height: int) -> None:  # noqa: ARG002  # MiniGrid's signature
        doors = [thing for thing in fill(self) if isinstance(thing, Door) and not thing.is_open]
        self.door = self._rand_elem(doors) if doors else Door(COLOR_NAMES[0])


def pickup_zoo(*, see_through: bool, view: int) -> EnvSpec:
    kwargs = {"see_through": see_through, "agent_view_size": view}
    return EnvSpec("PickupZoo-v0", entry_point="support.minigrid_zoo:PickupZoo", kwargs=kwargs)


def hidden() -> EnvSpec:
    return EnvSpec("Hidden-v0", entry_point="support.minigrid_zoo:Hidden")


def open_zoo() -> EnvSpec:
    return EnvSpec("OpenZoo-v0", entry_point="support.minigrid_zoo:OpenZoo", kwargs={"max_steps": 60})
