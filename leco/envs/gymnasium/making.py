"""One environment, as Gymnasium makes it: its module imported, its registration found, its wrappers put around it."""

from __future__ import annotations

import ast
import importlib
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium import error as gymnasium_error

from leco.references import import_named, load_object
from leco.words import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gymnasium.envs.registration import EnvSpec

# What must be imported before Gymnasium knows an id, by how the id begins. Anything else is named: "module:Id".
PACKAGES = {
    "ALE/": "ale_py",
    "BabyAI-": "minigrid",
    "MiniGrid-": "minigrid",
    "MiniHack-": "minihack",
    "MinAtar/": "minatar",
    "NetHack": "nle",
    "procgen": "procgen",
}
# What nearly everybody puts around such environments, and what their constructors are then given.
USUAL: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "ALE/": (
        ("gymnasium.wrappers:AtariPreprocessing", "gymnasium.wrappers:FrameStackObservation(stack_size=4)"),
        {"frameskip": 1},  # the wrapper skips frames
    )
}


def find_spec(name: str) -> EnvSpec:
    """The registration of an id, after the import of what registers it.

    Args:
        name: An id, or "module:id"; the module is looked for as Python does, and last in the present folder.

    Raises:
        ValueError: there is no such module or id.
    """
    module, _, task_id = name.rpartition(":")
    if module:
        import_named(module)
    for start, package in PACKAGES.items():
        if task_id.startswith(start) and not module:
            _register(package, needed_by=name)
    try:
        return gymnasium.spec(task_id)
    except gymnasium_error.Error:
        hint = did_you_mean(task_id, known_ids(), "`leco tasks` says which ids there are")
        where = f"{module} registers no environment {task_id!r}" if module else f"there is no task {task_id!r}"
        raise ValueError(f"{where}; {hint}") from None


def provided(name: str) -> bool:
    """Whether an id is one that Gymnasium knows, or will after an import that its beginning or its module asks for."""
    return ":" in name or name in gymnasium.registry or any(name.startswith(start) for start in PACKAGES)


def known_ids() -> Iterable[str]:
    """All ids that Gymnasium knows by now."""
    return list(gymnasium.registry)


def _register(package: str, *, needed_by: str) -> None:
    try:
        gymnasium.register_envs(importlib.import_module(package))
    except ImportError as missing:
        raise ValueError(f"{needed_by} needs the package {package}, which cannot be imported here: {missing}") from None


def usual(name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The wrappers that are usual for such an id, and what its constructor is then given."""
    task_id = name.rpartition(":")[2]
    return next((found for start, found in USUAL.items() if task_id.startswith(start)), ((), {}))


def make_one(
    name: str, kwargs: Mapping[str, Any], wrappers: Iterable[str], *, render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """One environment, with all of its wrappers but the one that only looks for mistakes.

    Args:
        name: As for `find_spec`.
        kwargs: What its constructor is given beside its registration.
        wrappers: From the innermost outwards.
        render_mode: As Gymnasium has it.

    Raises:
        ValueError: it cannot be made so.
    """
    spec = deepcopy(find_spec(name))
    shown: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    with making(name, kwargs):
        env: gymnasium.Env[Any, Any] = gymnasium.make(spec, disable_env_checker=True, **shown, **kwargs)
    for wrapper in wrappers:
        env = wrapped(env, wrapper)
    return env


@contextmanager
def making(name: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Says of whatever a constructor raises which environment it was, in a ValueError."""
    try:
        yield
    except Exception as problem:  # other people's code
        why = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
        raise ValueError(f"{name} cannot be made with {dict(kwargs)}: {why}") from problem


def wrapped(env: gymnasium.Env[Any, Any], wrapper: str) -> gymnasium.Env[Any, Any]:
    """An environment in a wrapper that is named as "module:Class" or "module:Class(argument=value)".

    Raises:
        ValueError: there is no such wrapper, or it does not go around this environment.
    """
    module, kind, arguments, named = _parsed(wrapper)
    found: Any = load_object(f"{module}:{kind}")
    try:
        outer: gymnasium.Env[Any, Any] = found(env, *arguments, **named)
    except (TypeError, ValueError, AssertionError, AttributeError, gymnasium_error.Error) as problem:
        raise ValueError(f"the wrapper {wrapper} does not go around {env}: {problem}") from problem
    return outer


def _parsed(wrapper: str) -> tuple[str, str, list[Any], dict[str, Any]]:
    """Module, class and arguments, which are literals."""
    module, _, call = wrapper.partition(":")
    try:
        tree = ast.parse(call if "(" in call else f"{call}()", mode="eval").body
        if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and module):
            raise TypeError("no call")  # noqa: TRY301
        arguments = [ast.literal_eval(each) for each in tree.args]
        named = {str(each.arg): ast.literal_eval(each.value) for each in tree.keywords}
    except (SyntaxError, TypeError, ValueError):
        raise ValueError(
            f"{wrapper!r} is no wrapper: write module:Class or module:Class(argument=value), for example "
            "gymnasium.wrappers:ResizeObservation(shape=(84, 84))"
        ) from None
    return module, tree.func.id, arguments, named
