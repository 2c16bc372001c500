"""All services on this machine, as child processes on loopback: `leco train`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from leco.cli.train_flags import STORE, add_flags, read_experiment
from leco.cli.training import train
from leco.cli.wandb_log import wandb_listeners
from leco.config.experiment import ConfigError
from leco.evaluation.zoo import is_entry
from leco.telemetry.provenance import process_start
from services.flags import Parser
from services.learner.device import NO_GPU, find_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.config.experiment import Experiment

DESCRIPTION = """\
Trains on this machine: starts the hash-count service, the learner and actors, shows progress, and leaves a folder with the
configuration, the curves (metrics.csv, TensorBoard) and checkpoints. Ctrl-C saves and stops; the same command goes on. At the
end it says when 90 % of the last 100 episodes were solved."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains until done or Ctrl-C."""
    parser = Parser("leco train", description=DESCRIPTION)
    add_flags(parser)
    given = parser.parse_args(arguments)
    try:
        experiment = read_experiment(given)
        device = find_device(given.device)
    except (ConfigError, OSError) as error:
        parser.refuse(error)
    if given.device == "auto" and device == "cpu":
        sys.stdout.write(f"{NO_GPU}: training on the CPU\n")
    folder: Path = given.run_dir or default_folder(experiment)
    if is_entry(folder):
        parser.error(f"{folder} is an entry of the zoo, which is only played: choose another folder with --run-dir")
    if given.store is not None and "@" in given.store:
        parser.error(
            "--store has a password on the command line, where every process can read it: put the address into the environment "
            f"variable {STORE}"
        )
    store = given.store or os.environ.get(STORE) or "memory"
    how = {"actors": given.actors, "store": store, "threads": given.threads, "device": device, "ranks": given.ranks}
    try:
        with wandb_listeners(given.wandb, experiment, folder) as listeners:
            code = train(experiment, folder, **how, began=process_start(), listeners=listeners)
        sys.exit(code)
    except (ConfigError, OSError) as error:  # of the folder or of the store: nothing has begun
        parser.refuse(error)


def default_folder(experiment: Experiment) -> Path:
    """Where a run goes that nobody gave a folder; a method of one's own has a colon in its name, which no folder should."""
    return Path("runs") / re.sub(r"[^A-Za-z0-9._-]", "_", f"{experiment.task}-{experiment.method}-{experiment.seed}")


if __name__ == "__main__":
    main()
