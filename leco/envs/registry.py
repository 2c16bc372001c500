"""The tasks that leco knows by name, and how their environments are made.

To add a MiniGrid task, add a line to TASKS. MiniGrid and numba are imported only when environments are made: the learner needs
to know a task's discount, not to play it.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leco.envs.vector import VectorEnv

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """What there is to solve.

    name         how people call it
    id           its id in Gymnasium
    gamma        the discount that the paper trains it with
    max_steps    after this many actions an episode ends, solved or not
    description  what has to be done, in a line
    observation_shape, actions   of what its environments give and take: MiniGrid's own, unless said otherwise
    """

    name: str
    id: str
    gamma: float
    max_steps: int
    description: str
    observation_shape: tuple[int, ...] = (7, 7, 3)
    actions: int = 7


def _minigrid(name: str, max_steps: int, description: str) -> Task:
    """A task of MiniGrid in its version 0, as in the paper."""
    return Task(name, f"MiniGrid-{name}-v0", _gamma(name), max_steps, description)


def _gamma(name: str) -> float:
    """The paper's discount: long mazes need one that looks less far."""
    return 0.8 if "ObstructedMaze" in name else 0.99


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _minigrid("Empty-5x5", 100, "walk to the goal of an empty room"),
        _minigrid("MultiRoom-N2-S4", 40, "pass a door to the goal in the second of two small rooms"),
        _minigrid(
            "MultiRoom-N4-S5", 120, "small rooms in a chain; six of them in spite of the name (version 1 has four)"
        ),
        _minigrid("MultiRoom-N6", 120, "six rooms in a chain, doors between them, the goal in the last"),
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
        _minigrid("ObstructedMaze-1Q", 720, "one quarter of the full maze; 6 % of the levels cannot be solved"),
        _minigrid("ObstructedMaze-2Q", 1584, "two quarters of the full maze"),
        _minigrid(
            "ObstructedMaze-Full", 3600, "nine rooms, keys in boxes, balls before locked doors; take the blue ball"
        ),
    )
}


def find_task(name: str) -> Task:
    """The task of this name.

    Args:
        name: a name of TASKS, or the id of any task that MiniGrid registers with Gymnasium.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    for task in TASKS.values():
        if name in (task.name, task.id):
            return task
    ids: list[str] = []
    if name.startswith("MiniGrid-"):
        import gymnasium  # noqa: PLC0415  # see above

        from leco.envs.minigrid_reference import make_one  # noqa: PLC0415  # see above

        ids = [known for known in gymnasium.registry if known.startswith("MiniGrid-")]
        if name in ids:
            env = make_one(gymnasium.registry[name]).unwrapped
            return Task(name, name, _gamma(name), env.max_steps, "as MiniGrid describes it")  # type: ignore[attr-defined]
    nearest = difflib.get_close_matches(name, [*TASKS, *ids], n=1, cutoff=0.0)[0]
    raise ValueError(
        f"there is no task {name!r}; did you mean {nearest!r}? Known are {', '.join(TASKS)}, "
        "and every id of MiniGrid, such as 'MiniGrid-LavaGapS7-v0'"
    )


def make(task: Task | str, environments: int, seed: int, *, compiled: bool = True) -> VectorEnv:
    """Environments of a task.

    Args:
        task: a task, or its name for `find_task`.
        environments: how many; at least 1.
        seed: at least 0; episode k of environment e depends on (seed, e, k) alone.
        compiled: step by the compiled kernel where it does what MiniGrid does, and only there. Otherwise, and always if false,
            MiniGrid itself steps: the same results, much slower.
    """
    import gymnasium  # noqa: PLC0415  # see above

    from leco.envs.minigrid_reference import ReferenceMiniGrid  # noqa: PLC0415  # see above

    if isinstance(task, str):
        task = find_task(task)
    spec = gymnasium.registry[task.id]
    if compiled:
        from leco.envs.minigrid_compiled import CompiledMiniGrid  # noqa: PLC0415  # see above
        from leco.envs.minigrid_levels import refusal  # noqa: PLC0415  # see above

        reason = refusal(spec)
        if reason is None:
            return CompiledMiniGrid(spec, environments, seed)
        _log.warning("%s is stepped by MiniGrid itself, which is slow: %s", task.name, reason)
    return ReferenceMiniGrid(spec, environments, seed)
