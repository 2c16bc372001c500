"""What `leco eval` records is what happened: against MiniGrid itself, and against naive counting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch

from leco.config.toml import parse
from leco.envs.minigrid.reference import make_one
from leco.envs.minigrid.replay import Replayer
from leco.envs.registry import find_task
from leco.evaluation import rollout, scoring
from leco.evaluation.record import make_recording
from leco.evaluation.rollout import Keeper
from leco.evaluation.scoring import visit_counts
from leco.evaluation.trained import Trained
from leco.learning.state import init
from leco.methods.table import METHODS, Modulation, find_method
from leco.models.build import build
from leco.models.hash_function import make_hash_function
from leco.models.kinds.table import find_kind
from leco.report.pictures import draw_moment, draw_observation, window
from support.uncompiled import make_uncompiled

if TYPE_CHECKING:
    from leco.envs.task import Task
    from leco.evaluation.recording import Episode, Recording
    from leco.evaluation.rollout import Result


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "make", make_uncompiled)


def trained(method: str, task: Task, **settings: Any) -> Trained:
    torch.manual_seed(3)
    experiment = parse("", {"task": task.name, "method": method, **settings})
    networks = build(find_method(method), task.observation_shape, task.num_actions, experiment.hash)
    state = init(networks)
    for name, tensor in state.intrinsic.items():  # they begin at zero
        if name.startswith("modulator_out"):
            tensor.normal_(0, 0.3)
    return Trained(experiment, networks.policy, 0, {"frames": 0}, networks, state)


def recorded(of: Trained, *, count: int = 3, seed: int = 1) -> tuple[Recording, Result]:
    keeper = Keeper(count)
    task = find_task(of.experiment.task)
    result = rollout.evaluate(of.policy, task, episodes=count, seed=seed, greedy=False, keeper=keeper)
    return make_recording(of, keeper.episodes, run="r", checkpoint="newest", seed=seed, greedy=False), result


@pytest.mark.parametrize("name", ["KeyCorridorS3R1", "MultiRoom-N2-S4", "MultiRoom-N7-S4-NoisyTV", "DoorKey-5x5"])
def test_a_recording_is_what_minigrid_shows(name: str) -> None:
    task = find_task(name)
    recording, result = recorded(trained("no-int", task))
    np.testing.assert_array_equal([len(each.action_T) for each in recording.episodes], result.lengths_N)
    np.testing.assert_allclose([each.score for each in recording.episodes], result.returns_N, rtol=1e-6)
    assert [each.solved for each in recording.episodes] == result.solved_N.tolist()
    spec = gymnasium.registry[task.id]
    env: Any = make_one(spec).unwrapped
    assert len({each.level for each in recording.episodes}) == 3
    for each in recording.episodes[:2]:
        view, _ = env.reset(seed=each.level)
        columns, rows = window(env.grid.encode())
        for t, action in enumerate((*each.action_T, None)):
            np.testing.assert_array_equal(each.observation_TO[t], view["image"])
            assert (each.x_T[t], each.y_T[t], each.direction_T[t]) == (*env.agent_pos, env.agent_dir)
            np.testing.assert_array_equal(each.grid(t), env.grid.encode())
            if t % 10 == 0:
                shown = env.get_full_render(highlight=True, tile_size=8)
                part = shown[8 * rows.start : 8 * rows.stop, 8 * columns.start : 8 * columns.stop]
                np.testing.assert_array_equal(draw_moment(each, t, 8), part)
                np.testing.assert_array_equal(draw_observation(each.observation_TO[t], 8), env.get_pov_render(8))
            if action is not None:
                view, reward, *_ = env.step(int(action))
                assert each.r_e_T[t] == np.float32(reward)


def naive_counts(episode: Episode) -> list[int]:
    codes = [bytes(each) for each in episode.code_TW]
    return [codes[: t + 1].count(code) for t, code in enumerate(codes)]


@pytest.mark.parametrize("method", METHODS)
def test_rewards_of_every_method(method: str) -> None:
    task = find_task("DoorKey-5x5")
    of = trained(method, task)
    recording, _ = recorded(of)
    row, metadata = find_method(method), recording.metadata
    coder = make_hash_function(row, find_kind(task.observation_shape), of.networks.intrinsic)
    for each in recording.episodes:
        assert all(np.isfinite(x).all() for x in (each.r_ep_T, each.r_ta_T, each.r_i_T))
        np.testing.assert_allclose(
            each.r_i_T, (1 - metadata.lambda_) * each.r_ep_T + metadata.lambda_ * each.r_ta_T, atol=1e-6
        )
        if coder is None:
            assert each.code_TW.shape[1] == 0
            assert not each.count_T.any()
        else:
            np.testing.assert_array_equal(each.code_TW, coder.codes(each.observation_TO))
            assert each.count_T.tolist() == naive_counts(each)
            assert each.count_T.max() > 1
        if row.novelty == "count":
            np.testing.assert_allclose(each.r_ep_T, [1 / math.sqrt(n) for n in each.count_T[1:]], rtol=1e-6)
        elif row.novelty == "none":
            assert not each.r_ep_T.any()
        elif row.novelty != "rnd":  # what was seen before in the episode is not new
            assert (each.r_ep_T[each.count_T[1:] > 1] < each.r_ep_T.max()).all()
        assert each.r_ta_T[0] == 0
        assert each.r_ta_T.any() == (row.modulation is not Modulation.NONE)


@pytest.mark.parametrize("method", ["leco", "leco-naive"])
def test_the_modulator_step_by_step(method: str) -> None:
    of = trained(method, find_task("DoorKey-5x5"))
    [each, *_] = recorded(of)[0].episodes
    net = of.networks.intrinsic
    assert net is not None
    with torch.no_grad():
        for t in range(1, 40):
            z_1F = net.encode(torch.from_numpy(each.observation_TO[t : t + 1])).flatten(1)
            told = torch.tensor([each.r_ep_T[t]]) if method == "leco-naive" else None
            scores_1A = net.modulate(z_1F, torch.tensor([int(each.action_T[t])]), novelty_N=told)
            assert each.r_ta_T[t] == pytest.approx(math.tanh(scores_1A[0, each.action_T[t - 1]].item()), abs=1e-5)


@pytest.mark.parametrize("method", ["leco", "noveld", "ride", "agac"])
def test_long_episodes_in_pieces_are_the_same(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = trained(method, find_task("DoorKey-5x5"))
    whole, _ = recorded(of)
    monkeypatch.setattr(scoring, "PIECE", 7)
    pieces, _ = recorded(of)
    for one, other in zip(whole.episodes, pieces.episodes, strict=True):
        np.testing.assert_array_equal(one.count_T, other.count_T)
        for name in ("r_ep_T", "r_ta_T", "r_i_T"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)


def test_counts_by_hand() -> None:
    codes = np.array([[1, 2], [1, 2], [2, 1], [1, 2], [2, 1]], np.uint8)
    assert visit_counts(codes).tolist() == [1, 2, 1, 3, 2]


def test_actions_of_another_level_are_noticed() -> None:
    task = find_task("Empty-5x5")
    replayer = Replayer(task)
    with pytest.raises(ValueError, match="level 1 ends after another number of actions than 3"):
        replayer.play(1, [0, 0, 0])
    with pytest.raises(ValueError, match="another number of actions"):
        replayer.play(1, [0] * 101)
