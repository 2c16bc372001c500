"""Tests that the compiled MiniGrid is MiniGrid, to the bit, on every task and in every situation that we could think of."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from leco.envs.minigrid.compiled import CompiledMiniGrid
from leco.envs.minigrid.levels import LevelSource
from leco.envs.registry import TASKS, find_task
from support.minigrid_duel import duel
from support.minigrid_player import DONE, DROP, LEFT, PICKUP, RIGHT, TOGGLE, Restless, solve
from support.minigrid_zoo import hidden, open_zoo, pickup_zoo

GOAL = {"walked into goal", "solved"}
DOORS = {"door opened", "walked through door"}
UNLOCKED = {"door unlocked", "walked through door", "key picked up", "solved"}
CORRIDOR = UNLOCKED | {"key dropped", "ball picked up"}
BOXES = CORRIDOR | {"box opened"}
# What must have happened in a duel on a task for it to mean anything.
EXPECTED = {
    "Empty-5x5": GOAL,
    "MultiRoom-N2-S4": GOAL | DOORS,
    "MultiRoom-N4-S5": GOAL | DOORS,
    "MultiRoom-N6": GOAL | DOORS,
    "MultiRoom-N7-S4-NoisyTV": GOAL | DOORS | {"ball picked up"},
    "DoorKey-5x5": GOAL | UNLOCKED,
    "DoorKey-8x8": GOAL | UNLOCKED,
    "KeyCorridorS3R1": CORRIDOR,
    "KeyCorridorS3R2": CORRIDOR | DOORS,
    "KeyCorridorS3R3": CORRIDOR | DOORS,
    "KeyCorridorS4R3": CORRIDOR | DOORS,
    "KeyCorridorS5R3": CORRIDOR | DOORS,
    "KeyCorridorS6R3": CORRIDOR | DOORS,
    "ObstructedMaze-1Dl": CORRIDOR,
    "ObstructedMaze-1Dlh": BOXES,
    "ObstructedMaze-1Dlhb": BOXES | {"ball dropped"},
    "ObstructedMaze-1Q": BOXES | DOORS | {"ball dropped"},
    "ObstructedMaze-2Q": BOXES | DOORS | {"ball dropped"},
    "ObstructedMaze-Full": BOXES | DOORS | {"ball dropped"},
    "ObstructedMaze-1Q-v1": BOXES | DOORS | {"ball dropped"},
    "ObstructedMaze-2Q-v1": BOXES | DOORS | {"ball dropped"},
    "ObstructedMaze-Full-v1": BOXES | DOORS | {"ball dropped"},
}
MINIGRID = tuple(name for name, task in TASKS.items() if task.family == "minigrid")
# The room in which the agent starts, counted from the upper left; rooms are five cells apart.
STARTS = {
    "ObstructedMaze-1Q": (1, 1),
    "ObstructedMaze-2Q": (1, 1),
    "ObstructedMaze-Full": (1, 1),
    "ObstructedMaze-1Q-v1": (1, 1),
    "ObstructedMaze-2Q-v1": (2, 1),
    "ObstructedMaze-Full-v1": (1, 1),
    "MiniGrid-ObstructedMaze-2Q-v0": (2, 1),
    "MiniGrid-ObstructedMaze-2Q-v1": (2, 1),
}
# Tasks without an entry in the registry that the kernel takes on as well.
OTHERS = (
    "MiniGrid-BlockedUnlockPickup-v0",
    "MiniGrid-DistShift2-v0",
    "MiniGrid-Empty-Random-6x6-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-LavaCrossingS9N3-v0",
    "MiniGrid-LavaGapS6-v0",
    "MiniGrid-LockedRoom-v0",
    "MiniGrid-MultiRoom-N4-S5-v1",
    "MiniGrid-ObstructedMaze-2Dlhb-v1",
    "MiniGrid-ObstructedMaze-2Q-v0",
    "MiniGrid-Playground-v0",
    "MiniGrid-SimpleCrossingS9N1-v0",
    "MiniGrid-Unlock-v0",
    "MiniGrid-UnlockPickup-v0",
)


def test_every_task_of_the_registry_is_played() -> None:
    assert set(EXPECTED) == set(MINIGRID)


@pytest.mark.parametrize("name", MINIGRID)
def test_a_task_is_played_alike(name: str) -> None:
    spec = gymnasium.registry[TASKS[name].id]
    random = np.random.default_rng(2)
    events = duel(spec, lambda _: int(random.integers(7)), environments=3, steps=100, seed=5)
    restless = Restless(3)
    events += duel(spec, restless, environments=3, steps=100, seed=6)
    # Now and then the one who can solve it errs, which leads to places where nobody would go.
    events += duel(
        spec, lambda env: solve(env) if random.random() < 0.95 else restless(env), environments=3, steps=260, seed=7
    )
    assert EXPECTED[name] <= set(events), events


@pytest.mark.parametrize("name", MINIGRID)
def test_the_time_of_a_task_runs_out_alike(name: str) -> None:
    task = TASKS[name]
    # Almost only idling, since every step of the longest task is one of 3600 that MiniGrid takes.
    random = np.random.default_rng(4)
    events = duel(
        gymnasium.registry[task.id],
        lambda _: 0 if random.random() < 0.1 else DONE,
        environments=1,
        steps=task.max_steps + 3,
        seed=8,
    )
    assert events["out of time"] == 1


@pytest.mark.parametrize(("name", "room"), STARTS.items())
def test_the_agent_of_a_maze_starts_in_its_room(name: str, room: tuple[int, int]) -> None:
    source = LevelSource(gymnasium.registry[find_task(name).id])
    for seed in range(10):
        level = source.generate(seed)
        assert (level.x // 5, level.y // 5) == room


def test_the_papers_maze_of_two_quarters_is_minigrids_but_for_the_start() -> None:
    papers, minigrids = find_task("ObstructedMaze-2Q"), find_task("MiniGrid-ObstructedMaze-2Q-v0")
    assert (papers.gamma, papers.max_steps) == (minigrids.gamma, minigrids.max_steps) == (0.8, 1584)
    ours, theirs = (LevelSource(gymnasium.registry[task.id]) for task in (papers, minigrids))
    for seed in range(10):
        np.testing.assert_array_equal(ours.generate(seed).cell_HW, theirs.generate(seed).cell_HW)


@pytest.mark.parametrize("task_id", OTHERS)
def test_a_task_without_an_entry_is_played_alike(task_id: str) -> None:
    spec = gymnasium.registry[task_id]
    events = duel(spec, Restless(9), environments=4, steps=120, seed=10)
    if "Lava" in task_id or "DistShift" in task_id:
        assert events["walked into lava"] == events["lost"] > 0


@pytest.mark.parametrize("see_through", [False, True])
@pytest.mark.parametrize(("view", "seed"), [(7, 21), (5, 22)])
def test_crowded_levels_are_played_alike(*, see_through: bool, view: int, seed: int) -> None:
    events = duel(pickup_zoo(see_through=see_through, view=view), Restless(11), environments=6, steps=700, seed=seed)
    every = {
        *(f"{thing} picked up" for thing in ("key", "ball", "box")),
        *(f"{thing} dropped" for thing in ("key", "ball", "box")),
        *("box opened", "empty box opened", "hand was full", "no key", "wrong key", "no key but the colour"),
        *("door opened", "door closed", "door unlocked", "walked through door", "walked into door"),
        *(f"walked into {thing}" for thing in ("wall", "floor", "lava", "goal")),
        *("solved", "lost", "out of time"),
    }
    assert every <= set(events), every - set(events)


def test_opening_the_target_door_solves_the_task() -> None:
    events = duel(open_zoo(), Restless(13), environments=6, steps=300, seed=14)
    assert events["solved"] > events["walked into goal"] > 0


def test_a_target_stays_the_target_through_boxes_and_hands_and_its_twin_is_none() -> None:
    actions = iter([RIGHT, PICKUP, LEFT, TOGGLE, RIGHT, DROP, LEFT, PICKUP, DROP, TOGGLE, PICKUP])
    events = duel(hidden(), lambda _: next(actions), environments=1, steps=11, seed=0)
    assert events == {
        "ball picked up": 2,
        "box opened": 2,
        "ball dropped": 1,
        "box picked up": 1,
        "box dropped": 1,
        "solved": 1,
    }


def test_a_task_may_be_solved_in_its_last_step() -> None:
    spec = gymnasium.registry["MiniGrid-Empty-5x5-v0"]
    late = [DONE] * 95 + [2, 2, 1, 2, 2]
    actions = iter(late)
    events = duel(spec, lambda _: next(actions), environments=1, steps=100, seed=15)
    assert events["solved in the last step"] == 1


def test_every_reward_is_the_one_of_minigrid() -> None:
    # Reached by chance only at a few of the steps, but computed for all of them in the same way.
    for name in ("KeyCorridorS4R3", "ObstructedMaze-Full", "MultiRoom-N6"):
        task = TASKS[name]
        reward_S = CompiledMiniGrid(gymnasium.registry[task.id], 1, 0)._reward_S
        truth = [np.float32(1 - 0.9 * (s / task.max_steps)) for s in range(task.max_steps + 1)]
        np.testing.assert_array_equal(reward_S, np.array(truth), strict=True)
