"""From the runs of `time_to_solve.py` to its tables."""

from __future__ import annotations

import csv
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEADER = ("contestant", "seconds", "times leco", "processor seconds", "times leco", "frames, thousands", "not by then")


class Run(NamedTuple):
    """A line of the CSV.

    budget       seconds after which the run was ended
    seconds      until 90 of the last 100 episodes were solved; None if they were not by then
    cpu_seconds  of processors, until then
    frames       actions until then
    success      of the last 100 episodes then; the best there was, if they were not; 0 before 100 had ended
    load         average of the minute before it began
    date         when it began
    """

    task: str
    contestant: str
    seed: int
    budget: float
    seconds: float | None
    cpu_seconds: float
    frames: int
    success: float
    load: float
    date: str


class Least(NamedTuple):
    """A number, or what is known to be less than it."""

    value: float
    exact: bool

    def text(self, form: str) -> str:
        """As a cell has it."""
        return f"{'' if self.exact else '> '}{self.value:{form}}"


def read_runs(path: Path) -> list[Run]:
    """The lines of the CSV; of a run that was made again, the last one."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[tuple[str, str, str], Run] = {}
    for row in rows:
        found[row["task"], row["contestant"], row["seed"]] = Run(
            row["task"],
            row["contestant"],
            int(row["seed"]),
            float(row["budget"]),
            float(row["seconds"]) if row["seconds"] else None,
            float(row["cpu_seconds"]),
            int(row["frames"]),
            float(row["success"]),
            float(row["load"]),
            row["date"],
        )
    return list(found.values())


def solve_table(runs: Sequence[Run], leco: str) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Header and rows: the runs of one task, a row for each contestant.

    runs  of one task
    leco  the contestant that ratios are to
    """
    ours = {run.seed: run for run in runs if run.contestant == leco and run.seconds is not None}
    rows: list[Sequence[str]] = []
    for name in dict.fromkeys(run.contestant for run in runs):
        mine = sorted((run for run in runs if run.contestant == name), key=lambda run: run.seed)
        turns = [(run, ours[run.seed]) for run in mine if run.seed in ours]
        wall, cpu = [_seconds(run) for run in mine], [_cpu(run) for run in mine]
        frames = [Least(run.frames / 1e3, run.seconds is not None) for run in mine]
        late = [f"{run.success:.0%} at best" for run in mine if run.seconds is None]
        rows.append(
            (
                name,
                _each(wall),
                _spread([_over(_seconds(run), _seconds(leco_run)) for run, leco_run in turns]),
                _each(cpu),
                _spread([_over(_cpu(run), _cpu(leco_run)) for run, leco_run in turns]),
                _each(frames),
                ", ".join(late) or "-",
            )
        )
    return HEADER, rows


def median(values: Sequence[Least]) -> Least:
    """Exact, unless one that is not could be on the other side of it."""
    numbers = [each.value for each in values]
    upper = statistics.median_high(numbers)
    return Least(statistics.median(numbers), all(each.exact or each.value > upper for each in values))


def _seconds(run: Run) -> Least:
    return Least(run.budget, exact=False) if run.seconds is None else Least(run.seconds, exact=True)


def _cpu(run: Run) -> Least:
    return Least(run.cpu_seconds, run.seconds is not None)


def _over(theirs: Least, ours: Least) -> Least:
    return Least(theirs.value / ours.value, theirs.exact)


def _each(values: Sequence[Least]) -> str:
    return f"{median(values).text(',.0f')} ({', '.join(each.text(',.0f') for each in values)})"


def _spread(values: Sequence[Least]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{median(values).text('.1f')} ({ordered[0].text('.1f')} to {ordered[-1].text('.1f')})"
