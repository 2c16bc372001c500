"""How far a run has come, by its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from leco.config.experiment import Experiment


def trained_updates(folder: Path) -> int:
    """After how many updates the newest checkpoint of a run was saved; 0 if there is none."""
    saved = (folder / "checkpoints").glob("[0-9]*.safetensors")
    return max((int(path.stem) for path in saved if path.stem.isdecimal() and path.is_file()), default=0)


def frames_of_update(experiment: Experiment) -> int:
    """Actions in a batch."""
    return experiment.learner.batch_size * experiment.actors.unroll_length
