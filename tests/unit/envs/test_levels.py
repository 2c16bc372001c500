"""Tests of what level generation is made of: the integers, the seeds, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from minigrid.core.world_object import Ball, Box
from minigrid.envs.empty import EmptyEnv

from leco.envs.minigrid.fast_pcg import Integers
from leco.envs.minigrid.levels import LevelSource
from leco.envs.vector import episode_seed


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_integers_are_those_of_numpy(seed: int) -> None:
    generator, fast = np.random.Generator(np.random.PCG64(seed)), Integers(seed)
    spans = np.random.default_rng(0).choice([1, 2, 3, 6, 7, 25, 2**31 + 1, 3 * 2**30, 2**32 - 1], 3000)
    for low, span in enumerate(spans.tolist(), start=-1500):
        assert fast.integers(low, low + span) == generator.integers(low, low + span)


def test_integers_stand_in_for_nothing_else() -> None:
    fast: Any = Integers(0)
    for low, high in ((0, 0), (3, 1), (0, 2**32)):
        with pytest.raises(TypeError, match="stands in for"):
            fast.integers(low, high)
    with pytest.raises(TypeError):
        fast.integers(0, 5, size=3)
    with pytest.raises(AttributeError):
        fast.uniform()


class Strange(EmptyEnv):
    """Draws numbers that are no integers, and puts strange things into the level."""

    thing: Any = None

    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)  # type: ignore[no-untyped-call]  # MiniGrid is annotated in part
        self.grid.set(1 + int(self._rand_float(0, 2)), 2, self.thing or Ball())


class Magic(Box):
    pass


def strange() -> EnvSpec:
    return EnvSpec("Strange-v0", entry_point=Strange)


def test_a_task_that_draws_more_than_integers_gets_numpys_generator() -> None:
    source = LevelSource(strange())
    env = Strange()
    places = set()
    for seed in range(12):
        env.reset(seed=seed)
        truth = [thing is not None and thing.type == "ball" for thing in env.grid.grid]
        level = source.generate(seed)
        assert ((level.cell_HW & 15) == 6).ravel().tolist() == truth
        places.add(truth.index(True))
    assert len(places) == 2


@pytest.mark.parametrize("thing", [Magic("red"), Box("red", Magic("red")), Box("red", Box("red", Box("red", Ball())))])
def test_what_the_kernel_does_not_know_is_refused(thing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Strange, "thing", thing)
    with pytest.raises(TypeError, match="that the kernel does not know"):
        LevelSource(strange()).generate(0)


def test_a_level_does_not_depend_on_the_levels_before() -> None:
    source = LevelSource(gymnasium.registry["MiniGrid-MultiRoom-N6-v0"])
    first = source.generate(7)
    for seed in range(5):
        source.generate(seed)
    again = source.generate(7)
    np.testing.assert_array_equal(first.cell_HW, again.cell_HW)
    assert first[1:] == again[1:]


def test_episode_seeds_differ_and_never_change() -> None:
    seeds = {episode_seed(seed, e, k) for seed in range(5) for e in range(20) for k in range(20)}
    assert len(seeds) == 2000
    # A change of this number would change the levels of every run that anybody has recorded.
    assert episode_seed(1, 2, 3) == 10928566898365450891
