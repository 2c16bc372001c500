"""What actors are told of a run when they join."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.config.experiment import method_of
from leco.config.toml import to_toml
from leco.models.hash_function import make_hash_function
from leco.models.kinds.table import find_kind
from leco.types import RunSpecification, TrajectorySpec

if TYPE_CHECKING:
    from leco.config.experiment import Experiment
    from leco.envs.task import Task
    from leco.learning.state import Networks


def make_specification(experiment: Experiment, networks: Networks, run: str, task: Task) -> RunSpecification:
    """A run, as its actors see it."""
    kind = find_kind(task.layout)
    hash_function = make_hash_function(method_of(experiment), kind, networks.intrinsic, experiment.hash)
    core = networks.policy.initial_state(1)
    return RunSpecification(
        run=run,
        task=experiment.task,
        method=experiment.method,
        environments=experiment.actors.num_envs,
        code_width=0 if hash_function is None else hash_function.width,
        configuration_toml=to_toml(experiment),
        trajectories=TrajectorySpec(
            unroll_length=experiment.actors.unroll_length,
            observation_shape=task.observation_shape,
            action_count=task.num_actions,
            core_state_shape=tuple(core[:, :, 0].shape),
            coarse_levels=0 if hash_function is None else hash_function.levels - 1,
            reward_limit=task.reward_limit,
            numbers=task.layout.numbers,
            masked=task.layout.actions > 0,
        ),
    )
