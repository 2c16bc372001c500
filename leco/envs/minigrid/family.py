"""MiniGrid: its tasks, and how its environments are made. To add a task, add a line to TASKS; `pictures` draws all of them.

MiniGrid and numba are imported only when environments are made: the learner needs to know a task's discount, not to play it.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from leco.envs.task import Family, Replayer, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leco.envs.task import EnvironmentConfig
    from leco.envs.vector import VectorEnv

_log = logging.getLogger(__name__)
_PREFIX = "MiniGrid-"
_ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")


def _minigrid(
    name: str,
    max_steps: int,
    description: str,
    *,
    task_id: str | None = None,
    environment: EnvironmentConfig | None = None,
) -> Task:
    """A task of MiniGrid, in its version 0 as in the paper unless an id says otherwise."""
    return Task(
        name=name,
        id=task_id or f"{_PREFIX}{name}-v0",
        family="minigrid",
        description=description,
        observation_shape=(7, 7, 3),
        num_actions=len(_ACTIONS),
        gamma=0.8 if "ObstructedMaze" in name else 0.99,  # the paper's: long mazes need one that looks less far
        max_steps=max_steps,
        reward_limit=10.0,  # MiniGrid pays once, at most 1
        action_names=_ACTIONS,
        environment=environment,
    )


TASKS = (
    _minigrid("Empty-5x5", 100, "walk to the goal of an empty room"),
    _minigrid("MultiRoom-N2-S4", 40, "pass a door to the goal in the second of two small rooms"),
    _minigrid("MultiRoom-N4-S5", 120, "small rooms in a chain; six of them in spite of the name (version 1 has four)"),
    _minigrid("MultiRoom-N6", 120, "six rooms in a chain, doors between them, the goal in the last"),
    _minigrid(
        "MultiRoom-N7-S4-NoisyTV", 140, "seven small rooms in a chain, and a ball that `drop` gives a random colour"
    ),
    _minigrid("DoorKey-5x5", 250, "take the key, unlock the door, walk to the goal"),
    _minigrid("DoorKey-8x8", 640, "the same in larger rooms"),
    _minigrid("KeyCorridorS3R1", 270, "find the key, unlock the door, take the ball: three rooms"),
    _minigrid("KeyCorridorS3R2", 270, "the same with six rooms"),
    _minigrid("KeyCorridorS3R3", 270, "the same with nine rooms around a corridor"),
    _minigrid("KeyCorridorS4R3", 480, "nine rooms of 2 x 2 cells"),
    _minigrid("KeyCorridorS5R3", 750, "nine rooms of 3 x 3 cells"),
    _minigrid("KeyCorridorS6R3", 1080, "nine rooms of 4 x 4 cells"),
    _minigrid("ObstructedMaze-1Dl", 288, "take the ball behind a locked door"),
    _minigrid("ObstructedMaze-1Dlh", 288, "the same with the key hidden in a box"),
    _minigrid("ObstructedMaze-1Dlhb", 288, "the same with a ball in front of the door"),
    _minigrid("ObstructedMaze-1Q", 720, "one quarter of the full maze; 7 % of the levels cannot be solved"),
    _minigrid(
        "ObstructedMaze-2Q",
        1584,
        "two quarters of the full maze, from the middle room; 3 % of the levels cannot be solved",
        task_id="MiniGrid-ObstructedMaze-2Q-Middle-v0",
    ),
    _minigrid("ObstructedMaze-Full", 3600, "nine rooms, keys in boxes, balls before locked doors; take the blue ball"),
    _minigrid(
        "ObstructedMaze-1Q-v1",
        720,
        "version 1, in which no ball takes the place of a key",
        task_id="MiniGrid-ObstructedMaze-1Q-v1",
    ),
    _minigrid(
        "ObstructedMaze-2Q-v1",
        1584,
        "the same for two quarters, from the room to the right of the middle",
        task_id="MiniGrid-ObstructedMaze-2Q-v1",
    ),
    _minigrid("ObstructedMaze-Full-v1", 3600, "the same for the full maze", task_id="MiniGrid-ObstructedMaze-Full-v1"),
)


def other(name: str, given: EnvironmentConfig) -> tuple[Task | None, Iterable[str]]:
    """The task of any id whose environment is MiniGrid's or a subclass, shows its views and has its actions; and its own ids."""
    if given.wrappers or not (name.startswith(_PREFIX) or ":" in name):
        return None, ()
    import gymnasium

    from leco.envs.gymnasium.making import making
    from leco.envs.minigrid.reference import limits, make_one, specification

    ids = [known for known in gymnasium.registry if known.startswith(_PREFIX)]
    if ":" not in name and name not in ids:
        return None, ids
    spec = specification(name, given.kwargs)
    with making(name, given.kwargs):
        found = limits(make_one(spec))
    if found is None:
        return None, ids
    num_actions, max_steps = found
    return task_of(name, dataclasses.replace(given, num_actions=num_actions, max_steps=max_steps)), ids


def task_of(name: str, found: EnvironmentConfig) -> Task:
    """The task of an environment of MiniGrid's that is not known by name."""
    environment = dataclasses.replace(
        found, family="minigrid", wrappers=(), success="reward", image=(7, 7, 3), masks=False, numbers=0
    )
    task = _minigrid(name, found.max_steps, "as its environment describes it", task_id=name, environment=environment)
    names = _ACTIONS if found.num_actions == len(_ACTIONS) else tuple(f"action {n}" for n in range(found.num_actions))
    return dataclasses.replace(task, num_actions=found.num_actions, action_names=names)


def make(task: Task, num_envs: int, seed: int, *, compiled: bool = True) -> VectorEnv:
    """Environments of a task.

    Args:
        task: One of MiniGrid's.
        num_envs: How many.
        seed: Episode k of environment e depends on (seed, e, k) alone.
        compiled: Step by the compiled kernel where it does what MiniGrid does, and only there. Otherwise, and always if false,
            MiniGrid itself steps: the same results, much slower.
    """
    from leco.envs.minigrid.reference import ReferenceMiniGrid, specification

    spec = specification(task.id, {} if task.environment is None else task.environment.kwargs)
    if compiled:
        from leco.envs.minigrid.compiled import CompiledMiniGrid
        from leco.envs.minigrid.levels import refusal

        reason = refusal(spec)
        if reason is None:
            return CompiledMiniGrid(spec, num_envs, seed)
        _log.warning("%s is stepped by MiniGrid itself, which is slow: %s", task.name, reason)
    return ReferenceMiniGrid(spec, num_envs, seed)


def replayer(task: Task) -> Replayer:
    """Plays episodes again by MiniGrid itself."""
    from leco.envs.minigrid import replay

    return replay.Replayer(task)


FAMILY = Family(
    title="MiniGrid",
    package="minigrid",
    tasks=TASKS,
    make=make,
    other=other,
    task_of=task_of,
    example="MiniGrid-LavaGapS7-v0",
    replayer=replayer,
)
