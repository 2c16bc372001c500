"""What a sweep consists of: every combination of what was asked for, checked before anything starts, each with a name."""

from __future__ import annotations

import argparse
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leco.cli.train_flags import read_experiment
from leco.config.experiment import ConfigError, Experiment
from leco.config.toml import flat, show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Keys of an experiment that a sweep has flags for.
OWN_FLAGS = {"task": "--tasks", "method": "--methods", "seed": "--seeds", "frames": "--frames", "until": "--until"}


@dataclass(frozen=True)
class Run:
    """One combination.

    Attributes:
        name: Of its folder within the sweep's.
        experiment: All its settings.
        varied: Those of --grid, by key, as they are shown.
    """

    name: str
    experiment: Experiment
    varied: Mapping[str, str] = field(default_factory=dict)


def plan(given: argparse.Namespace) -> list[Run]:
    """Every combination of tasks, methods, varied settings and seeds.

    Raises:
        ConfigError: something that was given cannot be used.
    """
    if given.tasks is None and given.config is None:
        raise ConfigError("say what to solve: --tasks NAME,NAME (`leco tasks` lists them), or --config FILE")
    tasks = [None] if given.tasks is None else _items(given.tasks, "--tasks")
    methods = [None] if given.methods is None else _items(given.methods, "--methods")
    seeds = read_seeds(given.seeds)
    axes = _axes(given.grid, given.set)
    runs = []
    for task, method, values, seed in itertools.product(tasks, methods, itertools.product(*axes.values()), seeds):
        varied = dict(zip(axes, values, strict=True))
        settings = [*given.set, *(f"{key}={value}" for key, value in varied.items())]
        one = {"task": task, "method": method, "seed": seed, "set": settings, "num_envs": None, "run_dir": None}
        experiment = read_experiment(argparse.Namespace(**(vars(given) | one)))
        runs.append(_run(experiment, varied))
    names = [run.name for run in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"two of the runs are the same ({', '.join(twice[:3])}): name each task, method and value once"
        )
    return runs


def _run(experiment: Experiment, varied: Mapping[str, str]) -> Run:
    """Values are named as they were understood, so that 1e-3 and 0.001 are one run."""
    understood = flat(experiment)
    shown = {key: show(understood[key]) if key in understood else text for key, text in varied.items()}
    settings = [f"{key.rpartition('.')[2]}={value}" for key, value in shown.items()]
    name = "-".join([experiment.task, experiment.method, *settings, str(experiment.seed)])
    return Run(re.sub(r"[^A-Za-z0-9._=+,-]", "_", name), experiment, shown)


def read_seeds(text: str) -> list[int]:
    """Seeds as they are typed: 1,2,3 or 1-3 or both."""
    seeds: list[int] = []
    for item in _items(text, "--seeds"):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", item)
        if found is None:
            raise ConfigError(
                f"--seeds {text}: {item!r} is no seed; type whole numbers or ranges, such as 1,2,3 or 1-3"
            )
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise ConfigError(f"--seeds {text}: the range {item} ends before it begins; type {high}-{low}")
        seeds += range(low, high + 1)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: a seed is there twice; name each once")
    return seeds


def _axes(each: Sequence[str], fixed: Sequence[str]) -> dict[str, list[str]]:
    """Values of --grid by key, as they were typed."""
    axes: dict[str, list[str]] = {}
    for key in (text.partition("=")[0] for text in fixed):
        if key in OWN_FLAGS:
            raise ConfigError(f"--set {key}=...: a sweep has the flag {OWN_FLAGS[key]} for it")
    for text in each:
        key, equals, values = text.partition("=")
        if not equals:
            raise ConfigError(f"--grid {text}: expected KEY=VALUE,VALUE, for example training.lambda=0,0.25,0.5")
        if key in OWN_FLAGS:
            hint = "; it cannot differ within a sweep" if key in ("frames", "until") else ""
            raise ConfigError(f"--grid {text}: use {OWN_FLAGS[key]}{hint}")
        if key in axes or key in (text.partition("=")[0] for text in fixed):
            raise ConfigError(f"{key} is set twice; give all its values in one --grid {key}=...")
        axes[key] = _items(values, f"--grid {key}=")
    return axes


def _items(text: str, flag: str) -> list[str]:
    """What is between commas, but not those within brackets."""
    items, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    items = [item.strip() for item in items]
    if not all(items):
        raise ConfigError(f"{flag} {text!r}: something is missing; type names or values with commas between, as in A,B")
    if len(set(items)) < len(items):
        raise ConfigError(f"{flag} {text}: something is there twice; name each once")
    return items
