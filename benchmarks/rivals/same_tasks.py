"""Are EnvPool's tasks those of MiniGrid? A policy of the zoo, which was trained on MiniGrid, plays both.

    python benchmarks/time_to_solve.py --check      runs it in the rivals' environment, which has both

What differs in levels or rules shows in how many episodes it solves, and in how many steps.
"""

from __future__ import annotations

import argparse
from typing import Any

import envpool  # type: ignore[import-not-found]
import gymnasium
import minigrid  # noqa: F401  # it registers its tasks
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from minigrid.wrappers import ImgObsWrapper

import leco

ENVIRONMENTS = 50


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", help="entries of the zoo")
    parser.add_argument("--episodes", type=int, default=500, help="of each (default: 500)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| task | solved in MiniGrid | in EnvPool | steps to solve one in MiniGrid | in EnvPool |\n|---|---|---|---|---|"
    )
    for task in given.tasks:
        name = f"MiniGrid-{task}-v0"
        wrappers, settings = [ImgObsWrapper], {"autoreset_mode": AutoresetMode.NEXT_STEP}
        both = (
            gymnasium.make_vec(name, ENVIRONMENTS, "sync", vector_kwargs=settings, wrappers=wrappers),
            envpool.make_gymnasium(name, num_envs=ENVIRONMENTS, num_threads=1, seed=1),
        )
        solved, steps = zip(*(play(env, leco.load(f"zoo/{task}"), given.episodes) for env in both), strict=True)
        cells = [*(f"{100 * each:.1f} %" for each in solved), *(f"{each:.1f}" for each in steps)]
        print(f"| {task} | {' | '.join(cells)} |", flush=True)


def play(env: Any, agent: leco.Agent, episodes: int) -> tuple[float, float]:
    """The share of episodes that are solved, as many of each environment, and the mean number of steps in those."""
    left_E = np.full(ENVIRONMENTS, -(-episodes // ENVIRONMENTS))
    done_E, steps_E = np.zeros(ENVIRONMENTS, bool), np.zeros(ENVIRONMENTS, int)
    ended: list[tuple[bool, int]] = []
    shown = env.reset()[0]
    while left_E.any():
        action_E = agent.act(shown["image"] if isinstance(shown, dict) else shown)
        shown, reward_E, terminated_E, truncated_E, _ = env.step(action_E)
        agent.reset(
            done_E
        )  # where an episode has ended, the action is not taken: this is the first view of the next one
        steps_E = np.where(done_E, 0, steps_E + 1)
        done_E = terminated_E | truncated_E
        for e in np.flatnonzero(done_E & (left_E > 0)):
            ended.append((bool(reward_E[e] > 0), int(steps_E[e])))
            left_E[e] -= 1
    env.close()
    return float(np.mean([solved for solved, _ in ended])), float(np.mean([steps for solved, steps in ended if solved]))


if __name__ == "__main__":
    main()
