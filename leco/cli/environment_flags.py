"""The flags of how an environment is made, and values that are typed by name."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from leco.config.experiment import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def add_environment(parser: argparse.ArgumentParser) -> None:
    """The flags of how an environment is made."""
    parser.add_argument(
        "--env-kwargs",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="what the environment's constructor is given, for example --env-kwargs size=8",
    )
    parser.add_argument(
        "--wrapper",
        action="append",
        metavar="MODULE:CLASS",
        help="put around the environment, with arguments if need be: --wrapper 'gymnasium.wrappers:ResizeObservation(shape=(84, "
        "84))'; may be repeated, the innermost first",
    )


def environment_of(given: argparse.Namespace) -> dict[str, object]:
    """What these flags say, as keys of an experiment."""
    kwargs = pairs("--env-kwargs", given.env_kwargs, "size=8")
    return {"environment.wrappers": given.wrapper} | {f"environment.kwargs.{key}": kwargs[key] for key in kwargs}


def pairs(flag: str, given: Sequence[str], example: str) -> dict[str, object]:
    """Values by name, as they are typed."""
    found = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(
                f"{flag} {each}: expected {'KEY' if flag == '--set' else 'NAME'}=VALUE, for example {example}"
            )
        found[key] = _value(value)
    return found


def _value(text: str) -> object:
    """A value as TOML has it, or Python's True and False; a text needs no quotes here."""
    text = {"True": "true", "False": "false"}.get(text, text)
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
