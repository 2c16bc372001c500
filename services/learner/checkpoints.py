"""A run's checkpoints in its folder: the newest few, the best, and milestones.

checkpoints/000012000.safetensors   after 12,000 updates
checkpoints/best.safetensors        of the highest mean return so far
checkpoints/milestone-...           see leco.checkpoint.milestones
checkpoints/versions                no version of the parameters above this number was ever published. A checkpoint knows of one
                                    too (`last_version`), above which none is published before the next checkpoint
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import structlog

from leco.checkpoint.atomic_file import atomic_write, set_aside
from leco.checkpoint.milestones import milestone_path
from leco.checkpoint.state_file import SavedStateError, load, not_finite, save
from leco.config.experiment import RESERVED_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from leco.checkpoint.state_file import MetadataValue
    from leco.learning.state import TrainingState

log = structlog.get_logger("leco.learner")


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: `checkpoints` of the run; it is made if it is not there.
        keep: How many of the newest are kept.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._keep = folder, keep
        for path in folder.glob("*.safetensors"):
            if path.is_dir():
                log.error("a folder is in a checkpoint's place; it has another name now", name=str(set_aside(path)))
        self._versions, self._reserved, self._begun = folder / "versions", 0, 0
        reserved = _read_version(self._versions)
        self._damaged = reserved is None
        self._begin_above(reserved or 0)

    @property
    def best(self) -> Path:
        """Where the state of the highest mean return is."""
        return self._folder / "best.safetensors"

    def _begin_above(self, version: int) -> None:
        """Leaps far above what may have been published: what was played before is then older than any lag worth allowing."""
        if version > self._reserved:
            self._reserved, self._begun = version, version + RESERVED_VERSIONS

    def newest(self, like: TrainingState) -> tuple[TrainingState, dict[str, MetadataValue]] | None:
        """The newest checkpoint that can be read; None if there is none. Versions go on above those that it knows of.

        Raises:
            SavedStateError: there are some, and none can be read: a run must not begin anew over what it could have gone on
                from. Or there is none, and which versions were published cannot be read.
        """
        failure: SavedStateError | None = None
        for path in reversed(self._saved()):
            try:
                state, metadata = load(path, like)
                if name := not_finite(state):
                    raise SavedStateError(f"{path} is of no use: {name} is not finite; remove it")  # noqa: TRY301
            except SavedStateError as error:
                log.error("a checkpoint cannot be used; trying the one before", error=str(error))
                failure = failure or error
            else:
                if self._damaged:
                    log.error("versions is damaged; going on above those of the checkpoint", path=str(self._versions))
                self._begin_above(int(metadata.get("last_version", state.updates + RESERVED_VERSIONS)))
                return state, metadata
        if failure is None and self._damaged:
            failure = SavedStateError(
                f"{self._versions} is damaged, and there is no checkpoint yet: remove it, and start the actors again too"
            )
        if failure is not None:
            raise failure
        return None

    def save(self, state: TrainingState, metadata: Mapping[str, MetadataValue], *, best: bool) -> None:
        """Saves a state, and removes what is older than the newest few."""
        newest = self._folder / f"{state.updates:09d}.safetensors"
        _save(newest, state, metadata)
        if best:
            _save(self.best, state, metadata)
        # A later one can only be damaged, and must not take the place of one that is not.
        for path in [each for each in self._saved() if each <= newest][: -self._keep]:
            path.unlink(missing_ok=True)

    def keep(self, state: TrainingState, metadata: Mapping[str, MetadataValue]) -> None:
        """Saves a state for good."""
        _save(milestone_path(self._folder, state.updates), state, metadata)

    def version(self, updates: int) -> int:
        """A version for the parameters after so many updates: above every one that was published before this start.

        What is reserved is on disk before it is used, so no crash can make a version come twice.
        """
        version = self._begun + updates + 1
        if version > self._reserved:
            self._reserved = version + RESERVED_VERSIONS
            atomic_write(self._versions, str(self._reserved).encode())
        return version

    def _saved(self) -> list[Path]:
        return sorted(p for p in self._folder.iterdir() if re.fullmatch(r"[0-9]{9,}\.safetensors", p.name))


def _save(path: Path, state: TrainingState, metadata: Mapping[str, MetadataValue]) -> None:
    if name := not_finite(state):
        raise ValueError(f"{name} is not finite: {path} is not written, and the checkpoints before it stay")
    save(path, state, metadata)


def _read_version(path: Path) -> int | None:
    """The number in a file; 0 if it is not there, None if it holds anything else."""
    if not path.exists():
        return 0
    try:
        version = int(path.read_bytes())
    except ValueError:
        return None
    return version if 0 <= version < 2**63 else None
