"""The tasks that leco knows by name, and their environments. A family of environments is a folder and a line in FAMILIES."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.envs.dmlab import family as dmlab
from leco.envs.gymnasium import family as gymnasium
from leco.envs.minigrid import family as minigrid
from leco.envs.minigrid import pictures as minigrid_pictures
from leco.envs.task import EnvironmentConfig
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
    "gymnasium": gymnasium.FAMILY,  # last: what no other family plays
}
TASKS: dict[str, Task] = {task.name: task for family in FAMILIES.values() for task in family.tasks}


def family_of(task: Task) -> Family:
    """What plays a task."""
    return FAMILIES[task.family]


def find_task(name: str, environment: EnvironmentConfig | None = None) -> Task:
    """The task of this name.

    Args:
        name: A name or an id of TASKS, or another id that a family knows: any that Gymnasium does, or will after the import of a
            module, "module:id".
        environment: How it is made, where it is not as it is registered; and perhaps what it is.

    Raises:
        ValueError: there is none, in which case the message names one that is near; or it cannot be made so.
    """
    given = environment or EnvironmentConfig()
    if given.family:
        return _known(name, given)
    for task in TASKS.values():
        if name in (task.name, task.id):
            if not given.kwargs and given.wrappers is None:
                return task
            if family_of(task).other is None:
                raise ValueError(
                    f"environment.kwargs and environment.wrappers are of environments that Gymnasium makes, and {name} is "
                    f"played by {family_of(task).title}: leave them out"
                )
            name = task.id
    names = list(TASKS)
    for family in FAMILIES.values():
        if family.other is not None:
            found, ids = family.other(name, given)
            if found is not None:
                return found
            names += ids
    raise ValueError(f"there is no task {name!r}; {did_you_mean(name, names, '`leco tasks` lists them')}")


def _known(name: str, given: EnvironmentConfig) -> Task:
    """The task of an environment that an earlier look has described."""
    family = FAMILIES.get(given.family)
    if family is None or family.task_of is None:
        known = " or ".join(repr(each) for each, family in FAMILIES.items() if family.task_of is not None)
        raise ValueError(f"environment.family is {given.family!r}, expected {known}; leave it out to have it found")
    return family.task_of(name, given)


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
