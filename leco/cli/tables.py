"""What there is: `leco tasks`, `leco methods`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leco.envs.registry import FAMILIES, TASKS
from leco.methods.own import installed_names
from leco.methods.table import METHODS, find_method
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
        more = f", and any other id that it registers, for example {family.example}" if family.other else ""
        sys.stdout.write(f"Played by {family.title}: {', '.join(task.name for task in family.tasks)}{more}.\n")


def methods(arguments: Sequence[str]) -> None:
    """Prints the methods."""
    Parser("leco methods", description="Lists the methods.").parse_args(arguments)
    found, damaged = list(METHODS.values()), []
    for name in installed_names():
        try:
            found.append(find_method(name))
        except ValueError as error:
            damaged.append(f"{error}\n")
    rows = [(m.name, m.hash.value, m.bonus, m.modulation.value, m.description) for m in found]
    print_table(("method", "hash", "novelty", "modulation", "in words"), rows)
    sys.stdout.write("".join(damaged))


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Prints rows below their headings, in columns."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
