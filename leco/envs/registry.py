"""The tasks that leco knows by name, and how their environments are made.

To add a MiniGrid task, add a line to TASKS. Simulators and numba are imported only when environments are made: the learner needs
to know a task's discount, not to play it.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leco.envs.vector import VectorEnv

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """What there is to solve.

    name         how people call it
    id           its id in Gymnasium, or what its simulator calls it
    gamma        the discount that the paper trains it with
    max_steps    after this many actions an episode ends, solved or not
    description  what has to be done, in a line
    observation_shape, actions   of what its environments give and take: MiniGrid's own, unless said otherwise
    simulator    what plays it
    scores       what random play and people score, where a score is only meaningful between the two
    solvable     whether it calls episodes solved; of the others there is only the return to look at
    """

    name: str
    id: str
    gamma: float
    max_steps: int
    description: str
    observation_shape: tuple[int, ...] = (7, 7, 3)
    actions: int = 7
    simulator: Literal["minigrid", "dmlab", "vizdoom"] = "minigrid"
    scores: tuple[float, float] | None = None
    solvable: bool = True


def _minigrid(name: str, max_steps: int, description: str, *, task_id: str | None = None) -> Task:
    """A task of MiniGrid, in its version 0 as in the paper unless an id says otherwise."""
    return Task(name, task_id or f"MiniGrid-{name}-v0", _gamma(name), max_steps, description)


def _lasertag(size: str, description: str, scores: tuple[float, float]) -> Task:
    """A task of DeepMind Lab: one of the paper's two, with its scores of random play and of people."""
    name = f"lasertag_three_opponents_{size}"
    level = f"contributed/dmlab30/{name}"
    return Task(name, level, 0.99, 3600, description, _PIXELS, 15, "dmlab", scores, solvable=False)


def _vizdoom(scenario: str, actions: int, max_steps: int, description: str, *, solvable: bool) -> Task:
    """A scenario of ViZDoom."""
    name = f"vizdoom-{scenario.replace('_', '-')}"
    return Task(name, scenario, 0.99, max_steps, description, _PIXELS, actions, "vizdoom", solvable=solvable)


def _gamma(name: str) -> float:
    """The paper's discount: long mazes need one that looks less far."""
    return 0.8 if "ObstructedMaze" in name else 0.99


_PIXELS = (72, 96, 3)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _minigrid("Empty-5x5", 100, "walk to the goal of an empty room"),
        _minigrid("MultiRoom-N2-S4", 40, "pass a door to the goal in the second of two small rooms"),
        _minigrid(
            "MultiRoom-N4-S5", 120, "small rooms in a chain; six of them in spite of the name (version 1 has four)"
        ),
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
        _minigrid("ObstructedMaze-1Q", 720, "one quarter of the full maze; 6 % of the levels cannot be solved"),
        _minigrid(
            "ObstructedMaze-2Q",
            1584,
            "two quarters of the full maze, from the middle room",
            task_id="MiniGrid-ObstructedMaze-2Q-Middle-v0",
        ),
        _minigrid(
            "ObstructedMaze-Full", 3600, "nine rooms, keys in boxes, balls before locked doors; take the blue ball"
        ),
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
        _minigrid(
            "ObstructedMaze-Full-v1", 3600, "the same for the full maze", task_id="MiniGrid-ObstructedMaze-Full-v1"
        ),
        _lasertag("small", "tag three opponents in a small maze of laser tag", (-0.214, 18.55)),
        _lasertag("large", "the same in a large maze, where they are seldom met", (-0.102, 31.5)),
        _vizdoom("my_way_home", 5, 525, "find the armour in a maze of rooms", solvable=True),
        _vizdoom("deathmatch", 15, 1050, "beat three bots of an arena, again and again", solvable=False),
    )
}


def find_task(name: str) -> Task:
    """The task of this name.

    Args:
        name: a name or an id of TASKS, or the id of any task that MiniGrid registers with Gymnasium.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    for task in TASKS.values():
        if name in (task.name, task.id):
            return task
    ids: list[str] = []
    if name.startswith("MiniGrid-"):
        import gymnasium  # noqa: PLC0415  # see above

        from leco.envs.minigrid.reference import make_one  # noqa: PLC0415  # see above

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
        compiled: of a task of MiniGrid: step by the compiled kernel where it does what MiniGrid does, and only there. Otherwise,
            and always if false, MiniGrid itself steps: the same results, much slower.
    """
    if isinstance(task, str):
        task = find_task(task)
    if task.simulator == "dmlab":
        from leco.envs.dmlab.environment import DmlabEnv  # noqa: PLC0415  # see above

        return DmlabEnv(task.id, environments, seed)
    if task.simulator == "vizdoom":
        from leco.envs.vizdoom.environment import VizdoomEnv  # noqa: PLC0415  # see above

        return VizdoomEnv(task.id, environments, seed)
    return _make_minigrid(task, environments, seed, compiled=compiled)


def _make_minigrid(task: Task, environments: int, seed: int, *, compiled: bool) -> VectorEnv:
    import gymnasium  # noqa: PLC0415  # see above

    from leco.envs.minigrid.reference import ReferenceMiniGrid  # noqa: PLC0415  # see above

    spec = gymnasium.registry[task.id]
    if compiled:
        from leco.envs.minigrid.compiled import CompiledMiniGrid  # noqa: PLC0415  # see above
        from leco.envs.minigrid.levels import refusal  # noqa: PLC0415  # see above

        reason = refusal(spec)
        if reason is None:
            return CompiledMiniGrid(spec, environments, seed)
        _log.warning("%s is stepped by MiniGrid itself, which is slow: %s", task.name, reason)
    return ReferenceMiniGrid(spec, environments, seed)
