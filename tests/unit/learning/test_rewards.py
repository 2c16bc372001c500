"""The reward that the policy learns from, against one step of one unroll at a time."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from leco.algo.dedup import distinct
from leco.learning.intrinsic_pass import IntrinsicOutput
from leco.learning.rewards import (
    MEAN_DECAY,
    BonusMoments,
    Rewards,
    compute_rewards,
    explained_variance,
    running_moments,
    running_trust,
)
from leco.learning.state import init
from leco.learning.update import update
from leco.methods.novelty import NoveltyInput, compute_novelty
from leco.methods.table import find_method
from support.training_case import A, B, T, make_batch, networks, paper_config

if TYPE_CHECKING:
    from leco.config.training import TrainingConfig

BATCH = make_batch(3)
SETTINGS = paper_config(alpha=0.7, lambda_=0.25, reward_scale=3.0)


def heads(seed: int = 0) -> IntrinsicOutput:
    generator = torch.Generator().manual_seed(seed)
    scores_TBA = torch.randn(T, B, A, dtype=torch.float64, generator=generator)
    return IntrinsicOutput(torch.zeros(T + 1, B, dtype=torch.float64), scores_TBA)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def r_ep(settings: TrainingConfig, method: str = "leco") -> Tensor:
    """As `compute_novelty` pays a count."""
    unique = distinct(BATCH.observation_TBO.flatten(0, 1))
    given = NoveltyInput(None, {}, BATCH, unique, BATCH.behaviour_logits_TBA, settings)
    return compute_novelty(given, find_method(method)).r_ep_TB


def computed(
    settings: TrainingConfig,
    said: IntrinsicOutput | None,
    *,
    method: str = "leco",
    mean: float = 0.0,
    deviation: float = 1.0,
    trust: float = 1.0,
) -> Rewards:
    return compute_rewards(
        BATCH,
        said,
        find_method(method),
        settings,
        r_ep_TB=r_ep(settings, method),
        moments=BonusMoments(number(mean), number(mean**2 + deviation**2)),
        trust=number(trust),
    )


def naive_r_ta(scores_TBA: Tensor, t: int, b: int) -> float:
    if BATCH.start_TB[t, b]:
        return 0.0
    previous = int(BATCH.action_TB[t - 1, b] if t else BATCH.previous_action_B[b])
    return math.tanh(scores_TBA[t, b, previous].item())


def test_the_case_has_what_the_tests_look_at() -> None:
    counts = BATCH.count_TB
    assert counts is not None
    scores_TBA = heads().scores_TBA
    gains = torch.tensor([[naive_r_ta(scores_TBA, t, b) > 0 for b in range(B)] for t in range(T)])
    assert (gains & (counts > 1)).any()
    assert (gains & (counts == 1)).any()
    assert BATCH.start_TB[:-1].any()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"center_bonus": True},
        {"penalty_on_revisits": True},
        {"episodic_bonus": "first-visit"},
        {"earned_trust": True},
        {"center_bonus": True, "penalty_on_revisits": True, "episodic_bonus": "first-visit", "earned_trust": True},
    ],
    ids=lambda changes: "+".join(changes) or "as published",
)
def test_rewards_equal_the_naive_reference(changes: dict[str, Any]) -> None:
    """Step by step: r = 3 (r_e + 0.7 (0.75 r_ep + 0.25 r_ta)), with what each setting makes of r_ep and of r_ta."""
    settings, mean, trust = dataclasses.replace(SETTINGS, **changes), 0.4, 0.125
    said = heads()
    rewards = computed(settings, said, mean=mean, trust=trust)
    counts = BATCH.count_TB
    assert counts is not None
    for t in range(T):
        for b in range(B):
            count = int(counts[t, b])
            paid = float(count == 1) if settings.episodic_bonus == "first-visit" else 1 / math.sqrt(count)
            if settings.center_bonus:
                paid -= mean
            r_ta = naive_r_ta(said.scores_TBA, t, b)
            if settings.penalty_on_revisits and count > 1:
                r_ta = min(r_ta, 0.0)
            if settings.earned_trust:
                r_ta *= trust
            expected = BATCH.reward_TB[t, b].item() + 0.7 * (0.75 * paid + 0.25 * r_ta)
            assert rewards.reward_TB[t, b].item() == pytest.approx(3 * expected, rel=1e-12)
            assert rewards.r_e_TB[t, b].item() == pytest.approx(3 * BATCH.reward_TB[t, b].item(), rel=1e-12)


def test_a_bonus_less_its_mean_pays_nothing_on_average_and_everything_by_its_difference() -> None:
    """The mean over the batch of the bonus is taken away: what is left has none, and differs by as much."""
    settings = dataclasses.replace(SETTINGS, lambda_=0.0, center_bonus=True)
    plain = computed(dataclasses.replace(settings, center_bonus=False), None)
    mean = r_ep(settings).mean().item()
    centred = computed(settings, None, mean=mean)
    torch.testing.assert_close(plain.reward_TB - centred.reward_TB, torch.full((T, B), 3 * 0.7 * mean).double())
    assert centred.stats["r_i"].item() == pytest.approx(0, abs=1e-12)


def test_a_revisit_is_never_gained_from_and_what_is_new_is_paid_as_before() -> None:
    counts, said = BATCH.count_TB, heads()
    assert counts is not None
    settings = dataclasses.replace(SETTINGS, lambda_=1.0, alpha=1.0, reward_scale=1.0)
    free = computed(settings, said).reward_TB - BATCH.reward_TB
    guarded = computed(dataclasses.replace(settings, penalty_on_revisits=True), said).reward_TB - BATCH.reward_TB
    assert (guarded[counts > 1] <= 1e-15).all()
    assert torch.equal(guarded[counts == 1], free[counts == 1])
    assert free[counts > 1].max() > 0.1


def test_where_nothing_is_counted_nothing_is_a_revisit() -> None:
    """LIRPG has no counts: its modulator is left alone."""
    settings, said = dataclasses.replace(SETTINGS, penalty_on_revisits=True), heads()
    row, nothing_TB = find_method("lirpg"), torch.zeros(T, B, dtype=torch.float64)
    batch = BATCH._replace(count_TB=None)
    found = [
        compute_rewards(
            batch,
            said,
            row,
            each,
            r_ep_TB=nothing_TB,
            moments=BonusMoments(number(0.0), number(1.0)),
            trust=number(1.0),
        ).reward_TB
        for each in (settings, SETTINGS)
    ]
    assert torch.equal(*found)


def test_the_modulator_is_trusted_as_far_as_it_has_earned_it() -> None:
    settings, said = dataclasses.replace(SETTINGS, earned_trust=True), heads()
    untrusted = computed(settings, said, trust=0.0)
    torch.testing.assert_close(untrusted.reward_TB, computed(settings, None).reward_TB)
    assert untrusted.stats["r_ta"] == 0
    assert torch.equal(computed(settings, said, trust=1.0).reward_TB, computed(SETTINGS, said).reward_TB)


def test_rewards_are_differentiable_with_respect_to_the_modulator_alone() -> None:
    settings = dataclasses.replace(
        SETTINGS, center_bonus=True, penalty_on_revisits=True, episodic_bonus="first-visit", earned_trust=True
    )
    counts, said = BATCH.count_TB, heads()
    assert counts is not None
    scores_TBA = said.scores_TBA.requires_grad_()

    def reward(scores: Tensor) -> Tensor:
        return computed(settings, said._replace(scores_TBA=scores), mean=0.3, trust=0.5).reward_TB

    assert torch.autograd.gradcheck(reward, [scores_TBA])
    (gradient_TBA,) = torch.autograd.grad(reward(scores_TBA).sum(), scores_TBA)
    silent_TB = BATCH.start_TB[:-1] | (
        (counts > 1) & torch.tensor([[naive_r_ta(scores_TBA, t, b) > 0 for b in range(B)] for t in range(T)])
    )
    assert torch.equal(gradient_TBA.any(-1), ~silent_TB)
    assert not computed(settings, said, mean=0.3, trust=0.5).r_e_TB.requires_grad


@pytest.mark.parametrize(("method", "share"), [("vq-only", 0.0), ("lirpg", 1.0), ("leco", 0.25)])
def test_the_share_of_the_modulator_is_the_methods_where_it_has_one(method: str, share: float) -> None:
    said = heads() if method != "vq-only" else None
    rewards = computed(SETTINGS, said, method=method)
    r_ta = rewards.stats.get("r_ta", number(0.0))
    expected = (1 - share) * r_ep(SETTINGS, method).mean() + share * r_ta
    torch.testing.assert_close(rewards.stats["r_i"], expected)


def test_what_is_plotted_is_not_scaled() -> None:
    stats = computed(SETTINGS, heads(), mean=0.4).stats
    assert stats["r_e"].item() == pytest.approx(BATCH.reward_TB.mean().item())
    assert stats.keys() == {"r_e", "r_ta", "r_i"}
    assert computed(SETTINGS, None, method="vq-only").stats.keys() == {"r_e", "r_i"}


@pytest.mark.parametrize("method", ["exact", "objects", "dsc", "vq-only", "leco"])
def test_a_first_visit_is_paid_once_by_every_method_that_counts(method: str) -> None:
    counts = BATCH.count_TB
    assert counts is not None
    paid = r_ep(paper_config(episodic_bonus="first-visit"), method)
    assert paid.dtype == torch.float64
    assert paid.tolist() == (counts == 1).double().tolist()
    torch.testing.assert_close(r_ep(paper_config(), method), 1 / counts.double().sqrt())


def test_running_moments_by_hand() -> None:
    """The first batch's own, and then a twentieth of each."""
    assert MEAN_DECAY == 0.95
    first = running_moments(BonusMoments(number(123.0), number(9.0)), torch.tensor([[0.0, 3.0]]).double(), 0)
    assert (first.mean.item(), first.square.item(), first.deviation.item()) == (1.5, 4.5, 1.5)
    second = running_moments(first, torch.tensor([[1.0, 1.0]]).double(), 1)
    assert second.mean.item() == pytest.approx(0.95 * 1.5 + 0.05 * 1.0, rel=1e-12)
    assert second.square.item() == pytest.approx(0.95 * 4.5 + 0.05 * 1.0, rel=1e-12)


def test_running_moments_are_constants_and_find_the_moments() -> None:
    r_ep_TB = torch.full((3, 2), 0.25, dtype=torch.float64, requires_grad=True)
    moments = BonusMoments(number(1.0), number(2.0))
    for updates in range(1, 200):
        moments = running_moments(moments, r_ep_TB, updates)
        assert not moments.mean.requires_grad
        assert not moments.square.requires_grad
    assert moments.mean.item() == pytest.approx(0.25 + 0.75 * 0.95**199)
    assert moments.deviation.item() == pytest.approx(0.01, rel=1e-2), "where nothing varies, noise is not made large"


def test_a_normalized_bonus_is_paid_in_its_deviations() -> None:
    settings = dataclasses.replace(SETTINGS, center_bonus=True, normalize_bonus=True)
    lambda_, alpha, scale = settings.lambda_, settings.alpha, settings.reward_scale
    found = computed(settings, None, method="leco", mean=0.3, deviation=2.0)
    r_i_TB = (1 - lambda_) * (r_ep(settings, "leco") - 0.3) / 2.0
    torch.testing.assert_close(found.reward_TB, found.r_e_TB + scale * alpha * r_i_TB)
    plain = computed(dataclasses.replace(settings, normalize_bonus=False), None, method="leco", mean=0.3, deviation=2.0)
    torch.testing.assert_close(plain.reward_TB - plain.r_e_TB, 2.0 * (found.reward_TB - found.r_e_TB))


def test_explained_variance_by_hand_and_at_its_limits() -> None:
    target = torch.tensor([[1.0, 3.0], [5.0, 7.0]], dtype=torch.float64)
    assert explained_variance(target, target) == 1
    assert explained_variance(target + 9, target) == 1, "an offset is no variance"
    assert explained_variance(torch.zeros(2, 2).double(), target) == 0
    assert explained_variance(-target, target) == pytest.approx(1 - 4)
    assert explained_variance(target / 2, target) == pytest.approx(1 - 0.25)
    assert explained_variance(target, torch.ones(2, 2).double()) == 0, "there is nothing to explain"
    assert not explained_variance(target.requires_grad_(), target).requires_grad


def test_trust_is_the_running_mean_of_what_is_explained_from_0_to_1() -> None:
    target = torch.tensor([[1.0, 3.0], [5.0, 7.0]], dtype=torch.float64)
    assert running_trust(number(0.0), target, target).item() == pytest.approx(0.05)
    assert running_trust(number(0.5), target / 2, target).item() == pytest.approx(0.95 * 0.5 + 0.05 * 0.75)
    assert running_trust(number(0.5), -target, target).item() == pytest.approx(0.95 * 0.5), "never below 0"
    assert running_trust(number(0.0), target, torch.zeros(2, 2).double()).item() == 0


def test_means_and_trust_are_kept_from_one_update_to_the_next() -> None:
    """As the formulas say, and what they are taken from is what the batch before left."""
    nets = networks("leco", "exact")
    state, method, settings = init(nets), find_method("leco", "exact"), dataclasses.replace(SETTINGS, center_bonus=True)
    assert (state.r_ep_mean.item(), state.trust.item()) == (0, 0)
    first, stats = update(nets, state, BATCH, method, settings)
    assert first.r_ep_mean.item() == pytest.approx(stats["r_ep"])
    assert stats["r_i"] == pytest.approx(0.25 * stats["r_ta"]), "r_ep less its own mean"
    counts = BATCH.count_TB
    assert counts is not None
    second, more = update(nets, first, BATCH._replace(count_TB=4 * counts), method, settings)
    assert more["r_ep"] == pytest.approx(stats["r_ep"] / 2)
    mean = 0.95 * stats["r_ep"] + 0.05 * more["r_ep"]
    assert second.r_ep_mean.item() == pytest.approx(mean)
    assert more["r_i"] == pytest.approx(0.75 * (more["r_ep"] - mean) + 0.25 * more["r_ta"])
    assert second.trust.item() == more["trust"]
    assert 0 <= first.trust.item() <= 0.05
