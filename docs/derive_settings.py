# ruff: noqa: INP001 # a script beside what it writes
"""Writes docs/reference/settings.md: every setting and every flag of a service, from the code that reads them.

python docs/derive_settings.py           # writes it
python docs/derive_settings.py --check   # fails if it is out of date
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from leco.config.experiment import ActorConfig, Experiment, LearnerConfig
from leco.config.toml import flat, parse
from leco.config.training import HashConfig, NetworkConfig, TrainingConfig
from leco.envs.task import EnvironmentConfig
from services.actor import config as actor
from services.flags import ServiceParser
from services.hashcount import config as hashcount
from services.learner import config as learner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/settings.md"
SECTIONS: tuple[tuple[str, type], ...] = (
    ("", Experiment),
    ("actors", ActorConfig),
    ("learner", LearnerConfig),
    ("network", NetworkConfig),
    ("training", TrainingConfig),
    ("hash", HashConfig),
    ("environment", EnvironmentConfig),
)
SERVICES = {"learner": learner, "actor": actor, "hashcount": hashcount}
OF_THE_MACHINE = {("learner", "--threads"): "all processors", ("actor", "--name"): "the host's name"}
TASK = "KeyCorridorS3R3"  # whose defaults are shown
INTRODUCTION = f"""\
# Settings

<!-- Written by docs/derive_settings.py from the code; `make lint` checks that it is current. -->

An experiment is a TOML file, a preset, flags, or all of them: a flag wins over the file, and the
file over the preset.

    leco train --task KeyCorridorS3R3 --preset laptop --set training.alpha=0.02
    leco train --config configs/KeyCorridorS4R3.toml --frames 20e6

The keys of the file are those of the tables below: `training.alpha` stands in the table
`[training]`. An unknown key is an error that names the nearest known one. Every run keeps all of
its settings in `config.toml`. From Python: `leco.train(..., settings={{"training.alpha": 0.02}})`.

The defaults are of `leco` on {TASK}: `paper` with `--preset paper`, `laptop` with the preset with
which `leco train` begins ([why there are two](../decisions/018-two-presets.md)). A method, a task
and a kind of observation have some of their own. "-" is off, or left to the method.
"""
FLAGS = """\
## Flags of the services

What belongs to a process and not to the experiment. Each flag is also an environment variable,
which it wins over. `leco train` sets what it needs of these by itself; its own flags are in
`leco train --help`.
"""


def page() -> str:
    """The whole page."""
    defaults = {preset: flat(parse("", {"task": TASK, "preset": preset})) for preset in ("paper", "laptop")}
    parts = [INTRODUCTION]
    for section, kind in SECTIONS:
        source = Path(inspect.getfile(kind)).relative_to(ROOT)
        parts.append(f"## {f'[{section}]' if section else 'The experiment'}\n")
        parts.append(f"{_summary(kind)} Source: `{kind.__name__}` in [{source}](../../{source}).\n")
        parts += _table(("key", "type", "paper", "laptop", "meaning"), _settings(section, kind, defaults))
    parts.append(FLAGS)
    for name, module in SERVICES.items():
        source = Path(inspect.getfile(module)).relative_to(ROOT)
        parts += [f"### leco {name}\n", f"Source: [{source}](../../{source}).\n"]
        parts += _table(
            ("flag", "environment variable", "default", "meaning"), _flags(name, _parser(module.read_settings))
        )
    return "\n".join(parts).rstrip() + "\n"


def _summary(kind: type) -> str:
    return str(inspect.getdoc(kind)).split("\n\n", 1)[0].replace("\n", " ")


def _settings(section: str, kind: type, defaults: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    hints, meanings = typing.get_type_hints(kind), _meanings(kind)
    for each in dataclasses.fields(kind):
        if any(map(dataclasses.is_dataclass, (hints[each.name], *typing.get_args(hints[each.name])))):
            continue  # a section of its own
        name = each.name.rstrip("_")
        key = f"{section}.{name}" if section else name
        shown = [_shown(defaults[preset].get(key)) for preset in ("paper", "laptop")]
        yield f"`{key}`", _type(hints[each.name]), *shown, meanings.get(each.name) or _plain(name)


def _plain(name: str) -> str:
    """A name that says it all."""
    return name.replace("_", " ")


def _meanings(kind: type) -> dict[str, str]:
    """The columns of a docstring: names, two spaces or more, and what they mean, perhaps over several lines."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in str(inspect.getdoc(kind)).split("\n"):
        entry = re.match(r"([a-z_]+(?:, [a-z_]+)*) {2,}(\S.*)", line)
        if entry:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.startswith(" ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found


def _type(hint: Any) -> str:
    options = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(f"`{each}`" for each in options)
    if typing.get_origin(hint) is tuple:
        return "texts" if ... in options else f"{len(options)} numbers"
    if typing.get_origin(hint) is dict:
        return "table"
    if options:
        return _type(options[0])
    return {bool: "true or false", int: "whole number", float: "number", str: "text"}[hint]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)


class _FoundError(Exception):
    """Has the parser."""


def _parser(read_settings: Callable[[list[str]], object]) -> ServiceParser:
    """The parser that reads a service's settings, which its function makes for itself."""

    def found(self: ServiceParser, *_: object) -> None:
        raise _FoundError(self)

    with mock.patch.object(ServiceParser, "parse_args", found):
        try:
            read_settings([])
        except _FoundError as error:
            parser: ServiceParser = error.args[0]
            return parser
    raise TypeError(f"{read_settings} has no parser")


def _flags(service: str, parser: ServiceParser) -> Iterator[tuple[str, ...]]:
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way
        if action.dest == "help":
            continue
        flag = action.option_strings[-1]
        meaning = re.sub(r" \(default: [^()]*\)$", "", str(action.help))
        variable = f"LECO_{service.upper()}_{flag.removeprefix('--').replace('-', '_').upper()}"
        default = OF_THE_MACHINE.get((service, flag)) or _default(str(action.help))
        yield f"`{flag}`", f"`{variable}`", default, meaning.replace("%%", "%")


def _default(help_: str) -> str:
    """As the help says it: the machine that writes this page may have another one."""
    found = re.search(r" \(default: ([^()]*)\)$", help_)
    return found[1] if found else "-"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    escaped = ([each.replace("|", "\\|") for each in row] for row in rows)
    return [*lines, *(f"| {' | '.join(row)} |" for row in escaped), ""]


def main() -> None:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description="Writes docs/reference/settings.md.")
    parser.add_argument("--check", action="store_true", help="only say whether it is current")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run `python docs/derive_settings.py`")


if __name__ == "__main__":
    main()
