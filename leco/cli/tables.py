"""What there is: `leco tasks`, `leco methods`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leco.cli.environment_flags import add_environment, environment_of
from leco.config.experiment import ConfigError
from leco.config.toml import parse, to_toml
from leco.envs.registry import FAMILIES, TASKS
from leco.methods.own import installed_names
from leco.methods.table import METHODS, find_method
from services.flags import Parser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def tasks(arguments: Sequence[str]) -> None:
    """Prints the tasks; or one of Gymnasium's, as leco finds it."""
    parser = Parser(
        "leco tasks",
        description="Lists the tasks, each with the steps after which it cuts an episode off. With the id of an environment of "
        "Gymnasium: what leco finds of it, as an experiment's TOML has it.",
    )
    parser.add_argument("id", nargs="?", help="for example CartPole-v1, or my_module:MyEnv-v0")
    add_environment(parser)
    given = parser.parse_args(arguments)
    if given.id is not None:
        try:
            sys.stdout.write(experiment_of(given.id, environment_of(given)))
        except ConfigError as error:
            parser.refuse(error)
        return
    rows = [(t.name, f"{t.max_steps}", f"{t.gamma:g}", t.description) for t in TASKS.values()]
    print_table(("task", "max steps", "gamma", "what has to be done"), rows)
    sys.stdout.write("\n")
    for family in FAMILIES.values():
        named = [task.name for task in family.tasks]
        if family.other:
            named.append(f"any {'other ' if named else ''}id that it registers, for example {family.example}")
        sys.stdout.write(f"Played by {family.title}: {', '.join(named)}.\n")


def experiment_of(name: str, environment: Mapping[str, object]) -> str:
    """The part of an experiment's TOML that says what is played.

    Args:
        name: A task, or an id of Gymnasium.
        environment: Keys of the section [environment].
    """
    lines = to_toml(parse("", {"task": name} | dict(environment))).splitlines()
    begin = lines.index("[environment]") if "[environment]" in lines else len(lines)
    return "\n".join([next(line for line in lines if line.startswith("task")), "", *lines[begin:]]).rstrip() + "\n"


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
