"""A run's checkpoints in its folder: the newest few, the best, and milestones.

checkpoints/000012000.safetensors   after 12,000 updates
checkpoints/best.safetensors        of the highest mean return so far
checkpoints/milestone-...           see leco.checkpoint.milestones
checkpoints/versions                no version of the parameters above this number was ever published
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import structlog

from leco.checkpoint.atomic_file import atomic_write
from leco.checkpoint.milestones import milestone_path
from leco.checkpoint.state_file import SavedStateError, load, save
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
        self._versions = folder / "versions"
        self._reserved = int(self._versions.read_text()) if self._versions.exists() else 0
        # Far above all others: what was played before a crash is then older than any lag that is worth allowing.
        self._begun = self._reserved + RESERVED_VERSIONS if self._reserved else 0

    def newest(self, like: TrainingState) -> tuple[TrainingState, dict[str, MetadataValue]] | None:
        """The newest checkpoint that can be read; None if there is none.

        Raises:
            SavedStateError: there are some, and none can be read: a run must not begin anew over what it could have gone on
                from.
        """
        failure: SavedStateError | None = None
        for path in reversed(self._saved()):
            try:
                return load(path, like)
            except SavedStateError as error:
                log.error("a checkpoint cannot be used; trying the one before", error=str(error))
                failure = failure or error
        if failure is not None:
            raise failure
        return None

    def save(self, state: TrainingState, metadata: Mapping[str, MetadataValue], *, best: bool) -> None:
        """Saves a state, and removes what is older than the newest few."""
        newest = self._folder / f"{state.updates:09d}.safetensors"
        save(newest, state, metadata)
        if best:
            save(self._folder / "best.safetensors", state, metadata)
        # A later one can only be damaged, and must not take the place of one that is not.
        for path in [each for each in self._saved() if each <= newest][: -self._keep]:
            path.unlink(missing_ok=True)

    def keep(self, state: TrainingState, metadata: Mapping[str, MetadataValue]) -> None:
        """Saves a state for good."""
        save(milestone_path(self._folder, state.updates), state, metadata)

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
