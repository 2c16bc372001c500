"""Somebody's own environments, for tests of what is not MiniGrid: registered when this module is imported."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Goal
from minigrid.minigrid_env import MiniGridEnv


class Counting(gymnasium.Env[Any, Any]):
    """Shows its seed and its steps. It ends after 3 + seed % 3 of them: by itself where the seed is odd, else truncated."""

    def __init__(self, bad_after: int = 10**9) -> None:
        self.observation_space = spaces.Box(0, 2.0**40, (2,), np.float64)
        self.action_space = spaces.Discrete(3, start=1)
        self._bad_after = bad_after

    def _seen(self) -> Any:
        return np.array([self._seed, self._steps], np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._seed, self._steps = seed or 0, 0
        return self._seen(), {"odd things": object()}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in (1, 2, 3)
        self._steps += 1
        over = self._steps == 3 + self._seed % 3
        odd = self._seed % 2 == 1
        reward = float(action) if self._steps < self._bad_after else float("nan")
        return self._seen(), reward, over and odd, over and not odd, {"success": action == 3, "text": "x" * self._steps}


class Ladder(gymnasium.Env[Any, Any]):
    """Numbers, an action of two choices, and a mask of them: up or down, with the one hand that is free."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "rung": spaces.Discrete(11),
                "height": spaces.Box(0, np.inf, (1,), np.float64),
                "free": spaces.MultiBinary(3),
            }
        )
        self.action_space = spaces.MultiDiscrete([2, 3])

    def action_masks(self) -> Any:
        return np.concatenate([[True, self._rung > 0], self._free])

    def _seen(self) -> Any:
        return {"rung": self._rung, "height": np.array([self._rung / 2]), "free": self._free.astype(np.int8)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._rung, self._free = 0, np.eye(3, dtype=bool)[self.np_random.integers(3)]
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        direction, hand = action
        if not self._free[hand] or (direction == 1 and self._rung == 0):
            raise AssertionError("this action is forbidden")
        self._rung += 1 if direction == 0 else -1
        self._free = np.eye(3, dtype=bool)[self.np_random.integers(3)]
        done = self._rung == 10
        return self._seen(), float(done), done, False, {"is_success": done}


class Radar(gymnasium.Env[Any, Any]):
    """A picture and numbers."""

    def __init__(self, side: int = 16) -> None:
        self.observation_space = spaces.Dict(
            {"picture": spaces.Box(0, 255, (side, side, 3), np.uint8), "speed": spaces.Box(-2, 2, (2,), np.float32)}
        )
        self.action_space = spaces.Discrete(2)

    def _seen(self) -> Any:
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.observation_space.seed(seed)
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._seen(), float(action), False, False, {}


class Signs(gymnasium.Env[Any, Any]):
    """A picture whose left or right half is lit, and a number of either sign: of four actions the one that fits both earns 1."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"picture": spaces.Box(0, 255, (16, 16, 3), np.uint8), "sign": spaces.Box(-1, 1, (1,), np.float32)}
        )
        self.action_space = spaces.Discrete(4)

    def _seen(self) -> Any:
        self._right, self._above = self.np_random.integers(2), self.np_random.integers(2)
        picture = np.zeros((16, 16, 3), np.uint8)
        picture[:, 8 * self._right : 8 * self._right + 8] = 255
        return {"picture": picture, "sign": np.array([2 * self._above - 1], np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        fits = action == 2 * self._right + self._above
        return self._seen(), float(fits), False, False, {}


class Corridor(MiniGridEnv):
    """A subclass of MiniGrid's: walk to the goal at the other end."""

    def __init__(self, size: int = 6, **kwargs: Any) -> None:
        mission = MissionSpace(lambda: "walk to the goal")
        super().__init__(mission_space=mission, grid_size=size, max_steps=8, **kwargs)

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid = Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        self.put_obj(Goal(), width - 2, height - 2)
        self.place_agent(top=(1, 1), size=(2, height - 2))  # type: ignore[no-untyped-call]
        self.mission = "walk to the goal"


gymnasium.register("Signs-v0", entry_point="support.own_envs:Signs", max_episode_steps=16)
gymnasium.register("Corridor-v0", entry_point="support.own_envs:Corridor")
gymnasium.register("Counting-v0", entry_point="support.own_envs:Counting")
gymnasium.register("Ladder-v0", entry_point="support.own_envs:Ladder", max_episode_steps=60)
gymnasium.register("Radar-v0", entry_point="support.own_envs:Radar", max_episode_steps=20)
