"""Made-up recordings for tests: a room of 5 x 4 cells in which an agent walks to and fro."""

from __future__ import annotations

import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.world_object import Goal

from leco.evaluation.recording import Episode, Metadata, Recording

ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")


def room(width: int = 5, height: int = 4) -> np.ndarray:
    grid = Grid(width, height)
    grid.wall_rect(0, 0, width, height)
    grid.set(width - 2, height - 2, Goal())
    return grid.encode()[None]


def episode(seed: int, steps: int, *, level: int = 7, width: int = 9, grids: np.ndarray | None = None) -> Episode:
    random = np.random.default_rng(seed)
    code_TW = random.integers(0, 3, (steps + 1, 1)).astype(np.uint8).repeat(width, 1)
    count_T = np.array([(code_TW[: t + 1] == code_TW[t]).all(1).sum() for t in range(steps + 1)], np.uint32)
    r_ep_T = (1 / np.sqrt(count_T[1:])).astype(np.float32)
    r_ta_T = random.uniform(-1, 1, steps).astype(np.float32)
    reward_T = np.zeros(steps, np.float32)
    reward_T[-1] = 0.5
    return Episode(
        level=level,
        solved=seed % 2 == 0,
        action_T=random.integers(0, len(ACTIONS), steps).astype(np.int16),
        r_e_T=reward_T,
        r_ep_T=r_ep_T,
        r_ta_T=r_ta_T,
        r_i_T=((r_ep_T + r_ta_T) / 2).astype(np.float32),
        observation_TO=random.integers(0, 3, (steps + 1, 7, 7, 3)).astype(np.uint8),
        code_TW=code_TW,
        count_T=count_T,
        x_T=random.integers(1, 4, steps + 1).astype(np.int16),
        y_T=random.integers(1, 3, steps + 1).astype(np.int16),
        direction_T=random.integers(0, 4, steps + 1).astype(np.int8),
        scene_T=np.zeros(steps + 1, np.int32),
        grid_GXY=room() if grids is None else grids,
    )


def metadata(*, method: str = "leco", updates: int = 100, frames: int = 153_600, seed: int = 0) -> Metadata:
    return Metadata(
        run="run",
        task="Empty-5x5",
        method=method,
        actions=ACTIONS,
        updates=updates,
        frames=frames,
        checkpoint="newest",
        seed=seed,
        greedy=False,
        alpha=0.01,
        lambda_=0.5,
        leco="0.1.0",
    )


def recording(*lengths: int, updates: int = 100, frames: int = 153_600) -> Recording:
    made = tuple(episode(n, steps, level=n) for n, steps in enumerate(lengths))
    return Recording(metadata(updates=updates, frames=frames), made)
