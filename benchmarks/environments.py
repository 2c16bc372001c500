"""How fast environments are stepped, with resets, in random play on one thread: `python benchmarks/environments.py --help`.

Three contestants play the same task in turn, round after round: leco's compiled environments, MiniGrid in a Python loop, and
EnvPool if it is installed (it is no part of leco's environment). A round of the first and of EnvPool is at least one whole
episode of every environment, so that each is reset as often as in a long run. A round of MiniGrid is cut at 120 steps, often
before any reset, which favours it. EnvPool gets one worker thread, which runs beside the main thread. The ratios are of steps
per second within a round.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from leco.envs.registry import Task, find_task, make

if TYPE_CHECKING:
    from collections.abc import Callable

TASKS = ("KeyCorridorS4R3", "ObstructedMaze-Full", "MultiRoom-N6")
SIZES = (16, 64)
EPISODES = 3  # of the compiled environments in a round, since one of them is over in a blink
CUT = 120

Play = tuple["Callable[[Any], Any]", int]  # the step function, and how many steps are a round


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description="Steps per second of random play: compiled, MiniGrid, EnvPool.")
    parser.add_argument("--rounds", type=int, default=7, help="how often everything is measured (default: 7)")
    rounds = parser.parse_args().rounds
    envpool = importlib.util.find_spec("envpool") is not None
    if not envpool:
        print("envpool is not installed: compared with MiniGrid alone\n")
    others = ["MiniGrid", *["EnvPool"] * envpool]
    columns = [
        "compiled, steps/s",
        *[f"{other}, steps/s" for other in others],
        *[f"compiled / {other}" for other in others],
    ]
    print(f"| task | environments | {' | '.join(columns)} |")
    print(f"|---|---|{'---|' * len(columns)}")
    for name in TASKS:
        for environments in SIZES:
            rates = measure(find_task(name), environments, rounds, envpool=envpool)
            cells = [f"{statistics.median(rates[who]):,.0f}" for who in ("compiled", *others)]
            cells += [ratio(rates["compiled"], rates[other]) for other in others]
            print(f"| {name} | {environments} | {' | '.join(cells)} |", flush=True)
    print(f"\nThe median of {rounds} rounds (least to most).")


def measure(task: Task, environments: int, rounds: int, *, envpool: bool) -> dict[str, list[float]]:
    """Steps per second of every contestant in every round."""
    fast, slow = (make(task, environments, seed=0, compiled=compiled) for compiled in (True, False))
    fast.reset()
    slow.reset()
    plays: dict[str, Play] = {
        "compiled": (fast.step, EPISODES * task.max_steps),
        "MiniGrid": (slow.step, min(task.max_steps, CUT)),
    }
    if envpool:
        plays["EnvPool"] = (envpool_step(task, environments), task.max_steps)
    random = np.random.default_rng(0)
    rates: dict[str, list[float]] = {who: [] for who in plays}
    for round_number in range(rounds + 1):
        for who, (step, steps) in plays.items():
            action_TE = random.integers(0, 7, (steps, environments))
            begin = time.perf_counter()
            for action_E in action_TE:
                step(action_E)
            if round_number:  # the first round compiles and warms up
                rates[who].append(action_TE.size / (time.perf_counter() - begin))
    return rates


def envpool_step(task: Task, environments: int) -> Callable[[Any], Any]:
    """The step function of EnvPool's version of the task."""
    import envpool  # type: ignore[import-not-found]  # noqa: PLC0415  # it is optional

    env = envpool.make_gymnasium(task.id, num_envs=environments, num_threads=1, seed=0)
    env.reset()
    step: Callable[[Any], Any] = env.step
    return step


def ratio(ours: list[float], theirs: list[float]) -> str:
    """How many times as fast, as a cell of the table."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"


if __name__ == "__main__":
    main()
