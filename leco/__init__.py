"""LECO (learnable episodic count): what a notebook imports.

Each name is loaded when it is first used, so that `import leco` needs neither torch nor a simulator.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leco.envs.registry import TASKS, find_task
    from leco.envs.registry import make as make_env
    from leco.evaluation.rollout import evaluate
    from leco.evaluation.trained import trained_state as load
    from leco.methods.table import METHODS, find_method
    from leco.rpc.hashcount_client import HashCountClient

__all__ = ["METHODS", "TASKS", "HashCountClient", "evaluate", "find_method", "find_task", "load", "make_env"]

_HOMES = {
    "METHODS": "leco.methods.table:METHODS",
    "TASKS": "leco.envs.registry:TASKS",
    "HashCountClient": "leco.rpc.hashcount_client:HashCountClient",
    "evaluate": "leco.evaluation.rollout:evaluate",
    "find_method": "leco.methods.table:find_method",
    "find_task": "leco.envs.registry:find_task",
    "load": "leco.evaluation.trained:trained_state",
    "make_env": "leco.envs.registry:make",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'leco' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
