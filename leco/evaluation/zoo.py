"""The zoo: trained policies that come with leco, a folder for each.

In the repository they are in zoo/, in an installation in leco/zoo/.

zoo/NAME/policy.safetensors   what acts (`leco.checkpoint.snapshot.ActingParams`): the policy and, where it is learned, the hash
zoo/NAME/config.toml          the experiment, as the run's folder had it
zoo/NAME/metrics.csv          the run's curves, thinned
zoo/NAME/evaluation.json      what `leco eval` found
zoo/NAME/provenance.json      what trained it: command, seed, commit, versions and hardware, frames and seconds

An entry has neither modulator nor V^e nor optimiser: it is to play with, not to train on. Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leco.config.experiment import ConfigError, method_of
from leco.config.toml import parse
from leco.methods.table import Modulation
from leco.report.metrics import Reached

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from leco.config.experiment import Experiment

ZOO = Path("zoo")
POLICY, CONFIG, METRICS = "policy.safetensors", "config.toml", "metrics.csv"
EVALUATION, PROVENANCE = "evaluation.json", "provenance.json"
MOST_LINES = 200  # of metrics.csv


class ZooError(ValueError):
    """An entry that is damaged, or cannot be made. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of an entry.

    frames, seconds   of its whole training
    learned           when 90 % of the last 100 episodes of its training were first solved; None if they never were
    episodes, success, low, high   fresh episodes, the share of them that was solved, and its 95 % interval; None if the task
                      calls no episode solved
    size              of its files, in bytes
    """

    name: str
    task: str
    method: str
    seed: int
    frames: int
    seconds: float
    learned: Reached | None
    episodes: int
    success: float | None
    low: float | None
    high: float | None
    size: int


def zoo_folder() -> Path:
    """The folder `zoo` here; where there is none, the one that comes with leco."""
    if find_entries(ZOO):
        return ZOO
    package = Path(__file__).parents[1]
    return next((each for each in (package / "zoo", package.parent / "zoo") if find_entries(each)), ZOO)


def find_run(run: Path) -> Path:
    """A run's folder, or that of an entry: zoo/NAME means one that comes with leco, where there is no such folder here."""
    if not run.exists() and len(run.parts) == 2 and run.parts[0] == ZOO.name:
        return zoo_folder() / run.name
    return run


def is_entry(folder: Path) -> bool:
    """Whether a folder is an entry of a zoo, and not a run."""
    return (folder / POLICY).is_file()


def find_entries(zoo: Path) -> list[Path]:
    """The entries in a folder, by name."""
    return sorted(path.parent for path in zoo.glob(f"[!.]*/{POLICY}"))


def read_entry(folder: Path) -> Entry:
    """What an entry's files say of it.

    Raises:
        ZooError: one of them is missing or damaged.
    """
    try:
        experiment = parse((folder / CONFIG).read_text())
        found, made = (json.loads((folder / name).read_text()) for name in (EVALUATION, PROVENANCE))
        learned = made["learned"]
        return Entry(
            name=folder.name,
            task=experiment.task,
            method=experiment.method,
            seed=experiment.seed,
            frames=int(made["frames"]),
            seconds=float(made["seconds"]),
            learned=None if learned is None else Reached(**learned),
            episodes=int(found["episodes"]),
            success=found["success"],
            low=found["success_low"],
            high=found["success_high"],
            size=sum((folder / each).stat().st_size for each in (POLICY, CONFIG, METRICS, EVALUATION, PROVENANCE)),
        )
    except (ConfigError, OSError, ValueError, LookupError, TypeError) as error:
        raise ZooError(f"{folder} is a damaged entry of the zoo: {error}") from error


def absent(experiment: Experiment) -> str:
    """What an entry of this experiment cannot tell, in a sentence; empty if there is nothing."""
    method = method_of(experiment)
    by_memory = method.remembers(experiment.training.episodic_bonus)
    missing = {}
    if method.bonus_needs_network or by_memory:
        missing["r_ep"] = "what the run has seen" if by_memory else "the networks that measure novelty"
    if method.modulation is not Modulation.NONE:
        missing["r_ta"] = "the modulator and V^e"
    if not missing:
        return ""
    return f"An entry of the zoo is without {', '.join(missing.values())}: {', '.join(missing)} and r_i are not known."


def thinned(rows: Sequence[dict[str, str]], most: int = MOST_LINES) -> list[dict[str, str]]:
    """At most so many lines, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def to_csv(rows: Sequence[dict[str, str]]) -> str:
    """Lines of metrics.csv as a file has them."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(document: Mapping[str, Any]) -> str:
    """A file of an entry."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


@contextlib.contextmanager
def new_entry(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A place to write an entry's files to, which becomes its folder when all of them are there.

    Raises:
        ZooError: the folder exists, and is not to be replaced.
    """
    if folder.exists() and not replace:
        raise ZooError(f"{folder} exists already: choose another name with --name, or replace it with --force")
    place = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.partial")
    place.mkdir(parents=True)
    try:
        yield place
        if replace and folder.exists():
            shutil.rmtree(folder)
        place.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
