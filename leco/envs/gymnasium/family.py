"""Any environment that Gymnasium registers: how it is found, what it is, and how environments of it are made.

Gymnasium is imported only when an id is first looked at, and when environments are made: whoever has the configuration of a run
knows what its environment is without it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING

from leco.envs.task import Family, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

    from leco.envs.task import EnvironmentConfig
    from leco.envs.vector import VectorEnv

NAME = "gymnasium"


def other(name: str, given: EnvironmentConfig) -> tuple[Task | None, Iterable[str]]:
    """The task of any id that Gymnasium knows, perhaps after the import of the module before its colon; and the ids it knows."""
    try:
        import gymnasium  # noqa: F401
    except ModuleNotFoundError:
        if not re.search(r":|-v\d+$", name):
            return None, ()
        raise ValueError(
            f"to find out what {name} is takes Gymnasium, which is not installed here: pip install 'leco[actor]', or give the "
            f"section [environment] that `leco tasks {name}` prints where it is"
        ) from None
    from leco.envs.gymnasium.making import known_ids, provided

    if not provided(name):
        return None, known_ids()
    from leco.envs.gymnasium.describing import described

    return task_of(name, described(name, given)), ()


def task_of(name: str, found: EnvironmentConfig) -> Task:
    """The task of an environment of which it is known what it is."""
    return Task(
        name=name,
        id=name,
        family=NAME,
        description="as its environment describes it",
        observation_shape=found.layout.shape,
        num_actions=found.num_actions,
        gamma=0.99,
        max_steps=found.max_steps,
        solvable=found.success != "none",
        reward_limit=math.inf,
        parts=found.layout,
        environment=dataclasses.replace(found, family=NAME),
    )


def make(task: Task, num_envs: int, seed: int) -> VectorEnv:
    """Environments of a task."""
    from leco.envs.gymnasium.environment import GymnasiumEnv

    assert task.environment is not None  # noqa: S101  # as `task_of` has made it
    return GymnasiumEnv(task.id, task.environment, num_envs, seed)


def paint(task: Task, level: int, action_T: Sequence[int]) -> npt.NDArray[np.uint8] | None:
    """An episode, drawn by its environment."""
    from leco.envs.gymnasium import painting

    return painting.paint(task, level, action_T)


FAMILY = Family(
    title="Gymnasium",
    package="gymnasium",
    tasks=(),
    make=make,
    other=other,
    task_of=task_of,
    example="my_module:MyEnv-v0, ALE/MontezumaRevenge-v5 or CartPole-v1",
    paint=paint,
    max_envs=16,
    max_recorded=2,  # an episode of pictures may take hundreds of MB
)
