"""What a person sees while a run trains: a line every few seconds, from the run's own metrics.csv."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from leco.clock import clock
from leco.report.metrics import read_metrics

if TYPE_CHECKING:
    from pathlib import Path

    from leco.config import Experiment

HEADER = f"{'frames':>12} {'done':>5} {'frames/s':>9} {'return':>7} {'success':>8} {'r_ep':>6} {'r_ta':>6} {'lag':>4} {'left':>8}"
SECONDS = 5.0


class Progress:
    """Shows the last line of metrics.csv: on a terminal in place, otherwise below each other.

    Args:
        path: metrics.csv.
        experiment: How many frames there will be.
        out: Where to.
    """

    def __init__(self, path: Path, experiment: Experiment, out: TextIO) -> None:
        self._path, self._experiment, self._out = path, experiment, out
        self._next = time.monotonic() + SECONDS
        self._shown = ""
        self._begun = False

    def show(self, *, last: bool = False) -> None:
        """Shows a line if it is time for one."""
        if time.monotonic() < self._next and not last:
            return
        self._next = time.monotonic() + SECONDS
        row = self._read()
        if row is None:
            return
        line = self._line(row)
        if line == self._shown and not last:
            return
        if not self._begun:
            self._out.write(HEADER + "\n")
            self._begun = True
        in_place = self._out.isatty()
        self._out.write(f"\r{line}" if in_place else "" if line == self._shown else f"{line}\n")
        if in_place and last:
            self._out.write("\n")
        self._out.flush()
        self._shown = line

    def _read(self) -> dict[str, str] | None:
        try:
            rows = read_metrics(self._path)
        except OSError:
            return None
        return rows[-1] if rows else None

    def _line(self, row: dict[str, str]) -> str:
        frames, speed = int(row["frames"]), float(row["frames_per_second"])
        left = max(self._experiment.frames - frames, 0) / max(speed, 1e-9)
        success = f"{100 * float(row['success']):.0f} %" if row["success"] else "-"

        def number(name: str, form: str) -> str:
            return f"{float(row[name]):{form}}" if row[name] else "-"

        return (
            f"{frames:>12,} {100 * frames / self._experiment.frames:>4.0f}% {speed:>9,.0f} {number('return', '.3f'):>7} "
            f"{success:>8} {number('r_ep', '.3f'):>6} {number('r_ta', '.3f'):>6} {number('lag', '.1f'):>4} {clock(left):>8}"
        )
