"""One training step of every method."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from leco.config.training import TrainingConfig
from leco.learning.state import TrainingState, init
from leco.learning.update import update
from leco.methods.table import METHODS, find_method
from support.training_case import make_batch, networks, paper_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leco.config.training import TrainingConfig
    from leco.learning.state import Batch

CURIOUS = ("noveld", "rnd", "ride", "agac")
UNTRAINED = ("value_head.weight", "value_head.bias")  # AGAC's adversary has no use for a value
MODULATED = ("leco", "leco-ae-lsh", "leco-naive", "lirpg")
ROWS = [(name, None) for name in METHODS] + [
    ("leco", "exact"),
    ("leco-naive", "objects"),
    ("lirpg", "dsc"),
    ("exact", "vq"),
]
REUSE = paper_config(
    epochs=2,
    minibatches=3,
    sequence_length=3,
    clip_range=0.2,
    normalize_advantages=True,
    max_gradient_norm=0.5,
    episodic_bonus="first-visit",
    center_bonus=True,
    penalty_on_revisits=True,
)


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([t.double().flatten() for t in tensors.values()])


def copied(state: TrainingState) -> TrainingState:
    return copy.deepcopy(state)


@pytest.mark.parametrize("settings", [paper_config(), REUSE], ids=["single", "reuse"])
@pytest.mark.parametrize(("name", "kind"), ROWS)
def test_a_step_moves_what_the_method_trains_and_nothing_else(
    name: str, kind: str | None, settings: TrainingConfig
) -> None:
    nets, batch = networks(name, kind), make_batch()
    state = init(nets)
    before = copied(state)
    after, stats = update(nets, state, batch, find_method(name, kind), settings)
    assert all(torch.isfinite(torch.tensor(value)) for value in stats.values())
    assert after.updates == 1
    assert not torch.equal(flat(after.policy), flat(state.policy))
    for now, then in (
        (state.policy, before.policy),
        (state.intrinsic, before.intrinsic),
        (state.running, before.running),
        (state.novelty, before.novelty),
        (state.novelty_running, before.novelty_running),
    ):
        assert all(torch.equal(now[key], then[key]) for key in then), "the state that was given is a value"
    moved = {key for key, value in after.intrinsic.items() if not torch.equal(value, state.intrinsic[key])}
    modulator = {key for key in state.intrinsic if key.startswith(("modulator", "value_head"))}
    hash_parts = set(state.intrinsic) - modulator
    assert moved == (hash_parts | modulator if name in MODULATED else hash_parts)
    assert bool(moved) == (kind == "vq" or name not in ("no-int", "dsc", "exact", "objects", "rnd"))
    still = {key for key, value in after.novelty.items() if torch.equal(value, state.novelty[key])}
    assert still == {key for key in state.novelty if key.startswith("target") or key in UNTRAINED}
    assert bool(state.novelty) == (name in CURIOUS)
    changed = {
        key for key, value in after.novelty_running.items() if not torch.equal(value, state.novelty_running[key])
    }
    assert changed == (set(state.novelty_running) if name == "rnd" else set()), "counts are paid as published here"
    if name.endswith("ae-lsh"):
        assert torch.equal(after.running["bottleneck.projection_PF"], state.running["bottleneck.projection_PF"])


@pytest.mark.parametrize("inner_loss", ["policy-gradient", "full"])
@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("leco", None, paper_config()),
        ("leco-ae-lsh", None, paper_config()),
        ("leco", "exact", REUSE),
        ("leco", None, REUSE),
    ],
)
def test_a_step_depends_on_its_inputs_alone(
    name: str, kind: str | None, settings: TrainingConfig, inner_loss: str
) -> None:
    nets, batch, method = networks(name, kind), make_batch(), find_method(name, kind)
    settings = dataclasses.replace(settings, inner_loss=inner_loss, decoder_samples=3)  # type: ignore[arg-type]
    first, first_stats = update(nets, init(nets), batch, method, settings)
    torch.manual_seed(99)
    second, second_stats = update(nets, init(nets), batch, method, settings)
    assert first_stats == second_stats
    assert torch.equal(flat(first.policy), flat(second.policy))
    assert torch.equal(flat(first.intrinsic), flat(second.intrinsic))


def test_lambda_0_is_vq_only_and_lambda_1_is_lirpg_for_the_policy() -> None:
    nets, batch = networks(), make_batch()
    for lambda_, other in ((0.0, "vq-only"), (1.0, "lirpg")):
        ours, _ = update(nets, init(nets), batch, find_method("leco"), paper_config(lambda_=lambda_))
        theirs, _ = update(nets, init(nets), batch, find_method(other), paper_config())
        assert torch.equal(flat(ours.policy), flat(theirs.policy))


def test_without_a_weight_the_intrinsic_reward_changes_nothing_for_the_policy() -> None:
    nets, batch = networks(), make_batch()
    ours, _ = update(nets, init(nets), batch, find_method("leco"), paper_config(alpha=0.0))
    plain, _ = update(networks("no-int"), init(nets), batch, find_method("no-int"), paper_config())
    assert torch.equal(flat(ours.policy), flat(plain.policy))


def test_the_stats_are_those_of_the_batch() -> None:
    nets, batch = networks(), make_batch()
    _, stats = update(nets, init(nets), batch, find_method("leco"), paper_config())
    assert batch.count_TB is not None
    assert stats["r_e"] == pytest.approx(batch.reward_TB.mean().item())
    assert stats["r_ep"] == pytest.approx((1 / batch.count_TB.double().sqrt()).mean().item())
    assert stats["r_i"] == pytest.approx(0.5 * stats["r_ep"] + 0.5 * stats["r_ta"])
    assert stats["new_code_share"] == pytest.approx((batch.count_TB == 1).double().mean().item())
    observations = batch.observation_TBO.flatten(0, 1).flatten(1)
    assert stats["distinct_share"] == pytest.approx(
        len({bytes(row.tolist()) for row in observations}) / len(observations)
    )


@pytest.mark.parametrize("name", ["no-int", "leco"])
def test_it_says_once_when_the_hash_is_done_and_leaves_the_threads_as_they_were(name: str) -> None:
    said: list[None] = []
    threads = torch.get_num_threads()
    nets = networks(name)
    update(nets, init(nets), make_batch(), find_method(name), paper_config(), when_hashed=lambda: said.append(None))
    assert (len(said), torch.get_num_threads()) == (1, threads)


def test_the_naive_modulator_is_told_the_novelty_and_does_not_train_the_encoder() -> None:
    """With lambda 1 and nothing else in the loss, LECO's outer loss reaches the encoder and the naive one's does not."""
    batch, name = make_batch(), "leco-naive"
    nets = networks(name)
    counts = batch.count_TB
    assert counts is not None
    seldom, _ = update(nets, init(nets), batch, find_method(name), paper_config())
    often, _ = update(nets, init(nets), batch._replace(count_TB=counts * 7), find_method(name), paper_config())
    assert not torch.equal(flat(seldom.policy), flat(often.policy))
    for method, reaches in (("leco-naive", False), ("lirpg", True)):
        nets = networks(method)
        strong, weak = (
            update(nets, init(nets), batch, find_method(method), paper_config(alpha=alpha))[0].intrinsic_adam.exp_avg
            for alpha in (1.0, 0.5)
        )
        differs = {key for key, value in strong.items() if not torch.allclose(value, weak[key], rtol=1e-9, atol=1e-14)}
        assert {"modulator_in.weight", "modulator_out.weight"} <= differs
        assert any(key.startswith("encoder") for key in differs) == reaches


def test_the_modulator_may_have_a_learning_rate_of_its_own() -> None:
    nets, batch, method = networks(), make_batch(), find_method("leco")
    state = init(nets)
    plain, _ = update(nets, state, batch, method, paper_config())
    slow, _ = update(nets, state, batch, method, paper_config(modulator_learning_rate=3e-5))
    for name, before in state.intrinsic.items():
        step, held_back = plain.intrinsic[name] - before, slow.intrinsic[name] - before
        expected = step / 10 if name.startswith("modulator_") else step
        torch.testing.assert_close(held_back, expected, rtol=1e-6, atol=1e-12)
    for name, mean in plain.intrinsic_adam.exp_avg.items():
        assert torch.equal(mean, slow.intrinsic_adam.exp_avg[name])


def test_the_learning_rate_falls_with_the_updates() -> None:
    """Without momentum Adam's steps are as long as its rate: 1 / sqrt(1 + 3 / 1) of it is half."""
    nets, batch, method = networks(), make_batch(), find_method("no-int")
    state = init(nets)._replace(updates=3)
    stays, _ = update(nets, state, batch, method, paper_config())
    falls, _ = update(nets, state, batch, method, paper_config(learning_rate_timescale=1))
    for name, before in state.policy.items():
        torch.testing.assert_close(
            falls.policy[name] - before, (stays.policy[name] - before) / 2, rtol=1e-6, atol=1e-12
        )


def test_the_decoder_may_learn_from_a_sample() -> None:
    """On average over the turns, the sample's gradient is that of all; if all fit in, it is exactly that."""
    nets, batch, method = networks("vq-only"), make_batch(), find_method("vq-only")

    def gradient(decoded: int | None, turn: int) -> Tensor:
        after, _ = update(nets, init(nets)._replace(updates=turn), batch, method, paper_config(decoder_samples=decoded))
        return after.intrinsic_adam.exp_avg["decoder.last.bias"]

    whole = gradient(None, 0)
    assert torch.equal(gradient(1000, 0), whole)
    some = torch.stack([gradient(3, turn) for turn in range(30)])
    assert some.std(0).max() > 0.05 * whole.abs().max(), "the draws differ"
    assert (some.mean(0) - whole).norm() < 0.25 * whole.norm()


def cut_batch() -> Batch:
    """Some of its episodes were cut off, some ended by themselves."""
    batch = make_batch()
    truncated_TB = batch.start_TB[1:].clone()
    first, *rest = truncated_TB.nonzero().tolist()
    assert rest, "more than one episode ends"
    truncated_TB[tuple(first)] = False
    return batch._replace(truncated_TB=truncated_TB)


def test_an_episode_that_goes_on_after_its_cut_is_worth_there_what_was_expected() -> None:
    nets, batch = networks("no-int"), cut_batch()
    assert batch.truncated_TB is not None
    state, method = init(nets), find_method("no-int")
    go_on = paper_config(bootstrap_on_truncation=True)
    with torch.no_grad():
        previous_reward_TB = torch.cat([batch.previous_reward_B.unsqueeze(0), batch.reward_TB])
        previous_action_TB = torch.cat([batch.previous_action_B.unsqueeze(0), batch.action_TB])
        inputs = (batch.observation_TBO, batch.start_TB, previous_action_TB, previous_reward_TB, batch.core_state)
        value_TB = nets.policy(*inputs).value_TB[:-1]
    expected = batch._replace(reward_TB=torch.where(batch.truncated_TB, value_TB, batch.reward_TB), truncated_TB=None)
    after, _ = update(nets, state, batch, method, go_on)
    torch.testing.assert_close(
        flat(after.policy), flat(update(nets, state, expected, method, paper_config())[0].policy)
    )
    # What is paid at the cut is not looked at, and without the setting nothing of this happens.
    other = batch._replace(reward_TB=batch.reward_TB + 7 * batch.truncated_TB)
    assert torch.equal(flat(update(nets, state, other, method, go_on)[0].policy), flat(after.policy))
    plain = update(nets, state, batch, method, paper_config())[0]
    assert torch.equal(
        flat(plain.policy), flat(update(nets, state, batch._replace(truncated_TB=None), method, go_on)[0].policy)
    )
    assert not torch.allclose(flat(plain.policy), flat(after.policy))


def test_a_scale_is_that_of_all_rewards() -> None:
    nets, batch = networks(), make_batch()
    state, method = init(nets), find_method("leco")
    scaled, _ = update(nets, state, batch, method, paper_config(reward_scale=4.0, alpha=0.25))
    larger = batch._replace(reward_TB=4 * batch.reward_TB)
    expected, _ = update(nets, state, larger, method, paper_config(alpha=1.0))
    torch.testing.assert_close(flat(scaled.policy), flat(expected.policy))
    torch.testing.assert_close(flat(scaled.intrinsic), flat(expected.intrinsic))
    assert not torch.allclose(flat(scaled.policy), flat(update(nets, state, batch, method, paper_config())[0].policy))


def test_counts_that_are_missing_are_named() -> None:
    nets = networks()
    with pytest.raises(ValueError, match="'leco' needs counts, and this batch has none"):
        update(nets, init(nets), make_batch()._replace(count_TB=None), find_method("leco"), paper_config())
