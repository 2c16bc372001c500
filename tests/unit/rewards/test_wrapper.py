"""`EpisodicCount` beside a plain loop that counts by hand."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from leco.algo.hashes import digest
from leco.learning.rewards import BonusMoments, running_moments
from leco.methods.table import Hash
from leco.models.kinds.table import find_kind
from leco.rewards import EpisodicCount
from leco.rewards.bonus import WARM_UP, EpisodicBonus
from leco.rewards.wrapper import STEPS

if TYPE_CHECKING:
    import numpy.typing as npt

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


class Walk(gymnasium.Env[Any, Any]):
    """A walk on five cells, each of which looks different. Its episodes last so many actions."""

    def __init__(self, length: int) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length = length

    def _look(self) -> npt.NDArray[np.uint8]:
        picture = np.ones((7, 7, 3), np.uint8)
        picture[0, 0] = (self.at, 0, 0)
        return picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.at, self.steps = 2, 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at, self.steps = int(np.clip(self.at + 2 * action - 1, 0, 4)), self.steps + 1
        return self._look(), 1.0, False, self.steps == self._length, {}


def walks(mode: AutoresetMode, **settings: Any) -> EpisodicCount:
    makers = [lambda length=length: Walk(length) for length in (3, 5, 7)]
    return EpisodicCount(SyncVectorEnv(makers, autoreset_mode=mode), **settings)


def by_hand(actions_TE: npt.NDArray[np.int64], mode: AutoresetMode) -> npt.NDArray[np.int64]:
    """N of what each action led to, of each environment; 0 for an action that was not taken."""
    counts = []
    for e, length in enumerate((3, 5, 7)):
        walk, seen, found, over = Walk(length), Counter[bytes](), [], True
        for action in [None, *actions_TE[:, e]]:
            if over:
                first, _ = walk.reset()
                seen, over = Counter({first.tobytes(): 1}), False
                if action is None or mode is AutoresetMode.NEXT_STEP:
                    found += [] if action is None else [0]
                    continue
            look, _, _, over, _ = walk.step(action)
            seen[look.tobytes()] += 1
            found.append(seen[look.tobytes()])
        counts.append(found)
    return np.array(counts).T


@pytest.mark.parametrize("mode", MODES)
def test_each_first_visit_of_an_episode_is_paid_less_the_mean_in_deviations(mode: AutoresetMode) -> None:
    envs = walks(mode, hash="exact", worth="first-visit", alpha=0.5)
    envs.reset(seed=0)
    actions_TE = np.random.default_rng(1).integers(0, 2, (2 * STEPS + 60, 3))
    played = [envs.step(action_E) for action_E in actions_TE]
    count_TE = by_hand(actions_TE, mode)
    moments = BonusMoments(torch.zeros(()), torch.zeros(()))
    for batch, begin in enumerate((0, STEPS)):
        steps_TE = count_TE[begin : begin + STEPS]
        first = torch.from_numpy((steps_TE[steps_TE > 0] == 1).astype(np.float32))
        assert not any(each[4]["bonus"].any() for each in played[:STEPS]), "nothing is known yet"
        moments = running_moments(moments, first, batch)
    expected_TE = 0.5 * ((count_TE == 1) - float(moments.mean)) / float(moments.deviation)
    for t in range(2 * STEPS, len(played)):
        _, reward_E, _, _, info = played[t]
        acted_E = count_TE[t] > 0
        assert info["bonus"] == pytest.approx(np.where(acted_E, expected_TE[t], 0), abs=1e-5)
        assert reward_E == pytest.approx(info["extrinsic_reward"] + info["bonus"])


def test_a_learned_hash_learns_on_the_way() -> None:
    torch.manual_seed(0)
    envs = walks(AutoresetMode.SAME_STEP)  # vq-cells
    network = envs._bonus.hash.network
    assert network is not None
    before = {name: tensor.clone() for name, tensor in network.state_dict().items() if name.startswith("cells.")}
    envs.reset(seed=0)
    draws = np.random.default_rng(1)
    paid = [envs.step(draws.integers(0, 2, 3))[4]["bonus"] for _ in range(10 * STEPS)]
    after = network.state_dict()
    for part in ("cells.encoder.0.weight", "cells.vectors_KD", "cells.used_K"):
        assert not torch.equal(before[part], after[part])
    assert np.isfinite(paid).all()
    assert not np.any(paid[: 9 * STEPS])
    assert np.any(paid[9 * STEPS :])


@pytest.mark.parametrize("name", ["cells", "objects", "dsc", "vq", "ae-lsh"])
def test_every_hash_pays(name: str) -> None:
    envs = walks(AutoresetMode.SAME_STEP, hash=name, worth="inverse-sqrt")
    envs.reset(seed=0)
    draws = np.random.default_rng(1)
    for _ in range(9 * STEPS + 1 if name in ("vq", "ae-lsh") else STEPS + 1):
        bonus_E = envs.step(draws.integers(0, 2, 3))[4]["bonus"]
    assert np.isfinite(bonus_E).all()


def test_a_part_of_a_dictionary_counts() -> None:
    class Told(gymnasium.ObservationWrapper[Any, Any, Any]):
        def __init__(self, env: Walk) -> None:
            super().__init__(env)
            self.observation_space = gymnasium.spaces.Dict(
                {"image": env.observation_space, "at": gymnasium.spaces.Discrete(5)}
            )

        def observation(self, observation: Any) -> dict[str, Any]:
            return {"image": observation, "at": self.unwrapped.at}  # type: ignore[attr-defined]

    envs = SyncVectorEnv([lambda: Told(Walk(3))] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    counted = EpisodicCount(envs, hash="exact", key="image")
    counted.reset()
    for _ in range(5):
        observation, *_ = counted.step([1, 1])
    assert set(observation) == {"image", "at"}
    with pytest.raises(ValueError, match="EpisodicCount counts observations of bytes, and these are Dict"):
        EpisodicCount(envs)


def test_what_cannot_be_counted_is_refused_in_one_sentence() -> None:
    envs = SyncVectorEnv([lambda: Walk(3)], autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match="needs environments that begin their episodes by themselves"):
        EpisodicCount(envs)
    with pytest.raises(ValueError, match="there is no hash 'vq-cell'; did you mean 'vq-cells'"):
        walks(AutoresetMode.SAME_STEP, hash="vq-cell")


def test_equal_observations_have_equal_codes_only() -> None:
    envs = walks(AutoresetMode.SAME_STEP, hash="exact")
    looks = np.random.default_rng(0).integers(0, 2, (20, 7, 7, 3), np.uint8)
    assert (envs._bonus.hash.codes(looks) == digest(torch.from_numpy(looks)).numpy()).all()


def test_pictures_of_any_size_are_hashed_by_what_is_learned_of_their_patches() -> None:
    torch.manual_seed(0)
    bonus = EpisodicBonus(find_kind((48, 32, 3)), Hash.VQ_PATCHES, "information")
    draws = np.random.default_rng(0)
    pictures = draws.integers(0, 3, (64, 48, 32, 3), np.uint8) * np.uint8(80)
    for _ in range(WARM_UP + 2):
        codes = bonus.hash.codes(pictures)
        counts = draws.integers(1, 3, (64, bonus.hash.levels), np.uint32)
        assert np.isfinite(bonus.pay(counts, codes)).all()
        bonus.learn(pictures, counts, codes)
    assert bonus.pay(counts, codes).std() > 0
