"""ViZDoom: its scenarios, and how their environments are made. See docs/vizdoom.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.envs.task import Family, Task

if TYPE_CHECKING:
    from leco.envs.vector import VectorEnv


def _vizdoom(scenario: str, num_actions: int, max_steps: int, description: str, *, solvable: bool) -> Task:
    return Task(
        name=f"vizdoom-{scenario.replace('_', '-')}",
        id=scenario,
        family="vizdoom",
        description=description,
        observation_shape=(72, 96, 3),
        num_actions=num_actions,
        gamma=0.99,
        max_steps=max_steps,
        fixed_length=not solvable,  # nothing but the clock ends a deathmatch
        solvable=solvable,
    )


def make(task: Task, num_envs: int, seed: int) -> VectorEnv:
    """Environments of a scenario, an engine in a process each."""
    from leco.envs.vizdoom.environment import VizdoomEnv

    return VizdoomEnv(task.id, num_envs, seed)


FAMILY = Family(
    title="ViZDoom",
    package="vizdoom",
    tasks=(
        _vizdoom("my_way_home", 5, 525, "find the armour in a maze of rooms", solvable=True),
        _vizdoom("deathmatch", 15, 1050, "beat three bots of an arena, again and again", solvable=False),
    ),
    make=make,
    max_envs=8,
    max_recorded=2,  # an episode of pictures takes up to 75 MB
)
