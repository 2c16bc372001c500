"""How fast environments of Gymnasium are stepped: by leco, by Stable-Baselines3, and by Gymnasium's own vectors, as CleanRL does.

Environment steps per second with actions drawn evenly, of CartPole and of an environment whose step takes a given time of a
processor. All in one run, one after the other, so that what else the machine does is shared; the ratios count.

    pip install stable-baselines3
    python benchmarks/vectorisation.py
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from leco.envs.registry import find_task, make
from leco.envs.task import EnvironmentConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    # Takes actions [E], steps all environments once, and resets those that ended.
    Step = Callable[[Any], object]

MILLISECONDS = (0.1, 1.0, 4.0)
SPIN = "vectorisation:Spin-v0"  # this file is the module


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
    """Steps of single environments per second, after a second of warming up."""
    random, done = np.random.default_rng(0), 0
    for until in (time.perf_counter() + min(seconds, 1.0), None):
        begin, done = time.perf_counter(), 0
        end = until or begin + seconds
        while time.perf_counter() < end:
            step(random.integers(0, num_actions, num_envs))
            done += num_envs
    return done / (time.perf_counter() - begin)


def measure(task_id: str, kwargs: dict[str, Any], num_envs: int, seconds: float) -> dict[str, float]:
    """The rate of each way."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv  # noqa: PLC0415  # installed for this alone

    made = [lambda: gymnasium.make(task_id.rpartition(":")[2], **kwargs)] * num_envs
    found = {}
    for name, processes in (("leco", "never"), ("leco, processes", "always")):
        given = EnvironmentConfig(kwargs=kwargs, processes=processes)  # type: ignore[arg-type]
        task = find_task(task_id, given)
        with closing(make(task, num_envs, 0)) as env:
            env.reset()
            found[name] = rate(env.step, num_envs, task.num_actions, seconds)
    actions = task.num_actions
    forked = partial(SubprocVecEnv, start_method="fork")
    for name, kind in (("SB3 DummyVecEnv", DummyVecEnv), ("SB3 SubprocVecEnv", forked)):
        with closing(kind(made)) as vector:
            vector.reset()
            found[name] = rate(vector.step, num_envs, actions, seconds)
    for name, own in (
        ("Gymnasium SyncVectorEnv (CleanRL)", gymnasium.vector.SyncVectorEnv),
        ("Gymnasium AsyncVectorEnv", gymnasium.vector.AsyncVectorEnv),
    ):
        with closing(own(made)) as envs:
            envs.reset(seed=0)
            found[name] = rate(envs.step, num_envs, actions, seconds)
    return found


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    given = parser.parse_args()
    cases: dict[str, tuple[str, dict[str, Any]]] = {"CartPole-v1": ("CartPole-v1", {})}
    cases |= {f"a step of {ms:g} ms": (SPIN, {"milliseconds": ms}) for ms in MILLISECONDS}
    columns = {
        name: measure(task_id, kwargs, given.num_envs, given.seconds) for name, (task_id, kwargs) in cases.items()
    }
    print(f"{given.num_envs} environments, {len(os.sched_getaffinity(0))} processors, load {os.getloadavg()[0]:.1f}")
    print("Environment steps per second; in brackets, how many times SB3's DummyVecEnv.\n")
    print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for way in next(iter(columns.values())):
        cells = (f"{each[way]:,.0f} ({each[way] / each['SB3 DummyVecEnv']:.2f})" for each in columns.values())
        print(f"| {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
