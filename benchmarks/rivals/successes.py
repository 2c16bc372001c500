"""What a rival says of its training: a file with a line for each batch, with the columns of leco's metrics.csv."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RECENT_EPISODES = 100


class Successes:
    """The share of the last 100 training episodes that the task rewarded.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        path.write_text("frames,seconds,episodes,success\n")
        self._path = path
        self._recent: deque[bool] = deque(maxlen=RECENT_EPISODES)
        self._episodes, self._begin = 0, time.monotonic()

    def ended(self, *, solved: bool) -> None:
        """An episode has ended."""
        self._episodes += 1
        self._recent.append(solved)

    def write(self, frames: int) -> None:
        """A line, after so many actions."""
        share = sum(self._recent) / len(self._recent) if self._recent else 0.0
        with self._path.open("a") as file:
            file.write(f"{frames},{time.monotonic() - self._begin:.3f},{self._episodes},{share:.4f}\n")
