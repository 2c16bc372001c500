"""What there is: `leco tasks`, `leco methods`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leco.envs.registry import FAMILIES, TASKS
from leco.methods.table import METHODS
from services.flags import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence


def tasks(arguments: Sequence[str]) -> None:
    """Prints the tasks."""
    Parser(
        "leco tasks", description="Lists the tasks, each with the steps after which it cuts an episode off."
    ).parse_args(arguments)
    rows = [(t.name, f"{t.max_steps}", f"{t.gamma:g}", t.description) for t in TASKS.values()]
    print_table(("task", "max steps", "gamma", "what has to be done"), rows)
    sys.stdout.write("\n")
    for family in FAMILIES.values():
        known = [task.name for task in family.tasks]
        if family.other is not None:
            known.append(f"any other id that it knows, for example {family.example}")
        sys.stdout.write(f"Played by {family.title}: {', '.join(known)}.\n")


def methods(arguments: Sequence[str]) -> None:
    """Prints the methods."""
    Parser("leco methods", description="Lists the methods.").parse_args(arguments)
    rows = [(m.name, m.hash.value, m.bonus, m.modulation.value, m.description) for m in METHODS.values()]
    print_table(("method", "hash", "novelty", "modulation", "in words"), rows)


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Prints rows below their headings, in columns."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
