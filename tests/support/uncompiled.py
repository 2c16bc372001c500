"""Environments, those of MiniGrid stepped by MiniGrid itself: compiling the kernel takes longer than most tests play."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.envs.minigrid import family
from leco.envs.registry import find_task, make

if TYPE_CHECKING:
    from leco.envs.task import Task
    from leco.envs.vector import VectorEnv


def make_uncompiled(task: Task | str, num_envs: int, seed: int) -> VectorEnv:
    task = find_task(task) if isinstance(task, str) else task
    return (
        family.make(task, num_envs, seed, compiled=False) if task.family == "minigrid" else make(task, num_envs, seed)
    )
