"""A film of an episode at each milestone of a run, while it trains: each is played and drawn by a child of low priority."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from leco.checkpoint.milestones import find_milestones
from leco.checkpoint.trained import frames_of_update
from leco.cli.child import POLL_SECONDS, Child, last_lines
from leco.config.experiment import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leco.config.experiment import Experiment

LOWEST_PRIORITY = 19
MOST_SECONDS = 900.0  # for one film


class Film(NamedTuple):
    """An episode of the level of seed 0.

    frames   actions that its policy was trained on
    path     an MP4, which is gone after the run
    """

    frames: int
    path: Path


class Films:
    """Makes a film of each new milestone, one at a time.

    Args:
        folder: The run's.
        experiment: What it trains.
        show: Is given each film, in order.
    """

    def __init__(self, folder: Path, experiment: Experiment, show: Callable[[Film], object]) -> None:
        self._folder, self._experiment, self._show = folder, experiment, show
        self._place = tempfile.TemporaryDirectory(prefix="leco-films-")
        self._old = self._milestones()
        self._due: list[Path] = []
        self._child: Child | None = None
        self._making = Film(0, Path())

    def look(self) -> None:
        """Shows a film that is done, and begins the next one."""
        new = [path for path in self._milestones() if path not in self._old]
        self._old += new
        self._due += new
        if self._child is not None:
            self._look_after(self._child)
        if self._child is None and self._due:
            self._start(self._due.pop(0))

    def close(self) -> None:
        """Ends with the last milestone's film."""
        try:
            self.look()
            if self._child is not None:
                sys.stdout.write("drawing an episode\n")
                sys.stdout.flush()
            while self._child is not None:
                time.sleep(POLL_SECONDS)
                self.look()
        finally:
            if self._child is not None:
                self._child.stop(seconds=2)
            self._place.cleanup()

    def _milestones(self) -> list[Path]:
        with contextlib.suppress(ConfigError):  # there is none yet
            return list(find_milestones(self._folder, self._experiment).values())
        return []

    def _start(self, milestone: Path) -> None:
        updates = int(milestone.stem.rpartition("-")[2])
        place = Path(self._place.name)
        self._making = Film(updates * frames_of_update(self._experiment), place / f"{updates}.mp4")
        command = [
            sys.executable,
            "-P",
            "-m",
            "leco.cli.film",
            str(self._folder),
            str(milestone),
            str(self._making.path),
        ]
        self._child = Child("film", command, place / f"{updates}.log")
        self._child.start()
        assert self._child.process is not None  # noqa: S101  # it was started
        os.setpriority(os.PRIO_PROCESS, self._child.process.pid, LOWEST_PRIORITY)

    def _look_after(self, child: Child) -> None:
        """Shows what a child that has ended has made, and ends one that takes too long."""
        code = child.ended()
        if code is None and time.monotonic() - child.started < MOST_SECONDS:
            return
        self._child = None
        child.stop(seconds=2)
        if code == 0:
            self._show(self._making)
        else:
            why = f"not done in {MOST_SECONDS / 60:.0f} minutes" if code is None else last_lines(child.log, 1)
            sys.stdout.write(f"\nno film after {self._making.frames:,} frames: {why or f'exit code {code}'}\n")
            sys.stdout.flush()
