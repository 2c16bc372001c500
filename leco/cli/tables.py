"""What there is: `leco tasks`, `leco methods`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leco.envs.registry import TASKS
from leco.methods.table import METHODS

if TYPE_CHECKING:
    from collections.abc import Sequence

_OTHER_SIMULATORS = {"dmlab": "DeepMind Lab", "vizdoom": "ViZDoom"}


def tasks(_arguments: Sequence[str]) -> None:
    """Prints the tasks."""
    rows = [(t.name, f"{t.max_steps}", f"{t.gamma:g}", t.description) for t in TASKS.values()]
    print_table(("task", "actions", "gamma", "what has to be done"), rows)
    sys.stdout.write("\n")
    for simulator, title in _OTHER_SIMULATORS.items():
        names = ", ".join(t.name for t in TASKS.values() if t.simulator == simulator)
        sys.stdout.write(f"Played by {title}: {names}.\n")
    sys.stdout.write(
        "Played by MiniGrid: all others. Any other id that it registers works too, for example MiniGrid-LavaGapS7-v0.\n"
    )


def methods(_arguments: Sequence[str]) -> None:
    """Prints the methods."""
    rows = [(m.name, m.hash.value, m.bonus, m.modulation.value, m.description) for m in METHODS.values()]
    print_table(("method", "hash", "novelty", "modulation", "in words"), rows)


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Prints rows below their headings, in columns."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
