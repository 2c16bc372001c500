"""An episode once more, drawn by its environment: what people see of it, where the agent sees numbers or less."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from leco.envs.gymnasium.actions import Actions
from leco.envs.gymnasium.environment import LARGEST_SEED
from leco.envs.gymnasium.making import make_one

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from leco.envs.task import Task

MODE = "rgb_array"
LONGEST_SIDE = 320  # pixels; larger pictures are thinned
MOST_BYTES = 2**27  # of an episode
_log = logging.getLogger(__name__)


def paint(task: Task, level: int, action_T: Sequence[int]) -> npt.NDArray[np.uint8] | None:
    """The pictures of the episode with these actions in the level of this seed, from before the first to after the last one.

    Returns:
        uint8 [T + 1, height, width, RGB]; None if the environment cannot draw itself here, or not so many pictures.
    """
    given = task.environment
    assert given is not None  # noqa: S101  # a task of this family has one
    try:
        with closing(make_one(task.id, given.kwargs, given.wrappers or ())) as plain:
            if MODE not in plain.metadata.get("render_modes", ()):
                return None
        env = make_one(task.id, given.kwargs, given.wrappers or (), render_mode=MODE)
        with closing(env):
            actions = Actions(env.action_space)
            env.reset(seed=level % LARGEST_SEED)
            pictures = [_thinned(env.render(), len(action_T))]
            for action in action_T:
                env.step(actions.decode(int(action)))
                pictures.append(_thinned(env.render(), len(action_T)))
        return np.stack(pictures)
    except Exception as problem:  # noqa: BLE001  # whatever an environment's drawing may raise, an evaluation goes on without it
        _log.warning("%s cannot be drawn by its environment: %s", task.name, problem)
        return None


def _thinned(picture: object, steps: int) -> npt.NDArray[np.uint8]:
    """Every n-th pixel, so that an episode's pictures fit."""
    pixels = np.asarray(picture)
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"render() gave {type(picture).__name__} of shape {pixels.shape}, expected [height, width, 3]")
    every = max(-(-max(pixels.shape) // LONGEST_SIDE), int(np.ceil(np.sqrt(pixels.size * (steps + 1) / MOST_BYTES))))
    return pixels[::every, ::every].astype(np.uint8)
