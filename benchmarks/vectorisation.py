"""How fast environments of Gymnasium are stepped: by leco, by Stable-Baselines3, and by Gymnasium's own vectors, as CleanRL does.

Actions are drawn evenly, in CartPole and in an environment whose step takes a given time of a processor. All ways are open at the
same time and take short turns, in a new order each round, so that whatever else the machine does falls on all of them. Of each
round the rate of a way is divided by that of SB3's DummyVecEnv; the table has the medians over rounds, with their quartiles.

    pip install stable-baselines3
    python benchmarks/vectorisation.py
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from leco.envs.registry import find_task, make
from leco.envs.task import EnvironmentConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    # Takes actions [E], steps all environments once, and resets those that ended.
    Step = Callable[[Any], object]

MILLISECONDS = (0.1, 1.0, 4.0)
SPIN = "vectorisation:Spin-v0"  # this file is the module
BASELINE = "SB3 DummyVecEnv"


class Spin(gymnasium.Env[Any, Any]):
    """A step keeps the processor busy for some time."""

    def __init__(self, milliseconds: float = 1.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._seconds = milliseconds / 1e3

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Zeros."""
        super().reset(seed=seed, options=options)
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Processor time, so that processes which share a processor are not faster than it is."""
        until = time.process_time() + self._seconds
        while time.process_time() < until:
            pass
        return np.full(8, action / 4, np.float32), 0.0, False, False, {}


if "Spin-v0" not in gymnasium.registry:  # this file is both the program and the module that registers it
    gymnasium.register("Spin-v0", entry_point="vectorisation:Spin", max_episode_steps=500)


def rate(step: Step, num_envs: int, num_actions: int, seconds: float) -> float:
    """Steps of single environments per second, over at least one step of all."""
    random, done, begin = np.random.default_rng(0), 0, time.perf_counter()
    while done == 0 or time.perf_counter() < begin + seconds:
        step(random.integers(0, num_actions, num_envs))
        done += num_envs
    return done / (time.perf_counter() - begin)


def opened(stack: ExitStack, task_id: str, kwargs: dict[str, Any], num_envs: int) -> dict[str, Step]:
    """Each way, reset and ready."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv  # noqa: PLC0415  # installed for this alone

    found: dict[str, Step] = {}
    for name, processes in (("leco", "never"), ("leco, processes", "always")):
        task = find_task(task_id, EnvironmentConfig(kwargs=kwargs, processes=processes))  # type: ignore[arg-type]
        env = stack.enter_context(closing(make(task, num_envs, 0)))
        env.reset()
        found[name] = env.step
    made = [lambda: gymnasium.make(task_id.rpartition(":")[2], **kwargs)] * num_envs
    forked = partial(SubprocVecEnv, start_method="fork")
    for name, kind in ((BASELINE, DummyVecEnv), ("SB3 SubprocVecEnv", forked)):
        vector = stack.enter_context(closing(kind(made)))
        vector.reset()
        found[name] = vector.step
    for name, own in (
        ("Gymnasium SyncVectorEnv (CleanRL)", gymnasium.vector.SyncVectorEnv),
        ("Gymnasium AsyncVectorEnv", gymnasium.vector.AsyncVectorEnv),
    ):
        envs = stack.enter_context(closing(own(made)))
        envs.reset(seed=0)
        found[name] = envs.step
    return found


def measure(
    task_id: str, kwargs: dict[str, Any], num_envs: int, *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """The rate of each way in each round."""
    with ExitStack() as stack:
        ways = opened(stack, task_id, kwargs, num_envs)
        actions = find_task(task_id, EnvironmentConfig(kwargs=kwargs)).num_actions
        order, random = list(ways), np.random.default_rng(1)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):  # the first one warms up
            random.shuffle(order)
            for name in order:
                found = rate(ways[name], num_envs, actions, seconds)
                if number > 0:
                    rates[name].append(found)
    return rates


def cell(rates: Mapping[str, Sequence[float]], name: str) -> str:
    """The median rate, and the quartiles of the ratio."""
    low, middle, high = np.quantile(np.divide(rates[name], rates[BASELINE]), (0.25, 0.5, 0.75))
    return f"{np.median(rates[name]):,.0f} ({middle:.2f}; {low:.2f} to {high:.2f})"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    given = parser.parse_args()
    cases: dict[str, tuple[str, dict[str, Any]]] = {"CartPole-v1": ("CartPole-v1", {})}
    cases |= {f"a step of {ms:g} ms": (SPIN, {"milliseconds": ms}) for ms in MILLISECONDS}
    how = {"rounds": given.rounds, "seconds": given.seconds}
    columns = {name: measure(task_id, kwargs, given.num_envs, **how) for name, (task_id, kwargs) in cases.items()}
    print(f"{given.num_envs} environments, {len(os.sched_getaffinity(0))} processors, load {os.getloadavg()[0]:.1f}")
    print(
        f"Environment steps per second, the median of {given.rounds} turns; in brackets, how many times {BASELINE} in the"
    )
    print("same round: the median, and the quartiles.\n")
    print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for way in next(iter(columns.values())):
        print(f"| {way} | {' | '.join(cell(each, way) for each in columns.values())} |")


if __name__ == "__main__":
    main()
