"""How many levels of ObstructedMaze can be solved at all: `python benchmarks/solvable.py`.

In version 0 of these tasks, the ball in front of a side room's second door may take the place of the box with the key of the
first. A level can be solved if an agent that takes all keys it comes to reaches the ball; boxes, balls and keys in the way can
be carried off.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium

from leco.envs.minigrid.reference import make_one
from leco.envs.registry import find_task

TASKS = ("ObstructedMaze-1Dlhb", "ObstructedMaze-1Q", "ObstructedMaze-2Q", "ObstructedMaze-Full")


def main() -> None:
    """Counts and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", type=int, default=10_000, help="of each task (default: 10000)")
    levels = parser.parse_args().levels
    print(f"# Levels of {levels:,} that can be solved\n\n| task | solvable |\n|---|---|")
    for name in TASKS:
        env: Any = make_one(gymnasium.registry[find_task(name).id]).unwrapped
        env.gen_obs = dict  # not looked at
        print(f"| {name} | {sum(solvable(env, seed) for seed in range(levels)) / levels:.2%} |", flush=True)


def solvable(env: Any, seed: int) -> bool:
    """Whether the agent can get to the ball of this level."""
    env.reset(seed=seed)
    keys: set[str] = set()
    while True:
        known = len(keys)
        if any(cell is env.obj for cell in reached(env, keys)):
            return True
        if len(keys) == known:
            return False


def reached(env: Any, keys: set[str]) -> list[Any]:
    """What is in the cells that the agent can get to with these keys, to which it adds those it finds."""
    begin = tuple(map(int, env.agent_pos))
    seen, stack, found = {begin}, [begin], []
    while stack:
        x, y = stack.pop()
        for place in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            cell = env.grid.get(*place)
            if place in seen or (cell is not None and shut(cell, keys)):
                continue
            seen.add(place)
            stack.append(place)
            if cell is not None:
                found.append(cell)
                keys.update(each.color for each in (cell, cell.contains) if each is not None and each.type == "key")
    return found


def shut(cell: Any, keys: set[str]) -> bool:
    """Whether nobody with these keys gets through."""
    return cell.type == "wall" or (cell.type == "door" and cell.is_locked and cell.color not in keys)


if __name__ == "__main__":
    main()
