"""Tests of the task registry, and of who steps which task."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import minigrid
import pytest
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from minigrid.core.world_object import Wall
from minigrid.envs.empty import EmptyEnv

from leco.envs.minigrid.compiled import CompiledMiniGrid
from leco.envs.minigrid.levels import refusal
from leco.envs.minigrid.reference import ReferenceMiniGrid, make_one
from leco.envs.registry import TASKS, find_task, make
from leco.envs.vector import spread_lengths
from support.uncompiled import make_uncompiled

MINIGRID = tuple(name for name, task in TASKS.items() if task.family == "minigrid")
# id, gamma, most steps, actions, family, scores of random play and of people
PIXELS = {
    "lasertag_three_opponents_small": (
        "contributed/dmlab30/lasertag_three_opponents_small",
        0.99,
        3600,
        15,
        "dmlab",
        (-0.214, 18.55),
    ),
    "lasertag_three_opponents_large": (
        "contributed/dmlab30/lasertag_three_opponents_large",
        0.99,
        3600,
        15,
        "dmlab",
        (-0.102, 31.5),
    ),
    "vizdoom-my-way-home": ("my_way_home", 0.99, 525, 5, "vizdoom", None),
    "vizdoom-deathmatch": ("deathmatch", 0.99, 1050, 15, "vizdoom", None),
}


@pytest.mark.parametrize("name", MINIGRID)
def test_every_task_is_found_by_name_and_by_id_and_is_what_minigrid_says(name: str) -> None:
    task = find_task(name)
    assert task is find_task(task.id)
    env: Any = make_one(gymnasium.registry[task.id]).unwrapped
    assert task.max_steps == env.max_steps
    assert task.gamma == (0.8 if name.startswith("ObstructedMaze") else 0.99)
    assert task.description


@pytest.mark.parametrize("name", MINIGRID)
def test_every_task_is_compiled(name: str) -> None:
    assert isinstance(make(name, 2, 0), CompiledMiniGrid)
    assert isinstance(make_uncompiled(find_task(name), 2, 0), ReferenceMiniGrid)


def test_every_task_that_is_not_minigrids_is_what_its_simulator_says() -> None:
    assert set(TASKS) == {*MINIGRID, *PIXELS}
    for name, (level, gamma, max_steps, actions, family, scores) in PIXELS.items():
        task = find_task(name)
        assert task is find_task(level)
        assert (task.gamma, task.max_steps, task.num_actions, task.family, task.scores) == (
            gamma,
            max_steps,
            actions,
            family,
            scores,
        )
        assert task.observation_shape == (72, 96, 3)
        assert task.description


@pytest.mark.parametrize("name", PIXELS)
def test_a_task_goes_to_its_simulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(*args: Any) -> Any:
        return args

    where = {"dmlab": "leco.envs.dmlab.environment.DmlabEnv", "vizdoom": "leco.envs.vizdoom.environment.VizdoomEnv"}[
        TASKS[name].family
    ]
    monkeypatch.setattr(where, fake)
    made: Any = make(name, 3, 5)
    assert made == (PIXELS[name][0], 3, 5)


def test_other_ids_of_minigrid_need_no_entry() -> None:
    task = find_task("MiniGrid-LavaGapS7-v0")
    assert (task.id, task.gamma, task.max_steps) == ("MiniGrid-LavaGapS7-v0", 0.99, 196)
    assert find_task("MiniGrid-ObstructedMaze-Full-v1").gamma == 0.8


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("KeyCoridorS3R3", "'KeyCorridorS3R3'"),
        ("multiroom-n6", "'MultiRoom-N6'"),
        ("MiniGrid-LavaGapS8-v0", "'MiniGrid-LavaGapS"),
        ("?", "`leco tasks` lists them"),
    ],
)
def test_an_unknown_name_is_answered_with_one_that_is_near(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match="there is no task") as error:
        find_task(name)
    assert nearest in str(error.value)


def test_the_registry_alone_imports_no_environment() -> None:
    code = (
        "import sys, leco.envs.registry as r; [r.find_task(name) for name in r.TASKS]; "
        "packages = {'numba', 'minigrid', 'gymnasium', 'vizdoom'}; "
        "print({*packages, 'leco.envs.dmlab.environment', 'leco.envs.vizdoom.environment'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "set()"


@pytest.mark.parametrize(
    "task_id",
    [
        "MiniGrid-Dynamic-Obstacles-5x5-v0",
        "MiniGrid-Fetch-5x5-N2-v0",
        "MiniGrid-GoToDoor-5x5-v0",
        "MiniGrid-GoToObject-6x6-N2-v0",
        "MiniGrid-MemoryS7-v0",
        "MiniGrid-PutNear-6x6-N2-v0",
        "MiniGrid-RedBlueDoors-6x6-v0",
    ],
)
def test_a_step_that_the_kernel_does_not_know_is_left_to_minigrid(
    task_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = make(task_id, 2, 0)
    assert isinstance(env, ReferenceMiniGrid)
    assert "has a step of its own" in caplog.text
    env.reset()
    for _ in range(5):
        env.step([1, 1])


class Dim(EmptyEnv):
    def gen_obs(self) -> Any:
        return {}


class Generous(EmptyEnv):
    def _reward(self) -> float:
        return 1.0


def foreign(kind: Any) -> EnvSpec:
    return EnvSpec("Foreign-v0", entry_point=kind)


class Mine(EmptyEnv):
    """Somebody's own class, whose step is MiniGrid's."""


class Mirror(Wall):
    """An object that the kernel does not know."""


class Mirrored(EmptyEnv):
    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)  # type: ignore[no-untyped-call]
        self.grid.set(0, 0, Mirror())


class Counting(EmptyEnv):
    def step(self, action: Any) -> Any:
        return super().step(action)


def test_somebodys_own_class_is_compiled_if_nothing_in_it_is_unknown() -> None:
    assert refusal(foreign(Mine)) is None
    assert refusal(foreign(Counting)) == "Counting has a step of its own"
    assert refusal(foreign(Mirrored)) == "the level has a Mirror that the kernel does not know"


@pytest.mark.parametrize(("kind", "name"), [(Dim, "gen_obs"), (Generous, "_reward")])
def test_a_class_that_sees_or_rewards_otherwise_is_left_to_minigrid(kind: type, name: str) -> None:
    assert refusal(foreign(kind)) == f"{kind.__qualname__} has a {name} of its own"


def test_a_task_that_no_test_can_play_is_left_to_minigrid() -> None:
    assert "never been compared" in str(refusal(gymnasium.registry["MiniGrid-WFC-MazeSimple-v0"]))


def test_a_wrapped_task_is_left_to_minigrid() -> None:
    spec = EnvSpec("Short-v0", entry_point="minigrid.envs:EmptyEnv", max_episode_steps=10)
    assert refusal(spec) == "gymnasium wraps it"
    wrapper = WrapperSpec("FullyObsWrapper", "minigrid.wrappers:FullyObsWrapper", kwargs={})
    assert (
        refusal(EnvSpec("Full-v0", entry_point="minigrid.envs:EmptyEnv", additional_wrappers=(wrapper,)))
        == "gymnasium wraps it"
    )


def test_another_version_of_minigrid_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minigrid, "__version__", "3.9.0")
    assert isinstance(make("Empty-5x5", 1, 0), ReferenceMiniGrid)


def test_first_episodes_are_spread_evenly_in_an_actor_and_among_actors() -> None:
    assert spread_lengths(16, 3600, 0) == [225 * (e + 1) for e in range(16)]
    assert spread_lengths(4, 12, 0) == [3, 6, 9, 12]
    assert sorted(length for actor in range(8) for length in spread_lengths(1, 80, actor)) == list(range(10, 81, 10))
    assert spread_lengths(3, 1, 2**32 - 1) == [1, 1, 1]


def test_episodes_of_minigrid_have_no_fixed_length() -> None:
    fixed = {name for name, task in TASKS.items() if task.fixed_length}
    assert fixed == {"lasertag_three_opponents_small", "lasertag_three_opponents_large", "vizdoom-deathmatch"}
