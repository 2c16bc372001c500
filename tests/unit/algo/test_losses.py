import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from leco.algo.losses import (
    clipped_surrogate_loss,
    entropy,
    log_prob,
    policy_gradient_loss,
    reconstruction_loss,
    require_same_shape,
    standardize,
    surrogate_weight,
    value_loss,
    weighted_mean,
)
from support.reference import losses_numpy


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1.5, shape))


def double(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


LOGITS_TBA = normal(6, 3, 4)
ACTION_TB = torch.from_numpy(np.random.default_rng(1).integers(0, 4, (6, 3), np.int32))


def test_log_prob_equals_the_naive_reference() -> None:
    expected = losses_numpy.log_prob(LOGITS_TBA.numpy(), ACTION_TB.numpy())
    np.testing.assert_allclose(log_prob(LOGITS_TBA, ACTION_TB).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(log_prob(LOGITS_TBA.float(), ACTION_TB).numpy(), expected, rtol=1e-5)


def test_log_prob_by_hand() -> None:
    logits_TBA = torch.tensor([[[0.0, math.log(3)]], [[5.0, 5.0]]], dtype=torch.float64)
    result = log_prob(logits_TBA, torch.tensor([[1], [0]]))
    torch.testing.assert_close(result, torch.tensor([[0.75], [0.5]], dtype=torch.float64).log())


def test_log_prob_stays_finite_for_large_logits() -> None:
    result = log_prob(torch.tensor([[[1000.0, 0.0]]]), torch.tensor([[1]]))
    assert result.item() == -1000


def test_entropy_equals_the_naive_reference() -> None:
    assert entropy(LOGITS_TBA).item() == pytest.approx(losses_numpy.entropy(LOGITS_TBA.numpy()), rel=1e-12)


def test_entropy_by_hand() -> None:
    certain, even, quarter = [99.0, 0.0], [2.0, 2.0], [0.0, math.log(3)]
    logits_TBA = torch.tensor([[certain, even, quarter]], dtype=torch.float64)
    expected = (0 + math.log(2) + (0.25 * math.log(4) + 0.75 * math.log(4 / 3))) / 3
    assert entropy(logits_TBA).item() == pytest.approx(expected, rel=1e-12)


def test_the_policy_gradient_equals_the_naive_reference() -> None:
    log_prob_TB, advantage_TB, rho_TB = normal(3, 6, 4).unbind()
    loss = policy_gradient_loss(log_prob_TB=log_prob_TB, advantage_TB=advantage_TB, rho_TB=rho_TB)
    expected = losses_numpy.policy_gradient_loss(log_prob_TB.numpy(), advantage_TB.numpy(), rho_TB.numpy())
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_the_policy_gradient_by_hand() -> None:
    log_prob_TB = double(-1.0, -2.0).requires_grad_()
    loss = policy_gradient_loss(log_prob_TB=log_prob_TB, advantage_TB=double(3.0, -5.0), rho_TB=double(1.0, 0.5))
    (gradient_TB,) = torch.autograd.grad(loss, log_prob_TB)
    assert loss.item() == -(-3.0 + 5.0) / 2
    assert gradient_TB.tolist() == [[-1.5, 1.25]]


def test_descending_the_policy_gradient_makes_a_good_action_more_likely_and_a_bad_one_less() -> None:
    logits_TBA = torch.zeros(2, 1, 3, dtype=torch.float64, requires_grad=True)
    action_TB, ones_TB = torch.tensor([[0], [0]]), torch.ones(2, 1, dtype=torch.float64)
    advantage_TB = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    loss = policy_gradient_loss(log_prob_TB=log_prob(logits_TBA, action_TB), advantage_TB=advantage_TB, rho_TB=ones_TB)
    (gradient_TBA,) = torch.autograd.grad(loss, logits_TBA)
    change_TB = log_prob(logits_TBA - gradient_TBA, action_TB) - log_prob(logits_TBA, action_TB)
    assert change_TB[0] > 0 > change_TB[1]


def surrogate(ratio: Tensor, advantage: Tensor, clip_range: float = 0.25) -> Tensor:
    """The loss of actions that have become `ratio` times as likely."""
    return clipped_surrogate_loss(
        log_prob_TB=ratio.log(),
        behaviour_log_prob_TB=torch.zeros_like(ratio),
        advantage_TB=advantage,
        clip_range=clip_range,
    )


@pytest.mark.parametrize("clip_range", [0.1, 0.5, 3.0])
def test_the_clipped_surrogate_equals_the_naive_reference(clip_range: float) -> None:
    log_prob_TB, log_mu_TB, advantage_TB = normal(3, 9, 5, seed=3).unbind()
    loss = clipped_surrogate_loss(
        log_prob_TB=log_prob_TB,
        behaviour_log_prob_TB=log_mu_TB,
        advantage_TB=advantage_TB,
        clip_range=clip_range,
    )
    log_pi, log_mu, advantage = (each.numpy() for each in (log_prob_TB, log_mu_TB, advantage_TB))
    expected = losses_numpy.clipped_surrogate_loss(log_pi, log_mu, advantage, clip_range)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.2, 2.0, 2.4, 2.0),
        (1.5, 2.0, 2.5, 0.0),  # more likely by enough
        (0.5, 2.0, 1.0, 2.0),  # a good action that has become less likely comes back
        (1.5, -2.0, -3.0, -2.0),  # and a bad one that has become more likely goes
        (0.8, -2.0, -1.6, -2.0),
        (0.5, -2.0, -1.5, 0.0),  # less likely by enough
    ],
)
def test_the_clipped_surrogate_by_hand(ratio: float, advantage: float, objective: float, slope: float) -> None:
    """Within 1 -+ 0.25 of one action out of two; the other is as it was, and of no advantage."""
    ratio_TB = double(ratio, 1.0).requires_grad_()
    loss = surrogate(ratio_TB, double(advantage, 0.0))
    assert loss.item() == pytest.approx(-objective / 2, rel=1e-12)
    (gradient_TB,) = torch.autograd.grad(loss, ratio_TB)
    assert gradient_TB.flatten().tolist() == pytest.approx([-slope / 2, 0.0], rel=1e-12)


def test_where_nothing_has_moved_the_clipped_surrogate_is_the_policy_gradient() -> None:
    """PPO's first step; its value is the mean advantage, and a mean advantage is all that it has of a value."""
    logits_TBA = LOGITS_TBA.clone().requires_grad_()
    log_prob_TB = log_prob(logits_TBA, ACTION_TB)
    advantage_TB = normal(6, 3, seed=7)
    given: dict[str, Any] = {"log_prob_TB": log_prob_TB, "advantage_TB": advantage_TB}
    clipped = clipped_surrogate_loss(**given, behaviour_log_prob_TB=log_prob_TB, clip_range=0.2)
    plain = policy_gradient_loss(**given, rho_TB=torch.ones_like(advantage_TB))
    gradients = [torch.autograd.grad(loss, logits_TBA, retain_graph=True)[0] for loss in (clipped, plain)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)
    assert clipped.item() == pytest.approx(-advantage_TB.mean().item(), rel=1e-12)


def test_the_weight_of_the_surrogate_is_what_its_gradient_has() -> None:
    """grad loss = -1/n weight A grad log pi, for ratios within and beyond the range, of good and of bad actions."""
    log_prob_TB, log_mu_TB, advantage_TB = normal(3, 9, 5, seed=3).unbind()
    log_prob_TB.requires_grad_()
    given: dict[str, Any] = {"behaviour_log_prob_TB": log_mu_TB, "advantage_TB": advantage_TB, "clip_range": 0.2}
    (gradient_TB,) = torch.autograd.grad(clipped_surrogate_loss(log_prob_TB=log_prob_TB, **given), log_prob_TB)
    weight_TB = surrogate_weight(log_prob_TB=log_prob_TB, **given)
    torch.testing.assert_close(gradient_TB, -weight_TB * advantage_TB / weight_TB.numel(), rtol=1e-12, atol=1e-15)
    assert 0 < int((weight_TB == 0).sum()) < weight_TB.numel()
    assert not weight_TB.requires_grad


def test_a_wide_range_clips_nothing_and_any_other_never_promises_more() -> None:
    ratio_TB, advantage_TB = normal(6, 4).exp(), normal(6, 4, seed=1)
    plain = -(ratio_TB * advantage_TB).mean()
    torch.testing.assert_close(surrogate(ratio_TB, advantage_TB, clip_range=1e9), plain, rtol=1e-12, atol=0)
    losses = [surrogate(ratio_TB, advantage_TB, clip_range=clip_range) for clip_range in (1.0, 0.5, 0.1)]
    assert plain < losses[0] < losses[1] < losses[2]


def test_each_action_is_clipped_by_its_own_ratio_alone() -> None:
    """Whatever the others are, of the same unroll or of another."""
    ratio_TB, advantage_TB = normal(5, 3).exp().requires_grad_(), normal(5, 3, seed=1)
    (together_TB,) = torch.autograd.grad(surrogate(ratio_TB, advantage_TB), ratio_TB)
    for at in np.ndindex(5, 3):
        alone = ratio_TB.detach()[at].reshape(1, 1).requires_grad_()
        (expected,) = torch.autograd.grad(surrogate(alone, advantage_TB[at].reshape(1, 1)), alone)
        torch.testing.assert_close(together_TB[at], expected[0, 0] / 15, rtol=1e-12, atol=0)
    assert 0 < int((together_TB == 0).sum()) < 15


def test_of_the_clipped_surrogate_only_the_policy_is_no_constant() -> None:
    a, b, c = (normal(4, 2, seed=seed).requires_grad_() for seed in range(3))
    loss = clipped_surrogate_loss(log_prob_TB=a, behaviour_log_prob_TB=b, advantage_TB=c, clip_range=0.2)
    gradients = torch.autograd.grad(loss, [a, b, c], allow_unused=True)
    assert [gradient is None for gradient in gradients] == [False, True, True]


def test_standardized_numbers_equal_the_naive_reference() -> None:
    x_TB = 3 + normal(9, 4)
    result = standardize(x_TB)
    np.testing.assert_allclose(result.numpy(), losses_numpy.standardize(x_TB.numpy()), rtol=1e-7)
    assert result.mean().item() == pytest.approx(0, abs=1e-12)
    assert result.square().mean().item() == pytest.approx(1, rel=1e-7)
    torch.testing.assert_close(standardize(x_TB.float()), result.float(), rtol=1e-5, atol=1e-6)


def test_standardized_numbers_by_hand() -> None:
    result = standardize(torch.tensor([[1.0, 5.0], [3.0, 3.0]], dtype=torch.float64))
    expected = torch.tensor([[-1.0, 1.0], [0.0, 0.0]], dtype=torch.float64) * math.sqrt(2)
    torch.testing.assert_close(result, expected, rtol=1e-7, atol=0)


def test_neither_an_offset_nor_a_unit_changes_what_is_standardized() -> None:
    x_TB = normal(6, 4)
    torch.testing.assert_close(standardize(7 + 100 * x_TB), standardize(x_TB), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(standardize(-x_TB), -standardize(x_TB), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("shape", [(6, 3), (128, 32), (1, 1)])
@pytest.mark.parametrize("number", [0.0, 0.1, -0.7, 5.3, 123.456])
def test_equal_numbers_are_standardized_to_zero_and_no_rounding_is_taken_for_an_advantage(
    number: float, shape: tuple[int, ...]
) -> None:
    assert not standardize(torch.full(shape, number)).any()
    assert standardize(torch.full(shape, number, dtype=torch.float64)).abs().max() < 1e-5


def test_standardized_numbers_are_linear_in_what_was_given() -> None:
    """Mean and deviation are constants, so that a learned reward is differentiated through the unit and nothing else."""
    x_TB = normal(5, 3).requires_grad_()
    upstream_TB = normal(5, 3, seed=1)
    (gradient_TB,) = torch.autograd.grad(standardize(x_TB), x_TB, upstream_TB)
    torch.testing.assert_close(gradient_TB, upstream_TB / x_TB.detach().std(correction=0), rtol=1e-7, atol=0)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x_TB.detach(), upstream_TB)
        found = torch.autograd.forward_ad.unpack_dual(standardize(dual)).tangent
        torch.testing.assert_close(found, gradient_TB, rtol=1e-12, atol=0)


def test_value_loss_equals_the_naive_reference() -> None:
    value_TB, target_TB = normal(2, 6, 4).unbind()
    expected = losses_numpy.value_loss(value_TB.numpy(), target_TB.numpy())
    assert value_loss(value_TB=value_TB, target_TB=target_TB).item() == pytest.approx(expected, rel=1e-12)


def test_value_loss_by_hand() -> None:
    value_TB = double(1.0, 2.0).requires_grad_()
    loss = value_loss(value_TB=value_TB, target_TB=double(3.0, 1.0))
    (gradient_TB,) = torch.autograd.grad(loss, value_TB)
    assert loss.item() == 0.5 * (4 + 1) / 2
    assert gradient_TB.tolist() == [[-1.0, 0.5]]


def test_weights_and_targets_are_constants() -> None:
    a, b, c = (normal(4, 2, seed=seed).requires_grad_() for seed in range(3))
    loss = policy_gradient_loss(log_prob_TB=a, advantage_TB=b, rho_TB=c) + value_loss(value_TB=a, target_TB=b)
    assert [g is None for g in torch.autograd.grad(loss, [a, b, c], allow_unused=True)] == [False, True, True]


def test_the_gradients() -> None:
    logits_TBA, a, b, c = (x.clone().requires_grad_() for x in (LOGITS_TBA, *normal(3, 6, 3, seed=5).unbind()))
    rows_N, other_N = normal(4, 2, 3).requires_grad_(), normal(4, 2, 3, seed=1).requires_grad_()
    weight_N = torch.tensor([3, 0, 1, 2])

    def policy_gradient(log_prob_TB: Tensor) -> Tensor:
        return policy_gradient_loss(log_prob_TB=log_prob_TB, advantage_TB=b, rho_TB=c)

    def value(value_TB: Tensor) -> Tensor:
        return value_loss(value_TB=value_TB, target_TB=b)

    assert gradcheck(lambda logits: log_prob(logits, ACTION_TB), [logits_TBA], check_forward_ad=True)
    assert gradcheck(entropy, [logits_TBA], check_forward_ad=True)
    assert gradcheck(policy_gradient, [a], check_forward_ad=True)
    assert gradcheck(value, [a], check_forward_ad=True)
    assert gradcheck(lambda ratio: surrogate(ratio, b.detach()), [a.exp()], check_forward_ad=True)
    assert gradcheck(lambda x, y: reconstruction_loss(x, y, weight_N), [rows_N, other_N])
    assert gradcheck(reconstruction_loss, [rows_N, other_N])


def test_reconstruction_equals_the_naive_reference_on_the_expanded_batch() -> None:
    output_N, target_N = normal(2, 5, 3, 2, 2).unbind()
    for weight in ([1, 1, 1, 1, 1], [4, 0, 2, 1, 7]):
        expected = losses_numpy.reconstruction_loss(output_N.numpy(), target_N.numpy(), np.array(weight, np.int32))
        assert reconstruction_loss(output_N, target_N, torch.tensor(weight)).item() == pytest.approx(
            expected, rel=1e-12
        )
    plain = losses_numpy.reconstruction_loss(output_N.numpy(), target_N.numpy(), np.ones(5, np.int32))
    assert reconstruction_loss(output_N, target_N).item() == pytest.approx(plain, rel=1e-12)


def test_reconstruction_by_hand() -> None:
    output_N = torch.tensor([[1.0, 2.0], [0.0, 4.0]], dtype=torch.float64)
    target_N = torch.tensor([[0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert reconstruction_loss(output_N, target_N).item() == (1 + 4 + 16) / 4
    assert reconstruction_loss(output_N, target_N, torch.tensor([3, 1])).item() == (3 * (1 + 4) + 16) / 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weighting_distinct_rows_gives_value_and_gradient_of_the_expanded_batch(dtype: torch.dtype) -> None:
    weight_N = torch.tensor([3, 0, 1, 5])
    x_N = normal(4, 2, 3).to(dtype).requires_grad_()
    distinct, expanded = (
        weighted_mean(x_N.square(), weight_N),
        weighted_mean(x_N.repeat_interleave(weight_N, dim=0).square()),
    )
    assert distinct.dtype == dtype
    torch.testing.assert_close(distinct, expanded)
    (one,), (other,) = torch.autograd.grad(distinct, x_N), torch.autograd.grad(expanded, x_N)
    torch.testing.assert_close(one, other)


def test_log_prob_and_entropy_refuse_other_shapes() -> None:
    with pytest.raises(ValueError, match=r"logits_TBA has shape \(4, 2, 3\) and action_TB \(4, 1\), expected"):
        log_prob(torch.zeros(4, 2, 3), torch.zeros(4, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"logits_TBA has shape \(4, 3\) and action_TB \(4,\), expected"):
        log_prob(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"logits_TBA has shape \(4, 3\), expected \[T, B, A\]"):
        entropy(torch.zeros(4, 3))


def test_losses_refuse_what_would_be_broadcast() -> None:
    TB, T1 = torch.zeros(4, 2), torch.zeros(4, 1)
    for wrong in ("log_prob_TB", "advantage_TB", "rho_TB"):
        tensors: dict[str, Any] = dict.fromkeys(["log_prob_TB", "advantage_TB", "rho_TB"], TB) | {wrong: T1}
        with pytest.raises(ValueError, match=rf"expected tensors of one shape, got .*{wrong} \(4, 1\)"):
            policy_gradient_loss(**tensors)
    names = ["log_prob_TB", "behaviour_log_prob_TB", "advantage_TB"]
    for wrong in names:
        tensors = dict.fromkeys(names, TB) | {wrong: T1}
        with pytest.raises(ValueError, match=rf"expected tensors of one shape, got .*{wrong} \(4, 1\)"):
            clipped_surrogate_loss(**tensors, clip_range=0.2)
    with pytest.raises(ValueError, match=r"one shape, got value_TB \(4, 2\), target_TB \(4, 1\)"):
        value_loss(value_TB=TB, target_TB=T1)
    with pytest.raises(ValueError, match=r"one shape, got output_N \(4, 2\), target_N \(4, 1\)"):
        reconstruction_loss(TB, T1)
    require_same_shape(one=TB, other=TB)


@pytest.mark.parametrize("shape", [(3,), (4, 1), ()])
def test_there_is_one_weight_for_each_row(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"weight_N has shape .* expected one weight for each of 4 rows"):
        weighted_mean(torch.zeros(4, 2), torch.ones(shape))
    with pytest.raises(ValueError, match=r"x_N is a single number"):
        weighted_mean(torch.tensor(1.0))
