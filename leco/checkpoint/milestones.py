"""Checkpoints of a run that are kept for good, after even shares of its training, to see later how it came to what it does.

checkpoints/milestone-000012000.safetensors   after 12,000 updates
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.checkpoint.trained import frames_of_update
from leco.config.experiment import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from leco.config.experiment import Experiment

_PREFIX = "milestone-"


def milestone_path(folder: Path, updates: int) -> Path:
    """Where the state after so many updates is kept, in a run's folder `checkpoints`."""
    return folder / f"{_PREFIX}{updates:09d}.safetensors"


def milestone_updates(experiment: Experiment) -> dict[int, str]:
    """After which updates a state is kept, and the share of the training that it is after, such as 50%."""
    count, size = experiment.learner.milestones, frames_of_update(experiment)
    return {-(-k * experiment.frames // (count * size)): f"{100 * k / count:.0f}%" for k in range(1, count + 1)}


def find_milestones(run: Path, experiment: Experiment) -> dict[str, Path]:
    """Those that a run has, by share, the earliest first.

    Raises:
        ConfigError: it has none.
    """
    due, size = milestone_updates(experiment), experiment.learner.batch_size * experiment.actors.unroll_length
    found = {}
    for path in sorted((run / "checkpoints").glob(f"{_PREFIX}[0-9]*.safetensors")):
        updates = int(path.stem.removeprefix(_PREFIX))
        # A run that was given more frames has milestones at other shares than planned.
        found[due.get(updates, f"{100 * updates * size / experiment.frames:.0f}%")] = path
    if not found:
        raise ConfigError(
            f"{run / 'checkpoints'} has no milestones yet: learner.milestones is {experiment.learner.milestones}, "
            "which is how many a run keeps by its end"
        )
    return found
