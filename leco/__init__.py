"""LECO (learnable episodic count): what a notebook imports.

    import leco

    run = leco.train("MultiRoom-N2-S4", frames=1e5, until=0.95)
    print(leco.evaluate(run).success_rate)
    agent = leco.load("zoo/KeyCorridorS4R3")

Each name is loaded when it is first used, so that `import leco` needs neither torch nor a simulator.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leco import rewards
    from leco.api.agent import Agent, evaluate, load
    from leco.api.training import Progress, Run, TrainingError, train
    from leco.config.experiment import ConfigError
    from leco.envs.registry import TASKS, find_task
    from leco.envs.registry import make as make_env
    from leco.methods.table import METHODS, find_method
    from leco.rpc.hashcount_client import HashCountClient

_HOMES = {
    "METHODS": "leco.methods.table:METHODS",
    "TASKS": "leco.envs.registry:TASKS",
    "Agent": "leco.api.agent:Agent",
    "ConfigError": "leco.config.experiment:ConfigError",
    "HashCountClient": "leco.rpc.hashcount_client:HashCountClient",
    "Progress": "leco.api.training:Progress",
    "Run": "leco.api.training:Run",
    "TrainingError": "leco.api.training:TrainingError",
    "evaluate": "leco.api.agent:evaluate",
    "find_method": "leco.methods.table:find_method",
    "find_task": "leco.envs.registry:find_task",
    "load": "leco.api.agent:load",
    "make_env": "leco.envs.registry:make",
    "rewards": "leco.rewards:",
    "train": "leco.api.training:train",
}

__all__ = [
    "METHODS",
    "TASKS",
    "Agent",
    "ConfigError",
    "HashCountClient",
    "Progress",
    "Run",
    "TrainingError",
    "evaluate",
    "find_method",
    "find_task",
    "load",
    "make_env",
    "rewards",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'leco' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("leco", "services"):
            raise
        raise ImportError(
            f"leco.{name} needs the package {error.name}, which is not installed: pip install 'leco[all]'"
        ) from error
    return getattr(home, attribute) if attribute else home


def __dir__() -> list[str]:
    return __all__
