"""A page of figures from run folders: `leco report`."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from leco.report.page import write_report
from leco.report.runs import ReportError, read_runs
from leco.words import counted
from services.flags import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.report.runs import Run

DESCRIPTION = """\
Writes one page, DIR/index.html, with the figures of runs: learning curves, the intrinsic reward, maps of where the agent went,
its codes, a table of results, and how all was made. It opens from disk, without network. Each figure is also in DIR/figures, as
PNG and SVG. Runs that are still being trained, or whose folders are damaged, are shown as far as they are there."""
EXAMPLES = """\
examples:
  leco report runs/KeyCorridorS3R3-leco-1 --out report
  leco report runs/sweep --out report            all runs of a sweep
  leco eval RUN --checkpoint milestones          before it: records what maps and codes are drawn from"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads, draws, says where."""
    parser = Parser(
        "leco report", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs, or of sweeps")
    parser.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help="default: report")
    parser.add_argument("--title", help="of the page (default: the names of tasks and methods)")
    given = parser.parse_args(arguments)
    try:
        runs = read_runs(given.runs)
        commands = [command for folder in given.runs for command in _sweep_command(folder)]
        figures = write_report(runs, given.out, title=given.title or _title(runs), commands=commands)
    except (ReportError, OSError) as error:
        parser.refuse(error)
    for run in runs:
        for sentence in run.missing:
            sys.stdout.write(f"{run.name}: {sentence}\n")
    sys.stdout.write(f"{counted(len(runs), 'run')}, {counted(len(figures), 'figure')}: {given.out / 'index.html'}\n")


def _title(runs: Sequence[Run]) -> str:
    def listed(name: str) -> str:
        words = list(dict.fromkeys(str(getattr(run, name)) for run in runs))
        return ", ".join(words) if len(words) <= 4 else f"{len(words)} {name}s"

    return f"{listed('method')} on {listed('task')}"


def _sweep_command(folder: Path) -> list[str]:
    """What a sweep was asked for, if this is one."""
    try:
        return [str(tomllib.loads((folder / "sweep.toml").read_text())["command"])]
    except (OSError, ValueError, KeyError):
        return []


if __name__ == "__main__":
    main()
