"""DeepMind Lab: the paper's two tasks, and how their environments are made. See docs/dmlab.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.envs.task import Family, Task

if TYPE_CHECKING:
    from leco.envs.vector import VectorEnv


def _lasertag(size: str, description: str, scores: tuple[float, float]) -> Task:
    name = f"lasertag_three_opponents_{size}"
    return Task(
        name=name,
        id=f"contributed/dmlab30/{name}",
        family="dmlab",
        description=description,
        observation_shape=(72, 96, 3),
        num_actions=15,
        gamma=0.99,
        max_steps=3600,
        fixed_length=True,
        scores=scores,
        solvable=False,
        reward_shaping="soft-asymmetric",
    )


def make(task: Task, num_envs: int, seed: int) -> VectorEnv:
    """Environments of a level, an engine in a process each."""
    from leco.envs.dmlab.environment import DmlabEnv

    return DmlabEnv(task.id, num_envs, seed)


FAMILY = Family(
    title="DeepMind Lab",
    package="deepmind-lab",
    tasks=(
        _lasertag("small", "tag three opponents in a small maze of laser tag", (-0.214, 18.55)),
        _lasertag("large", "the same in a large maze, where they are seldom met", (-0.102, 31.5)),
    ),
    make=make,
    reproducible=False,  # the map follows the seed; where players start, and what is seen later, does not
    max_envs=8,
    max_recorded=2,  # an episode of pictures takes up to 75 MB
)
