"""The flags of `leco train`, and the experiment that they describe."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from leco.cli.environment_flags import add_environment, environment_of, pairs
from leco.cli.wandb_log import PROJECT
from leco.config.experiment import ConfigError, Experiment
from leco.config.presets import PRESETS
from leco.config.toml import parse
from services.flags import existing_file, number, whole_number
from services.learner.device import device_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

DEFAULT_PRESET = "laptop"
STORE = "LECO_HASHCOUNT_STORE"
UNTIL_HELP = "end before that when so many of the last 100 episodes were solved, for example 95%% (default: never)"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `leco train`."""
    parser.add_argument(
        "--task",
        help="what to solve: a name that `leco tasks` lists, or any id of Gymnasium, after a colon if a module registers it: "
        "CartPole-v1, my_module:MyEnv-v0",
    )
    add_environment(parser)
    parser.add_argument("--method", help="how; `leco methods` lists the names; or my_module:ROW (default: leco)")
    parser.add_argument("--frames", type=number, help="actions to train on, for example 5e6")
    parser.add_argument("--until", type=read_rate, metavar="RATE", help=UNTIL_HELP)
    parser.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="of networks, actions and levels (default: 1)"
    )
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        help="where settings begin: laptop, for millions of frames, or paper, for hundreds of millions (default: laptop, or "
        "what the file of --config says)",
    )
    parser.add_argument("--config", type=existing_file, metavar="FILE", help="an experiment as TOML; flags win over it")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other key of the experiment, for example --set training.alpha=0.02",
    )
    parser.add_argument("--actors", type=whole_number(1), default=1, metavar="N", help="actor processes (default: 1)")
    parser.add_argument(
        "--num-envs", type=whole_number(1), metavar="N", help="environments of each actor (default: the preset's)"
    )
    add_device(parser)
    parser.add_argument(
        "--store",
        help=f"where visits are counted: memory, or redis://... without a password (default: {STORE}, an environment variable, "
        "where an address may have one; or memory)",
    )
    parser.add_argument(
        "--run-dir", type=Path, metavar="FOLDER", help="the run's folder (default: runs/TASK-METHOD-SEED)"
    )
    parser.add_argument(
        "--wandb",
        nargs="?",
        const=PROJECT,
        metavar="PROJECT",
        help=f"also send curves, configuration and films to Weights & Biases (default project: {PROJECT}); needs the extra wandb",
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1),
        metavar="N",
        default=max((os.cpu_count() or 2) - 1, 1),
        help="processor threads of an update (default: all processors but one)",
    )
    parser.add_argument(
        "--ranks",
        type=whole_number(1, 1024),
        default=1,
        metavar="N",
        help="processes that make an update together, with --device cuda each on a GPU of its own (default: 1)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """The flag --device."""
    parser.add_argument(
        "--device",
        type=device_name,
        default="cpu",
        help="where updates are computed: cpu, cuda, cuda:N, or auto, a GPU if there is one (default: cpu)",
    )


def read_experiment(given: argparse.Namespace) -> Experiment:
    """The experiment that the flags describe; that of the folder, if it has one and nothing else is said."""
    file = given.config
    if file is None and given.task is None and given.run_dir is not None and (given.run_dir / "config.toml").exists():
        file = given.run_dir / "config.toml"
    try:
        text = "" if file is None else file.read_text()
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a text file: name an experiment as TOML") from None
    overrides = {
        "task": given.task,
        "method": given.method,
        "frames": given.frames,
        "until": given.until,
        "seed": given.seed,
        "preset": given.preset or (DEFAULT_PRESET if file is None else None),
        "actors.num_envs": given.num_envs,
    }
    overrides |= pairs("--set", given.set, "training.alpha=0.02") | environment_of(given)
    if given.task is None and file is None:
        raise ConfigError("say what to solve: --task NAME (`leco tasks` lists them), or --config FILE")
    return experiment_for(text, overrides, given.actors)


def experiment_for(text: str, overrides: Mapping[str, object], actors: int) -> Experiment:
    """An experiment as `leco.config.toml.parse` reads it, for so many actors."""
    experiment = parse(text, overrides)
    if experiment.learner.deterministic and actors != 1:
        raise ConfigError(f"--actors is {actors}, expected 1 because learner.deterministic is true")
    return shared(experiment, actors, overrides) if actors > 1 else experiment


def shared(experiment: Experiment, actors: int, overrides: Mapping[str, object]) -> Experiment:
    """The experiment with several actors, as far as it does not say itself how."""
    learner, environments = experiment.learner, experiment.actors.num_envs
    if learner.synchronous:  # together they play what one alone would, so that nothing grows old
        if overrides.get("actors.num_envs") is None and environments % actors == 0:
            experiment = dataclasses.replace(
                experiment, actors=dataclasses.replace(experiment.actors, num_envs=environments // actors)
            )
        return experiment
    if "learner.queue_capacity" not in overrides:  # so that no actor waits for another one's credits
        room = learner.batch_size + actors * environments
        experiment = dataclasses.replace(
            experiment, learner=dataclasses.replace(learner, queue_capacity=max(learner.queue_capacity, room))
        )
    return experiment


def read_rate(text: str) -> float:
    """A success rate as it is typed: 95%, 95 % or 0.95."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", text)
    rate = float(found[1]) / (100 if found[2] else 1) if found is not None else math.nan
    if not 0 < rate <= 1:
        raise ValueError(f"{text!r} is no success rate: type one above 0 and up to 100%, as 95% or 0.95")
    return rate
