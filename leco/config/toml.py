"""An experiment from TOML, and back: a frozen value out; an unknown key is an error.

    task = "KeyCorridorS3R3"
    method = "leco"
    frames = 5e6

    [training]
    policy_learning_rate = 1e-3

Everything has a default but the task; `preset = "laptop"` begins with other defaults (leco/config/presets.py). `to_toml` writes
every value, defaults included, so that a run folder says what was run even if defaults change later.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from typing import TYPE_CHECKING, Any

from leco.config.experiment import ConfigError, Experiment, check
from leco.config.presets import with_preset
from leco.envs.registry import find_task
from leco.envs.task import EnvironmentConfig
from leco.methods.table import find_method
from leco.models.kinds.table import find_kind
from leco.words import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def parse(text: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Reads TOML.

    Args:
        text: The TOML.
        overrides: Values by dotted key, such as {"training.alpha": 0.02}, that win over it; None values are ignored.

    Raises:
        ConfigError: what is wrong, and what was expected.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"this is not TOML: {error}") from None
    for key, value in (overrides or {}).items():
        if value is not None:
            _put(table, key.split("."), value)
    if "task" not in table:
        raise ConfigError('task is missing: name what is to be solved, for example task = "KeyCorridorS3R3"')
    try:
        environment = table.pop("environment", None)
        if environment is not None:
            environment = _value(EnvironmentConfig, environment, "environment")
        task, method = find_task(str(table["task"]), environment), find_method(str(table.get("method", "leco")))
        kind = find_kind(task.layout)
        if "preset" in table:
            table = with_preset(table, table.pop("preset"), method=method, kind=kind)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    table |= {"task": task.name, "method": method.name}
    training = table.setdefault("training", {})
    if isinstance(training, dict):
        training.setdefault("gamma", task.gamma)
        training.setdefault("alpha", method.alpha_of(kind.name))
        training.setdefault("novelty_learning_rate", method.novelty_learning_rate)
        training.setdefault("reward_shaping", task.reward_shaping)
    experiment: Experiment = dataclasses.replace(_read(Experiment, table, ""), environment=task.environment)
    check(experiment)
    return experiment


def to_toml(experiment: Experiment) -> str:
    """The experiment as TOML that `parse` reads back to an equal one. A key that is off (None) is left out."""
    lines: list[str] = []
    sections: list[str] = []
    for each in dataclasses.fields(experiment):
        value = getattr(experiment, each.name)
        if dataclasses.is_dataclass(value):
            inner = [_line(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
            sections.append("\n".join([f"\n[{each.name}]", *filter(None, inner)]))
        else:
            lines.append(_line(each.name, value))
    return "\n".join([*lines, *sections]) + "\n"


def show(value: object) -> str:
    """A setting, as short as it is exact."""
    if isinstance(value, list):
        return "+".join(show(each) for each in value)
    if isinstance(value, dict):
        return "+".join(f"{key}={show(each)}" for key, each in value.items())
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value).lower()


def flat(experiment: Experiment) -> dict[str, Any]:
    """Values by dotted key, as in TOML; one that is off is not there."""
    found: dict[str, Any] = {}
    for name, value in tomllib.loads(to_toml(experiment)).items():
        found |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _line(name: str, value: Any) -> str:
    name = name.rstrip("_")
    if value is None:
        return ""
    return f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(each)}' for key, each in value.items())}}}"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _put(table: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{name} is {inner!r}, expected a section")
        table = inner
    table[path[-1]] = value


def _read(kind: type, table: Mapping[str, Any], path: str) -> Any:
    """A dataclass from a table: names and types as the dataclass has them."""
    hints = typing.get_type_hints(kind)
    names = {f.name.rstrip("_"): f.name for f in dataclasses.fields(kind)}  # `lambda` is a word of Python's
    values = {}
    for key, value in table.items():
        if key not in names:
            raise ConfigError(f"there is no key {path}{key}; {_hint(key, path, names)}")
        values[names[key]] = _value(hints[names[key]], value, f"{path}{key}")
    return kind(**values)


def _hint(key: str, path: str, names: Iterable[str]) -> str:
    """What was meant by a key that there is not: one of this section, or of another."""
    everywhere = {name: f"{section}{name}" for section, each in _sections().items() for name in each}
    near = nearest(key, names)
    meant = everywhere.get(key) or (f"{path}{near}" if near else everywhere.get(nearest(key, everywhere) or ""))
    return f"did you mean {meant}?" if meant else f"the keys here are: {', '.join(names)}"


def _sections() -> dict[str, list[str]]:
    """The keys of each section; those of an experiment itself come last, and win."""
    kinds = {
        f"{name}.": kind for name, kind in typing.get_type_hints(Experiment).items() if dataclasses.is_dataclass(kind)
    }
    return {
        section: [each.name.rstrip("_") for each in dataclasses.fields(kind)]
        for section, kind in (kinds | {"environment.": EnvironmentConfig, "": Experiment}).items()
    }


def _value(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{path} is {value!r}, expected a section [{path}]")
        return _read(typing.cast("type", kind), value, f"{path}.")
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if kind == dict[str, Any] or options[1:] == (...,):
        return _collection(kind, value, path)
    if origin in (types.UnionType, typing.Union):  # X | None; TOML has no null, so leaving the key out is None
        return _value(options[0], value, path)
    if origin is typing.Literal:
        if value not in options:
            raise ConfigError(f"{path} is {value!r}, expected one of {', '.join(map(repr, options))}")
        return value
    if origin is tuple:
        if not isinstance(value, list) or len(value) != len(options):
            raise ConfigError(f"{path} is {value!r}, expected a list of {len(options)} numbers")
        return tuple(_value(each, item, path) for each, item in zip(options, value, strict=True))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and number and math.isfinite(value):
        return float(value)
    if kind is int and number and math.isfinite(value) and value == int(value):  # 5e6 is a whole number too
        return int(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    expected = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}[kind]
    raise ConfigError(f"{path} is {value!r}, expected {expected}")


def _collection(kind: Any, value: Any, path: str) -> Any:
    """A table of anything, or a list of any length."""
    if kind == dict[str, Any]:
        if not isinstance(value, dict):
            raise ConfigError(f"{path} is {value!r}, expected a table, for example {{size = 8}}")
        return value
    if not isinstance(value, list):
        raise ConfigError(f"{path} is {value!r}, expected a list")
    return tuple(_value(typing.get_args(kind)[0], item, path) for item in value)
