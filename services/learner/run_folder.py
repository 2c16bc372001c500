"""A run's folder: the experiment and the versions it was made with.

config.toml         the experiment, resolved
versions.json       what command, software and hardware trained it, at every start
metrics.csv         the curves
tensorboard/        the same
checkpoints/        see services.learner.checkpoints
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import time
from importlib import metadata
from typing import TYPE_CHECKING, Any

import structlog

from leco.checkpoint.atomic_file import atomic_write, set_aside
from leco.checkpoint.trained import frames_of_update, trained_updates
from leco.config.experiment import ConfigError, Experiment
from leco.config.toml import flat, parse, to_toml
from leco.envs.registry import FAMILIES
from leco.telemetry.provenance import hardware, typed_command

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger("leco.learner")

ENDS = ("frames", "until")  # what may differ between the starts of a run
PACKAGES = ("leco", "torch", "numpy", "grpcio", *dict.fromkeys(family.package for family in FAMILIES.values()))


def open_run(folder: Path, config: Path | None) -> Experiment:
    """The experiment of a run; makes the folder, or checks that what it has is the same experiment.

    A run that is resumed may be told to end elsewhere (`frames`, `until`); anything else that differs is an error, since half a
    run of one experiment and half of another is none.
    """
    experiment = read_run(folder, config)
    check_same(folder, experiment)
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "config.toml", to_toml(experiment).encode())
    _note_versions(folder / "versions.json")
    return experiment


def read_run(folder: Path, config: Path | None) -> Experiment:
    """The experiment that is asked for, or that the folder has."""
    kept = folder / "config.toml"
    if config is None and not kept.exists():
        raise ConfigError(f"{folder} has no config.toml yet: give --config")
    return _read(kept) if config is None else parse(config.read_text())


def check_same(folder: Path, experiment: Experiment) -> None:
    """Refuses to go on in a folder of another experiment, or to end before what it has trained.

    Raises:
        ConfigError: what differs, and what to do.
    """
    if differs := difference(folder, experiment):
        raise ConfigError(
            f"{folder} holds a run of another experiment ({differs}); choose another folder, or give the same experiment to go on"
        )


def difference(folder: Path, experiment: Experiment) -> str:
    """Why an experiment cannot go on in a run's folder: other settings, or fewer frames than were trained. Empty if it can.

    Raises:
        ConfigError: the folder's config.toml cannot be used.
    """
    kept = folder / "config.toml"
    if not kept.exists():
        return ""
    now, then, off = flat(experiment), flat(_read(kept)), "off"
    changed = [
        f"{key} is {now.get(key, off)!r}, was {then.get(key, off)!r}"
        for key in now | then
        if key not in ENDS and now.get(key) != then.get(key)
    ]
    # A run ends with whole updates, and a deterministic one with a checkpoint: a little more is as it should be.
    size, learner = frames_of_update(experiment), experiment.learner
    trained = trained_updates(folder) * size
    if not changed and trained - experiment.frames >= (learner.checkpoint_every if learner.deterministic else 1) * size:
        changed = [f"frames is {experiment.frames:,}, but {trained:,} are trained already: give more"]
    return "; ".join(changed)


def _read(kept: Path) -> Experiment:
    """The experiment in a run's config.toml."""
    try:
        return parse(kept.read_text())
    except ValueError as error:  # also bytes that are no text
        raise ConfigError(
            f"{kept} cannot be read ({error}): put a copy of it there, or remove it and give the experiment again (--config)"
        ) from error


def run_name(folder: Path) -> str:
    """The run's name on the wire: the folder's, of the characters that a name may have."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", folder.resolve().name)[-64:] or "run"


def _note_versions(path: Path) -> None:
    starts = _starts(path)
    found = {name: _version(name) for name in PACKAGES}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    made_by = {"started": now, "command": typed_command(), "python": platform.python_version(), **hardware()}
    starts.append(made_by | {"machine": platform.machine()} | found)
    atomic_write(path, (json.dumps(starts, indent=1) + "\n").encode())


def _starts(path: Path) -> list[Any]:
    """The starts that were noted before."""
    if not path.exists():
        return []
    with contextlib.suppress(ValueError):
        starts = json.loads(path.read_bytes())
        if isinstance(starts, list):
            return starts
    log.error("versions.json is damaged: it begins anew", path=str(path), set_aside=str(set_aside(path)))
    return []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
