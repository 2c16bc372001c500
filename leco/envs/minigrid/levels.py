"""Levels of MiniGrid as arrays: MiniGrid generates them, with its own classes and its own random numbers.

H  height of the level
W  its width
D  drops that change the colour of a ball: all that an episode has time for, or 0 where `drop` drops
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import minigrid
import numpy as np
import numpy.typing as npt
from minigrid.core.actions import Actions
from minigrid.core.constants import COLOR_NAMES, COLOR_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall, WorldObj
from minigrid.envs.blockedunlockpickup import BlockedUnlockPickupEnv
from minigrid.envs.keycorridor import KeyCorridorEnv
from minigrid.envs.obstructedmaze import ObstructedMazeEnv
from minigrid.envs.unlock import UnlockEnv
from minigrid.envs.unlockpickup import UnlockPickupEnv
from minigrid.minigrid_env import MiniGridEnv

from leco.envs.minigrid.fast_pcg import Integers
from leco.envs.minigrid.kernel import COLOUR_SHIFT, DEEPEST, EMPTY, OBJECT_BITS, STATE_SHIFT, TARGET
from leco.envs.minigrid.noisy_tv import NoisyTvEnv
from leco.envs.minigrid.reference import make_one

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

READ_VERSION = "3.2.0"
"""The version of MiniGrid whose source the kernel was written after."""

LEVELS_LOOKED_AT = 16  # of a class that is not MiniGrid's own

# For each chain of `step` functions that has been read and that the kernel does: the attribute that names the object whose pickup
# (of a door: whose opening) solves the task. Everything else is the business of MiniGridEnv.step.
_TARGETS = {
    (MiniGridEnv.step,): None,
    (KeyCorridorEnv.step, MiniGridEnv.step): "obj",
    (ObstructedMazeEnv.step, MiniGridEnv.step): "obj",
    (UnlockPickupEnv.step, MiniGridEnv.step): "obj",
    (BlockedUnlockPickupEnv.step, MiniGridEnv.step): "obj",
    (UnlockEnv.step, MiniGridEnv.step): "door",
    (NoisyTvEnv.step, MiniGridEnv.step): None,
}
# What a class must have left as it is in MiniGridEnv.
_UNCHANGED = ("_reward", "reset", "gen_obs", "gen_obs_grid", "get_view_exts", "front_pos", "dir_vec", "right_vec")
_OBJECTS = frozenset({Ball, Box, Door, Floor, Goal, Key, Lava, Wall})
# A target of another kind could never be reached: MiniGrid would wait for the pickup of a door until the time is out.
_TARGET_KINDS = {"obj": (Ball, Box, Key), "door": (Door,)}


class Level(NamedTuple):
    """The beginning of an episode.

    cell_HW    int32 [H, W], as `leco.envs.minigrid.kernel` describes
    x, y       where the agent is
    direction  where it looks
    colour_D   the D colours that the ball of a noisy television takes on one after the other
    """

    cell_HW: npt.NDArray[np.int32]
    x: int
    y: int
    direction: int
    colour_D: tuple[int, ...]


def refusal(spec: EnvSpec) -> str | None:
    """Why MiniGrid itself must step this task; None if the kernel can. It can only where it surely does what MiniGrid does."""
    if minigrid.__version__ != READ_VERSION:
        return f"the kernel does what MiniGrid {READ_VERSION} does, and version {minigrid.__version__} is installed"
    if spec.additional_wrappers or spec.max_episode_steps is not None:
        return "gymnasium wraps it"
    env = _bare(spec)
    kind = type(env)
    if kind.__module__.startswith("minigrid.envs.wfc"):
        # They need packages that our tests do not have.
        return f"the levels of {kind.__qualname__} have never been compared"
    if _steps(kind) not in _TARGETS:
        return f"{kind.__qualname__} has a step of its own"
    for name in _UNCHANGED:
        if getattr(kind, name) is not getattr(MiniGridEnv, name):
            return f"{kind.__qualname__} has a {name} of its own"
    if env.actions is not Actions or env.action_space != gymnasium.spaces.Discrete(len(Actions)):
        return f"{kind.__qualname__} has actions of its own"
    return None if kind.__module__.startswith("minigrid.envs.") or kind is NoisyTvEnv else _unknown_object(spec)


def _unknown_object(spec: EnvSpec) -> str | None:
    """What is in the levels of somebody's own class that the kernel does not know; None if there is nothing in the first few."""
    source = LevelSource(spec)
    try:
        for seed in range(LEVELS_LOOKED_AT):
            source.generate(seed)
    except (TypeError, AttributeError) as error:
        return str(error).partition(":")[0]
    return None


class LevelSource:
    """Generates the levels of one task; for tasks without a `refusal`."""

    def __init__(self, spec: EnvSpec) -> None:
        self._env = _bare(spec)
        self._target = _TARGETS[_steps(type(self._env))]
        self._drops = self._env.max_steps if isinstance(self._env, NoisyTvEnv) else 0
        # `reset` also draws the first observation, a fifth of its work. The kernel draws it, and no random number depends on it.
        self._env.gen_obs = dict
        self._fast = True

    @property
    def size(self) -> tuple[int, int]:
        """H, W."""
        return self._env.height, self._env.width

    @property
    def view(self) -> int:
        """The width of the agent's view, which is square."""
        return int(self._env.agent_view_size)

    @property
    def drops(self) -> int:
        """D."""
        return int(self._drops)

    @property
    def see_through(self) -> bool:
        """Whether the agent sees through walls."""
        return bool(self._env.see_through_walls)

    def rewards(self) -> npt.NDArray[np.float32]:
        """The reward for solving the task with the s-th action, for s = 0 to the last one: MiniGrid's own, in float32."""
        reward_S = np.empty(self._env.max_steps + 1, np.float32)
        for s in range(len(reward_S)):
            self._env.step_count = s
            reward_S[s] = self._env._reward()  # noqa: SLF001  # the only name it has
        return reward_S

    def generate(self, seed: int) -> Level:
        """The level that MiniGrid's `reset(seed=seed)` makes."""
        if self._fast:
            try:
                self._env.np_random = Integers(seed)
                self._env.reset()
            except (AttributeError, TypeError):
                # The task draws more than integers: numpy's generator does it, for all levels. Other errors come again below.
                self._fast = False
        if not self._fast:
            self._env.reset(seed=seed)
        return self._export()

    def _export(self) -> Level:
        env, grid = self._env, self._env.grid
        if type(grid) is not Grid:
            raise TypeError(f"the level is a {type(grid).__qualname__}, not a Grid: make it with compiled=False")
        target = getattr(env, self._target) if self._target else None
        if self._target and type(target) not in _TARGET_KINDS[self._target]:
            target = None
        # Most cells are empty or a grey wall; they take a tenth of the time of a call.
        cells = [
            EMPTY if thing is None else _WALL[thing.color] if type(thing) is Wall else _packed(thing, target)
            for thing in grid.grid
        ]
        cell_HW = np.array(cells, np.int32).reshape(grid.height, grid.width)
        x, y = env.agent_pos
        return Level(cell_HW, int(x), int(y), int(env.agent_dir), self._colours())

    def _colours(self) -> tuple[int, ...]:
        """What every drop of the episode would draw. Nothing else is drawn after the level, so this can be done in advance."""
        draw = self._env.np_random.integers
        return tuple(_COLOURS[draw(0, len(_COLOURS))] for _ in range(self._drops))


def _bare(spec: EnvSpec) -> Any:
    """MiniGrid's own environment, without the wrappers of gymnasium."""
    return make_one(spec).unwrapped


def _steps(kind: type) -> tuple[Any, ...]:
    """The `step` functions of a MiniGrid class that call one another, the outermost first."""
    own = (vars(base).get("step") for base in kind.__mro__ if base is not gymnasium.Env)
    return tuple(step for step in own if step is not None)


def _packed(thing: WorldObj | None, target: WorldObj | None, deep: int = 0) -> int:
    """An object and all that is in it as one integer."""
    if thing is None:
        return EMPTY
    if type(thing) not in _OBJECTS or deep > DEEPEST:
        raise TypeError(
            f"the level has a {type(thing).__qualname__} that the kernel does not know: have one in one of the first "
            f"{LEVELS_LOOKED_AT} levels, of the seeds from 0 on, and MiniGrid itself steps all of them"
        )
    kind, colour, state = thing.encode()
    inside = _packed(thing.contains, target, deep + 1) if type(thing) is Box else 0
    return (
        kind
        | colour << COLOUR_SHIFT
        | state << STATE_SHIFT
        | (TARGET if thing is target else 0)
        | inside << OBJECT_BITS
    )


_COLOURS = tuple(COLOR_TO_IDX[name] for name in COLOR_NAMES)
_WALL = {colour: _packed(Wall(colour), None) for colour in COLOR_TO_IDX}
