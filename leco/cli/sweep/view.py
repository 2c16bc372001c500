"""What a person sees while a sweep runs: a table that is redrawn in place, or lines below each other."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, TextIO

from leco.cli.sweep.folder import evaluation
from leco.cli.sweep.jobs import seconds_left
from leco.telemetry.timing import clock
from leco.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.cli.sweep.jobs import Job

REDRAW_SECONDS = 1.0
PLAIN_SECONDS = 60.0
REST = f"{'state':10} {'frames':>13} {'frames/s':>8} {'success':>7} {'left':>8}"
SHORTEST = 12  # a name that is cut below this tells nothing
FIRST_SHOWN = ("running", "evaluating", "failed", "waiting", "done")  # where lines are few


class View:
    """Shows jobs.

    Args:
        jobs: All of them.
        parallel: How many are worked on at a time.
        out: Where to.
        plain: Lines, even on a terminal.
    """

    def __init__(self, jobs: Sequence[Job], parallel: int, out: TextIO, *, plain: bool) -> None:
        self._jobs, self._parallel, self._out = jobs, parallel, out
        self._table = out.isatty() and not plain
        self._drawn = 0  # lines of the table that is there
        self._next = time.monotonic() + (0.0 if self._table else PLAIN_SECONDS)

    def show(self, *, last: bool = False) -> None:
        """Shows how things are, if it is time for it."""
        if time.monotonic() < self._next and not last:
            return
        self._next = time.monotonic() + (REDRAW_SECONDS if self._table else PLAIN_SECONDS)
        for job in self._jobs:
            if job.state == "running":
                job.look()
        if self._table:
            self._draw()
        else:
            lines = [sentence(job) for job in self._jobs if job.state == "running" and not last]
            self._write("\n".join([*lines, overall(self._jobs, self._parallel)]) + "\n")

    def changed(self, job: Job) -> None:
        """Shows that a job's state changed."""
        if self._table:
            self._draw()
        else:
            self._write(sentence(job) + "\n")

    def say(self, text: str) -> None:
        """A line that the next table takes the place of."""
        self._write(f"{text}\n")
        self._drawn += 1

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        lines = [
            *table(self._jobs, size.columns - 1, size.lines - 2),
            overall(self._jobs, self._parallel)[: size.columns - 1],
        ]
        back = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._write(back + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._drawn = len(lines)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def table(jobs: Sequence[Job], width: int, height: int) -> list[str]:
    """A head and a line for each job, none longer than `width`; only those that matter most if they are more than `height`."""
    room = max(width - len(REST) - 1, SHORTEST)
    names = min(max((len(job.run.name) for job in jobs), default=0), room)
    most = max(height - 1, 2)
    shown, note = list(jobs), []
    if len(jobs) > most:
        ranked = sorted(range(len(jobs)), key=lambda index: (FIRST_SHOWN.index(jobs[index].state), index))
        shown = [jobs[index] for index in sorted(ranked[: most - 1])]
        rest = [jobs[index].state for index in ranked[most - 1 :]]
        note = [f"and {len(rest)} more: {', '.join(f'{rest.count(s)} {s}' for s in FIRST_SHOWN if s in rest)}"]
    lines = [f"{'run':{names}} {REST}", *(f"{_short(job.run.name, names):{names}} {_cells(job)}" for job in shown)]
    return [line[:width].rstrip() for line in (*lines, *note)]


def _cells(job: Job) -> str:
    frames = f"{_count(job.frames)}/{_count(job.run.experiment.frames)}"
    speed = "-" if job.speed is None else f"{job.speed:,.0f}"
    left = duration(job.left / job.pace) if job.state == "running" and job.pace else "-"
    return f"{job.state:10} {frames:>13} {speed:>8} {_percent(job.success):>7} {left:>8}"


def _short(name: str, width: int) -> str:
    """Without its middle, if it is too long: what differs is at both ends."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}~{name[-end:]}"


def _count(frames: int) -> str:
    if frames < 10_000:
        return str(frames)
    return f"{frames / 1e3:.0f}k" if frames < 999_500 else f"{frames / 1e6:.2f}M"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, or days."""
    hours = int(seconds) // 3600
    return clock(seconds) if hours < 100 else f"{hours // 24} days"


def sentence(job: Job) -> str:
    """A job in a line of its own."""
    total, begin = job.run.experiment.frames, f"{job.run.name}: {job.state}"
    if job.state == "failed":
        return "\n  ".join([f"{begin}; its last words:", *job.why.splitlines()])
    if job.state == "done" and (found := evaluation(job.folder)) is not None:
        solved = ""  # of a task that calls no episode solved
        if found["success"] is not None:
            low, high = 100 * found["success_low"], 100 * found["success_high"]
            solved = f"success {100 * found['success']:.1f} % (95 %: {low:.1f} to {high:.1f}), "
        played = f"{begin}, {job.frames:,} frames; {counted(found['episodes'], 'fresh episode')}"
        return f"{played}: {solved}return {found['return']:.3f}"
    parts = [begin, f"{job.frames:,} of {total:,} frames"]
    if job.state == "running":
        parts += [f"{job.speed:,.0f} frames/s"] if job.speed is not None else []
        parts += [f"success {_percent(job.success)}"] if job.success is not None else []
        parts += [f"{duration(job.left / job.pace)} left"] if job.pace else []
    return ", ".join(parts)


def overall(jobs: Sequence[Job], parallel: int) -> str:
    """All of them in a line."""
    states = [job.state for job in jobs]
    failed = f", {states.count('failed')} failed" if "failed" in states else ""
    left = seconds_left(jobs, parallel)
    if all(state in ("done", "failed") for state in states):
        rest = ""
    elif left is None:
        rest = "; time left is not known yet"
    else:
        rest = f"; about {duration(left)} left" if left else "; only evaluations are left"
    return f"{states.count('done')} of {counted(len(jobs), 'run')} done{failed}{rest}"
