"""Plays one episode with a checkpoint of a run and draws it: a child of `leco.cli.films`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from leco.checkpoint.state_file import SavedStateError
from leco.config.experiment import ConfigError, task_of
from leco.evaluation.record import make_recording
from leco.evaluation.rollout import EvaluationError, Keeper, evaluate
from leco.evaluation.trained import trained_state
from leco.evaluation.video import film

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Plays, draws."""
    parser = argparse.ArgumentParser("leco.cli.film", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        trained = trained_state(given.run, given.checkpoint)
        task, keeper = task_of(trained.experiment), Keeper(1)
        evaluate(trained.policy, task, episodes=1, keeper=keeper, seed=0, greedy=False)
        recording = make_recording(
            trained, keeper.episodes, run=given.run.name, checkpoint=given.checkpoint, seed=0, greedy=False
        )
        film(recording, given.out)
    except (ConfigError, SavedStateError, EvaluationError, OSError, ValueError) as error:  # the last: no simulator
        sys.exit(str(error))


if __name__ == "__main__":
    main()
