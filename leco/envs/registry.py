"""The tasks that leco knows by name, and their environments. A family of environments is a folder and a line in FAMILIES."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.envs.dmlab import family as dmlab
from leco.envs.minigrid import family as minigrid
from leco.envs.minigrid import pictures as minigrid_pictures
from leco.envs.vizdoom import family as vizdoom
from leco.words import did_you_mean

if TYPE_CHECKING:
    from leco.envs.task import Family, Task
    from leco.envs.vector import VectorEnv

FAMILIES: dict[str, Family] = {
    "minigrid": minigrid.FAMILY,
    "minigrid-rgb": minigrid_pictures.FAMILY,
    "dmlab": dmlab.FAMILY,
    "vizdoom": vizdoom.FAMILY,
}
TASKS: dict[str, Task] = {task.name: task for family in FAMILIES.values() for task in family.tasks}


def family_of(task: Task) -> Family:
    """What plays a task."""
    return FAMILIES[task.family]


def find_task(name: str) -> Task:
    """The task of this name.

    Args:
        name: A name or an id of TASKS, or another id that a family knows, such as any that MiniGrid registers with Gymnasium.

    Raises:
        ValueError: there is none; the message names one that is near.
    """
    for task in TASKS.values():
        if name in (task.name, task.id):
            return task
    names = list(TASKS)
    for family in FAMILIES.values():
        if family.other is not None:
            found, ids = family.other(name)
            if found is not None:
                return found
            names += ids
    raise ValueError(f"there is no task {name!r}; {did_you_mean(name, names, '`leco tasks` lists them')}")


def make(task: Task | str, num_envs: int, seed: int) -> VectorEnv:
    """Environments of a task.

    Args:
        task: A task, or its name for `find_task`.
        num_envs: How many; at least 1.
        seed: At least 0; episode k of environment e depends on (seed, e, k) alone, as far as `VectorEnv` promises.
    """
    if isinstance(task, str):
        task = find_task(task)
    return family_of(task).make(task, num_envs, seed)
