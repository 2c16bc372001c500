"""Tests of the noisy television: what `drop` does, what it does not, and that the level can be solved all the same."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from minigrid.core.constants import COLOR_NAMES, COLOR_TO_IDX, OBJECT_TO_IDX
from minigrid.core.world_object import Ball
from minigrid.envs.multiroom import MultiRoomEnv

from leco.envs.minigrid.compiled import CompiledMiniGrid
from leco.envs.minigrid.levels import refusal
from leco.envs.minigrid.noisy_tv import TASK_ID, NoisyTvEnv
from leco.envs.minigrid.reference import ReferenceMiniGrid
from leco.envs.registry import find_task, make
from support.minigrid_duel import duel
from support.minigrid_player import DONE, DROP, FORWARD, LEFT, PICKUP, TOGGLE, Restless, solve
from support.uncompiled import make_uncompiled

BALL = OBJECT_TO_IDX["ball"]


def level(seed: int) -> Any:
    env: Any = gymnasium.make(TASK_ID, disable_env_checker=True).unwrapped
    env.reset(seed=seed)
    return env


def balls(env: Any) -> list[tuple[int, int]]:
    return [(place % env.width, place // env.width) for place, it in enumerate(env.grid.grid) if isinstance(it, Ball)]


def without_colour(env: Any) -> Any:
    """All of a level and its agent, but the colour of the ball."""
    cells = env.grid.encode()
    cells[..., 1][cells[..., 0] == BALL] = 0
    return cells.tolist(), tuple(env.agent_pos), env.agent_dir, env.carrying is env.ball


def pick_up_the_ball(env: Any) -> None:
    """Turns until the ball is ahead, if it is next to the agent, and takes it."""
    for _ in range(4):
        if env.grid.get(*env.front_pos) is env.ball:
            env.step(PICKUP)
            return
        env.step(LEFT)


def level_with_the_ball_in_hand() -> Any:
    for seed in range(50):
        env = level(seed)
        pick_up_the_ball(env)
        if env.carrying is env.ball:
            return env
    raise AssertionError("no ball was ever next to the agent")


def test_it_is_registered_by_importing_its_module_once_or_again() -> None:
    code = f"""
import gymnasium, importlib, leco.envs.minigrid.noisy_tv
before = gymnasium.registry[{TASK_ID!r}]
importlib.reload(leco.envs.minigrid.noisy_tv)
assert gymnasium.registry[{TASK_ID!r}] is before
env = gymnasium.make({TASK_ID!r})
env.reset(seed=0)
print(env.step(4)[0]["image"].shape)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("(7, 7, 3)", "")


def test_the_registry_knows_it_and_the_kernel_plays_it() -> None:
    task = find_task("MultiRoom-N7-S4-NoisyTV")
    assert (task.id, task.gamma, task.max_steps, task.family) == (TASK_ID, 0.99, 140, "minigrid")
    assert refusal(gymnasium.registry[TASK_ID]) is None
    assert isinstance(make(task, 1, 0), CompiledMiniGrid)
    assert isinstance(make_uncompiled(task, 1, 0), ReferenceMiniGrid)


def test_it_is_a_multiroom_with_one_ball() -> None:
    plain = MultiRoomEnv(minNumRooms=7, maxNumRooms=7, maxRoomSize=4)
    assert plain.max_steps == level(0).max_steps == 140
    for seed in range(20):
        env = level(seed)
        plain.reset(seed=seed)
        (place,) = balls(env)
        assert len(env.rooms) == 7
        assert {room.size for room in env.rooms} == {(4, 4)}
        env.grid.set(*place, None)
        np.testing.assert_array_equal(env.grid.encode(), plain.grid.encode())
        assert (tuple(env.agent_pos), env.agent_dir) == (tuple(plain.agent_pos), plain.agent_dir)


def test_the_ball_lies_in_the_first_room_beside_the_way_in_any_colour() -> None:
    colours, places = set(), set()
    for seed in range(200):
        env = level(seed)
        ((x, y),) = balls(env)
        left, top = env.rooms[0].top
        assert left < x < left + 3
        assert top < y < top + 3
        assert (x, y) != tuple(env.agent_pos)
        door_x, door_y = env.rooms[0].exitDoorPos
        assert abs(x - door_x) + abs(y - door_y) > 1
        colours.add(env.ball.color)
        places.add((x - left, y - top))
    assert colours == set(COLOR_NAMES)
    assert len(places) == 4


def test_the_ball_is_seen() -> None:
    seen = 0
    for seed in range(40):
        env = level(seed)
        for _ in range(4):
            image = env.step(LEFT)[0]["image"]
            shown = image[image[..., 0] == BALL]
            seen += len(shown)
            assert shown.tolist() in ([], [[BALL, COLOR_TO_IDX[env.ball.color], 0]])
    assert seen >= 40  # in the same room, it is in view from two of the four directions or more


@pytest.mark.parametrize("carried", [False, True])
def test_drop_changes_the_colour_and_nothing_else(*, carried: bool) -> None:
    env = level_with_the_ball_in_hand() if carried else level(3)
    before = without_colour(env)
    colours: Counter[str] = Counter()
    for _ in range(100):
        image, reward, terminated, truncated, _ = env.step(DROP)
        colours[env.ball.color] += 1
        assert without_colour(env) == before
        assert (reward, terminated, truncated) == (0, False, False)
        if carried:  # what is carried shows in the agent's own cell
            assert image["image"][3, 6].tolist() == [BALL, COLOR_TO_IDX[env.ball.color], 0]
    assert len(balls(env)) == (0 if carried else 1)
    assert set(colours) == set(COLOR_NAMES)
    assert max(colours.values()) < 40


@pytest.mark.parametrize("action", [LEFT, 1, FORWARD, PICKUP, TOGGLE, DONE])
def test_no_other_action_changes_the_colour(action: int) -> None:
    for env in (level(3), level_with_the_ball_in_hand()):
        colour = env.ball.color
        state = env.np_random.bit_generator.state
        for _ in range(30):
            env.step(action)
            assert env.ball.color == colour
        assert env.np_random.bit_generator.state == state


def test_drops_count_as_steps() -> None:
    env = level(0)
    ends = [env.step(DROP)[3] for _ in range(140)]
    assert ends == [False] * 139 + [True]


def drawn(seed: int, before: int = 0) -> list[str]:
    """The colours of 30 drops, after some steps of another kind."""
    env = level(seed)
    for _ in range(before):
        env.step(LEFT)
    colours = []
    for _ in range(30):
        env.step(DROP)
        colours.append(env.ball.color)
    return colours


def test_colours_depend_on_the_seed_and_the_number_of_the_drop_alone() -> None:
    assert drawn(5) == drawn(5) == drawn(5, before=17)
    assert drawn(5) != drawn(6)
    env = level(4)
    for _ in range(9):
        env.step(DROP)
    env.reset(seed=5)  # what was drawn in an episode leaves no trace in the next
    again = []
    for _ in range(30):
        env.step(DROP)
        again.append(env.ball.color)
    assert again == drawn(5)


def test_every_level_can_be_solved_past_the_ball_and_with_it() -> None:
    for seed in range(60):
        env = level(seed)
        if seed % 2:
            pick_up_the_ball(env)
        terminated, reward = False, 0.0
        while not terminated and env.steps_remaining:
            action = solve(env)
            assert action != PICKUP  # the ball is in nobody's way
            _, reward, terminated, _, _ = env.step(action)
        assert terminated
        assert reward > 0


@pytest.mark.parametrize("seed", [31, 32])
def test_the_kernel_draws_the_same_colours_as_the_environment(seed: int) -> None:
    """Many drops, with the ball in the room, in the hand and out of sight, over several episodes."""
    random, restless = np.random.default_rng(seed), Restless(seed)
    drops: Counter[str] = Counter()

    def player(env: NoisyTvEnv) -> int:
        if random.random() < 0.4:
            drops["carried" if env.carrying else "lying"] += 1
            return DROP
        return solve(env) if random.random() < 0.1 else restless(env)

    events = duel(gymnasium.registry[TASK_ID], player, environments=4, steps=500, seed=seed)
    assert min(drops["carried"], drops["lying"]) > 100
    assert {"ball picked up", "walked through door", "out of time"} <= set(events)
    assert not any(event.endswith("dropped") for event in events)


def test_the_kernel_has_a_colour_for_every_step_of_an_episode() -> None:
    duel(gymnasium.registry[TASK_ID], lambda _: DROP, environments=2, steps=290, seed=9)


class Louder(NoisyTvEnv):
    """Somebody's variant, of which the kernel knows nothing."""

    def step(self, action: Any) -> Any:
        return super().step(action)


def test_a_variant_is_left_to_minigrid() -> None:
    spec = EnvSpec("Louder-v0", entry_point=lambda **_: Louder(minNumRooms=7, maxNumRooms=7, maxRoomSize=4))
    assert "has a step of its own" in str(refusal(spec))
