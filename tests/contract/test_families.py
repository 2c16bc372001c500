"""What every family of environments does, whatever it plays: one suite, and a row for each kind of task.

E  environments    F  episodes that ended in a step    O...  shape of one observation
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from leco.envs.registry import FAMILIES, family_of, find_task, make
from leco.envs.task import EnvironmentConfig
from leco.envs.vector import Steps
from support import needs
from support.paths import DMLAB_STAND_IN
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leco.envs.task import Task
    from leco.envs.vector import VectorEnv

NEVER = EnvironmentConfig(processes="never")
ALWAYS = EnvironmentConfig(processes="always")
OF_SOME_LENGTH = (7, 11)  # the first episodes where all have one length


class Row(NamedTuple):
    """A task, how it is made, and how many steps of two environments have an end among them."""

    task: str
    steps: int
    environment: EnvironmentConfig | None = None


ROWS = {
    "minigrid": Row("MultiRoom-N2-S4", 50),
    "minigrid, not compiled": Row("MiniGrid-Fetch-5x5-N2-v0", 110),
    "minigrid, own class": Row("support.own_envs:Corridor-v0", 20),
    "minigrid-rgb": Row("MultiRoom-N2-S4-RGB", 50),
    "dmlab": Row("lasertag_three_opponents_small", 20),
    "vizdoom": Row("vizdoom-my-way-home", 540),
    "vizdoom, fixed length": Row("vizdoom-deathmatch", 20),
    "gymnasium, numbers": Row("CartPole-v1", 80, NEVER),
    "gymnasium, processes": Row("CartPole-v1", 80, ALWAYS),
    "gymnasium, time limit": Row("support.own_envs:Counting-v0", 20, NEVER),
    "gymnasium, masks and several choices": Row("support.own_envs:Ladder-v0", 130, NEVER),
    "gymnasium, mixed": Row("support.own_envs:Radar-v0", 50, NEVER),
    "gymnasium, pictures": Row("ALE/Breakout-v5", 400, NEVER),
}


@pytest.fixture(scope="module", autouse=True)
def _dmlab() -> Iterator[None]:
    """DeepMind Lab's stand-in."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith("LECO_DMLAB_")]:
            patch.delenv(name)
        patch.setenv("PYTHONPATH", f"{DMLAB_STAND_IN}:{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("LECO_DMLAB_CACHE", "off")
        patch.setenv("LECO_DMLAB_STEP_SECONDS", str(PATIENCE))
        patch.setenv("LECO_DMLAB_RESET_SECONDS", str(PATIENCE))
        yield


@pytest.fixture(scope="module", params=ROWS)
def row(request: pytest.FixtureRequest) -> Row:
    if request.param == "dmlab" and not needs.zip_program.found:
        pytest.skip(needs.zip_program.reason)
    return ROWS[request.param]


@pytest.fixture(scope="module")
def task(row: Row) -> Task:
    return find_task(row.task, row.environment)


@contextmanager
def making(task: Task, num_envs: int, seed: int = 3) -> Iterator[VectorEnv]:
    env = make(task, num_envs, seed)
    try:
        yield env
    finally:
        env.close()


def begin(env: VectorEnv, task: Task, **how: Any) -> Any:
    """The first observations; where episodes have one length, the first of each environment is cut."""
    return env.reset(**how, first_lengths=OF_SOME_LENGTH[: env.num_envs]) if task.fixed_length else env.reset(**how)  # type: ignore[call-arg]


def allowed(task: Task, observation_O: Any) -> list[int]:
    """Which actions may be taken."""
    masked = task.layout.actions
    return np.flatnonzero(observation_O[-masked:]).tolist() if masked else list(range(task.num_actions))


class Played(NamedTuple):
    """Some steps: what was seen, done and given, as copies; and the arrays themselves."""

    first_EO: Any
    actions: list[list[int]]
    steps: list[Steps]
    kept: list[Any]
    copies: list[Any]


def play(env: VectorEnv, task: Task, steps: int, **how: Any) -> Played:
    """Environment e acts by dice of its own, so that it does the same whoever else plays."""
    random = [np.random.default_rng(e) for e in range(env.num_envs)]
    seen_EO = begin(env, task, **how)
    played = Played(seen_EO.copy(), [], [], [seen_EO], [seen_EO.copy()])
    for _ in range(steps):
        action_E = [int(random[e].choice(allowed(task, seen_EO[e]))) for e in range(env.num_envs)]
        result = env.step(action_E)
        played.actions.append(action_E)
        played.steps.append(Steps._make([part.copy() for part in result]))
        played.kept.extend(result)
        played.copies.extend(part.copy() for part in result)
        seen_EO = result.observation_EO
    return played


@pytest.fixture(scope="module")
def played(row: Row, task: Task) -> Played:
    with making(task, 2) as env:
        return play(env, task, row.steps)


def test_every_family_has_a_row() -> None:
    assert {find_task(each.task, each.environment).family for each in ROWS.values()} == set(FAMILIES)


def test_environments_are_what_their_task_says(task: Task, played: Played) -> None:
    shape = task.observation_shape
    assert (task.layout.shape, played.first_EO.shape, played.first_EO.dtype) == (shape, (2, *shape), np.uint8)
    with making(task, 2) as env:
        assert (env.observation_shape, env.num_actions, env.num_envs) == (shape, task.num_actions, 2)
    for each in played.steps:
        ended = int(each.done_E.sum())
        assert [(str(part.dtype), part.shape) for part in each] == [
            ("uint8", (2, *shape)),
            ("float32", (2,)),
            ("bool", (2,)),
            ("bool", (2,)),
            ("uint8", (ended, *shape)),
        ]


def test_episodes_end_within_their_time_and_what_is_solved_has_ended(task: Task, played: Played) -> None:
    ends = 0
    for e in range(2):
        length, total = 0, 0.0
        for each in played.steps:
            length, total = length + 1, total + float(each.reward_E[e])
            assert each.done_E[e] or not each.success_E[e]
            assert task.solvable or not each.success_E[e]
            assert np.isfinite(total)
            assert abs(total) <= task.reward_limit
            if each.done_E[e]:
                assert length <= (task.max_steps or length)
                ends, length, total = ends + 1, 0, 0.0
            assert length < (task.max_steps or length + 1)
    assert ends > 1


def test_arrays_belong_to_the_caller(played: Played) -> None:
    for array, copy in zip(played.kept, played.copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_an_episode_depends_on_seed_environment_and_actions_alone(row: Row, task: Task, played: Played) -> None:
    if not family_of(task).reproducible:
        pytest.skip("its family says that it is not reproducible")
    with making(task, 1) as env:
        for how in ({}, {}, {"seed": 3}):
            alone = play(env, task, row.steps, **how)
            np.testing.assert_array_equal(alone.first_EO, played.first_EO[:1])
            assert alone.actions == [each[:1] for each in played.actions]
            for one, two in zip(alone.steps, played.steps, strict=True):
                for name in ("observation_EO", "reward_E", "done_E", "success_E"):
                    np.testing.assert_array_equal(getattr(one, name), getattr(two, name)[:1])
                ended = int(one.done_E.sum())
                np.testing.assert_array_equal(one.terminal_observation_FO, two.terminal_observation_FO[:ended])


@pytest.mark.parametrize(
    ("action_E", "message"),
    [
        ([0], r"shape \[1\], expected \[2\]"),
        ([0.0, 1.0], "must be integers, not float64"),
        ([0, 10_000], "action 10000 of environment 1 is not one of 0 to"),
        ([-1, 0], "action -1 of environment 0 is not one of 0 to"),
    ],
)
def test_bad_actions_are_refused(task: Task, action_E: Any, message: str) -> None:
    with making(task, 2) as env:
        begin(env, task)
        with pytest.raises(ValueError, match=message):
            env.step(action_E)


def test_needs_a_reset_before_a_step_and_cannot_be_stepped_after_close(task: Task) -> None:
    with making(task, 2) as env:
        with pytest.raises(RuntimeError, match=r"reset\(\) must be called before step\(\)"):
            env.step([0, 0])
        first_EO = begin(env, task)
        env.step([allowed(task, each)[0] for each in first_EO])
        env.close()
        with pytest.raises(RuntimeError):
            env.step([0, 0])
        env.close()  # again changes nothing


def test_refuses_impossible_sizes_and_seeds(task: Task) -> None:
    with pytest.raises(ValueError, match="at least 1 environment, not 0"):
        make(task, 0, 0)
    with pytest.raises(ValueError, match="a seed must be an integer of at least 0, not -1"):
        make(task, 1, -1)
