"""An experiment: what is trained, how, and on what. TOML in, a frozen value out; an unknown key is an error.

    task = "KeyCorridorS3R3"
    method = "leco"
    frames = 5e6

    [training]
    policy_learning_rate = 1e-3

Everything has a default but the task; `preset = "laptop"` begins with other defaults (leco/presets.py). `to_toml` writes every
value, defaults included, so that a run folder says what was run even if defaults change later.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leco.envs.registry import find_task
from leco.methods import find_method
from leco.presets import with_preset
from leco.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping


class ConfigError(ValueError):
    """A configuration that cannot be used. The text says which key, and what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actors:
    """How actors play.

    environments  how many one actor steps side by side
    unroll        actions in a trajectory
    """

    environments: int = 16
    unroll: int = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How the learner runs. Everything is counted in updates, but the queue, which is in trajectories.

    batch             trajectories in a batch
    queue             trajectories received and not yet trained on, with those on their way: one batch, because what waits grows
                      old; with several actors at least a batch and the environments of all of them
    max_lag           a trajectory of parameters older than this many versions is dropped
    publish_every     how often actors can get new parameters
    checkpoint_every  how often the state is saved
    keep              how many of the newest checkpoints are kept, beside the best
    record_every      how often a line is written to metrics.csv and TensorBoard
    deterministic     one actor takes turns with the learner, and every run with the same seed gives the same numbers, also when
                      it is stopped and resumed; slower. It ends with the first checkpoint that has all frames, and what was
                      played before the last checkpoint is dropped by its version, whatever max_lag is
    """

    batch: int = 16
    queue: int = 16
    max_lag: int = 20
    publish_every: int = 1
    checkpoint_every: int = 500
    keep: int = 3
    record_every: int = 20
    deterministic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """All there is to know about a run, but where it runs.

    task, method  by name; see `leco tasks` and `leco methods`
    seed          of networks, actions and levels
    frames        actions in the environments after which training ends
    """

    task: str
    method: str = "leco"
    seed: int = 1
    frames: int = 5_000_000
    actors: Actors = field(default_factory=Actors)
    learner: Learning = field(default_factory=Learning)
    training: Settings = field(default_factory=Settings)


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
        if "preset" in table:
            table = with_preset(table, table.pop("preset"))
        task, method = find_task(str(table["task"])), find_method(str(table.get("method", "leco")))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    table |= {"task": task.name, "method": method.name}
    training = table.setdefault("training", {})
    if isinstance(training, dict):
        training.setdefault("gamma", task.gamma)
    experiment: Experiment = _read(Experiment, table, "")
    _check(experiment)
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


def _line(name: str, value: Any) -> str:
    name = name.rstrip("_")
    if value is None:
        return ""
    if isinstance(value, tuple):
        return f"{name} = [{', '.join(repr(item) for item in value)}]"
    return f"{name} = {repr(value) if isinstance(value, float) else json.dumps(value)}"


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
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"; did you mean {path}{near[0]}?" if near else f"; the keys here are: {', '.join(names)}"
            raise ConfigError(f"there is no key {path}{key}{hint}")
        values[names[key]] = _value(hints[names[key]], value, f"{path}{key}")
    return kind(**values)


def _value(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{path} is {value!r}, expected a section [{path}]")
        return _read(typing.cast("type", kind), value, f"{path}.")
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # X | None; TOML has no null, so leaving the key out is None
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


def _check(experiment: Experiment) -> None:
    """Ranges, each with its reason."""
    actors, learner, training = experiment.actors, experiment.learner, experiment.training
    positive = {
        "frames": experiment.frames,
        "actors.environments": actors.environments,
        "actors.unroll": actors.unroll,
        "learner.batch": learner.batch,
        "learner.publish_every": learner.publish_every,
        "learner.checkpoint_every": learner.checkpoint_every,
        "learner.keep": learner.keep,
        "learner.record_every": learner.record_every,
        "training.policy_learning_rate": training.policy_learning_rate,
        "training.intrinsic_learning_rate": training.intrinsic_learning_rate,
        "training.eps": training.eps,
        "training.reward_scale": training.reward_scale,
    }
    for key, value in positive.items():
        if value <= 0:
            raise ConfigError(f"{key} is {value}, expected more than 0")
    shares = {
        "training.gamma": training.gamma,
        "training.lambda": training.lambda_,
        "training.trace_decay": training.trace_decay,
    }
    for key, value in shares.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{key} is {value}, expected 0 to 1")
    for key, betas in (("policy_betas", training.policy_betas), ("intrinsic_betas", training.intrinsic_betas)):
        if not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"training.{key} is {list(betas)}, expected two numbers from 0 to below 1")
    not_negative = {"seed": experiment.seed, "learner.max_lag": learner.max_lag, "training.alpha": training.alpha}
    not_negative["training.entropy"] = training.entropy
    for key, value in not_negative.items():
        if value < 0:
            raise ConfigError(f"{key} is {value}, expected 0 or more")
    if training.max_gradient_norm is not None and training.max_gradient_norm <= 0:
        raise ConfigError(
            f"training.max_gradient_norm is {training.max_gradient_norm}, expected more than 0; leave it out for no limit"
        )
    if training.decoded is not None and training.decoded < 1:
        raise ConfigError(f"training.decoded is {training.decoded}, expected at least 1; leave it out to decode all")
    if learner.queue < learner.batch:
        raise ConfigError(
            f"learner.queue is {learner.queue}, expected at least learner.batch ({learner.batch}): "
            "a batch must fit in the queue, or training waits for ever"
        )
    _check_turns(actors, learner)


def _check_turns(actors: Actors, learner: Learning) -> None:
    """In a deterministic run an unroll of all environments is used up by whole updates, and then actors get new parameters."""
    if not learner.deterministic:
        return
    if actors.environments % learner.batch != 0:
        raise ConfigError(
            f"actors.environments is {actors.environments}, expected a multiple of learner.batch ({learner.batch}) because "
            "learner.deterministic is true: what is played in a turn must be used up by whole updates"
        )
    turn = actors.environments // learner.batch
    if turn % learner.publish_every != 0:
        raise ConfigError(
            f"learner.publish_every is {learner.publish_every}, expected a divisor of {turn}, the updates of a turn "
            "(actors.environments / learner.batch), because learner.deterministic is true: the actor waits for the parameters "
            "after each turn"
        )
    if learner.checkpoint_every % turn != 0:
        raise ConfigError(
            f"learner.checkpoint_every is {learner.checkpoint_every}, expected a multiple of {turn}, the updates of a turn "
            "(actors.environments / learner.batch), because learner.deterministic is true: a run can only go on from the end "
            "of a turn"
        )
