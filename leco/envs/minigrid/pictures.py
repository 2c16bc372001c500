"""MiniGrid seen as pictures: every task of MiniGrid once more, 56 x 56 pixels in three colours instead of 7 x 7 cells.

Nothing of MiniGrid is imported before environments are made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leco.envs.minigrid import family as cells
from leco.envs.task import Family, Replayer, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

    from leco.envs.task import EnvironmentConfig
    from leco.envs.vector import VectorEnv

SUFFIX = "-RGB"


def other(name: str, given: EnvironmentConfig) -> tuple[Task | None, Iterable[str]]:
    """The task of MiniGrid of this name or id, without the suffix; and the names of those that have one."""
    if not name.upper().endswith(SUFFIX) or ":" in name or given.kwargs or given.wrappers:
        return None, ()
    names = [task.name + SUFFIX for task in cells.TASKS]
    of_cells = name.removesuffix(SUFFIX)
    for task in cells.TASKS:
        if of_cells in (task.name, task.id):
            return _seen_as_picture(task), names
    found, ids = cells.other(of_cells, given)
    return found and _seen_as_picture(found), [*names, *(each + SUFFIX for each in ids)]


def _seen_as_picture(task: Task) -> Task:
    return replace(
        task,
        name=task.name + SUFFIX,
        id=task.id + SUFFIX,
        family="minigrid-rgb",
        description=f"{task.description}; seen as a picture",
        observation_shape=(56, 56, 3),
        environment=None,  # it is known by its name
    )


def _of_cells(task: Task) -> Task:
    """The same task in cells."""
    return replace(task, id=task.id.removesuffix(SUFFIX), family="minigrid", observation_shape=(7, 7, 3))


def make(task: Task, num_envs: int, seed: int) -> VectorEnv:
    """Environments of a task; see `leco.envs.minigrid.family.make`."""
    env = cells.make(_of_cells(task), num_envs, seed)
    from leco.envs.minigrid.tiles import DrawnMiniGrid

    return DrawnMiniGrid(env)


def replayer(task: Task) -> Replayer:
    """Plays episodes again by MiniGrid itself."""
    return cells.replayer(_of_cells(task))


def draw(view_NVVC: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Views of cells as these tasks show them."""
    from leco.envs.minigrid.tiles import draw_views

    return draw_views(view_NVVC)


FAMILY = Family(
    title="MiniGrid, seen as pictures",
    package="minigrid",
    tasks=(),
    make=make,
    other=other,
    example="KeyCorridorS3R3-RGB",
    replayer=replayer,
    draw=draw,
    max_recorded=10,
)
