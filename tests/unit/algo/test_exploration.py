"""Other measures of what is new, against naive references, by hand, and at their limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from leco.algo.exploration import (
    Moments,
    add_moments,
    categorical_kl,
    first_visit,
    noveld_bonus,
    ride_bonus,
    running_discounted_sum,
)
from leco.algo.rewards import soft_asymmetric
from support.reference import curiosity_numpy

RANDOM = np.random.default_rng(0)


def double(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def test_only_a_first_visit_is_one() -> None:
    count = torch.tensor([[1, 2], [3, 1]], dtype=torch.uint32)
    assert first_visit(count).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    torch.testing.assert_close(first_visit(count), count.float().rsqrt().floor(), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"count has type torch.float32, expected an integer type"):
        first_visit(torch.ones(2))


def test_novelty_gain_by_hand() -> None:
    now, after = double(2.0, 2.0, 4.0, 0.0), double(3.0, 3.0, 1.0, 0.5)
    gain = noveld_bonus(after, now, torch.tensor([[1, 2, 1, 1]]))
    assert gain.tolist() == [[2.0, 0.0, 0.0, 0.5]]  # a gain; not the first visit; a loss; from what is known


def test_novelty_gain_equals_the_naive_reference() -> None:
    after, before = RANDOM.uniform(0, 2, (2, 9, 4))
    count = RANDOM.integers(1, 3, (9, 4))
    for share in (0.0, 0.5, 1.0):
        ours = noveld_bonus(torch.from_numpy(after), torch.from_numpy(before), torch.from_numpy(count), share)
        np.testing.assert_allclose(
            ours.numpy(), curiosity_numpy.noveld_bonus(after, before, count, share), rtol=1e-12, atol=0
        )


def test_impact_by_hand() -> None:
    now = torch.zeros(1, 2, 2, dtype=torch.float64)
    after = torch.tensor([[[3.0, 4.0], [3.0, 4.0]]], dtype=torch.float64)
    assert ride_bonus(after, now, torch.tensor([[1, 25]])).tolist() == [[5.0, 1.0]]
    assert ride_bonus(now, now, torch.tensor([[1, 25]])).tolist() == [[0.0, 0.0]], "nothing changed"


def test_impact_equals_the_naive_reference_and_shrinks_with_the_count() -> None:
    after, before = RANDOM.normal(size=(2, 6, 3, 5))
    count = RANDOM.integers(1, 9, (6, 3))
    ours = ride_bonus(*map(torch.from_numpy, (after, before, count)))
    np.testing.assert_allclose(ours.numpy(), curiosity_numpy.ride_bonus(after, before, count), rtol=1e-12)
    more = ride_bonus(*map(torch.from_numpy, (after, before, 4 * count)))
    torch.testing.assert_close(more, ours / 2)


def test_divergence_equals_the_naive_reference_and_is_zero_only_for_the_same() -> None:
    logits, other = RANDOM.normal(size=(2, 5, 3, 4))
    ours = categorical_kl(torch.from_numpy(logits), torch.from_numpy(other))
    np.testing.assert_allclose(ours.numpy(), curiosity_numpy.categorical_kl(logits, other), rtol=1e-10)
    assert (ours > 0).all()
    same = categorical_kl(
        torch.from_numpy(logits), torch.from_numpy(logits + 3.0)
    )  # logits mean the same up to a constant
    torch.testing.assert_close(same, torch.zeros_like(same), rtol=0, atol=1e-12)


def test_divergence_is_differentiable() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, other = torch.randn(2, 3, 2, 4, generator=generator, dtype=torch.float64).requires_grad_()
    assert gradcheck(categorical_kl, (logits, other))


def test_divergence_leads_the_other_to_the_first() -> None:
    logits = torch.tensor([[[2.0, 0.0, -1.0]]], dtype=torch.float64)
    other = torch.zeros(1, 1, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(categorical_kl(logits, other).sum(), other)
    expected = torch.softmax(other, -1) - torch.softmax(logits, -1)
    torch.testing.assert_close(gradient, expected.detach())


def test_discounted_so_far_equals_the_naive_reference() -> None:
    reward = RANDOM.normal(size=(12, 3))
    for gamma in (0.0, 0.5, 0.99, 1.0):
        ours = running_discounted_sum(torch.from_numpy(reward), gamma)
        np.testing.assert_allclose(ours.numpy(), curiosity_numpy.running_discounted_sum(reward, gamma), rtol=1e-10)


def test_moments_of_pieces_are_those_of_the_whole() -> None:
    x = torch.from_numpy(RANDOM.normal(3.0, 2.0, (50, 2, 3)))
    weight = torch.from_numpy(RANDOM.integers(0, 4, 50))
    moments = Moments(torch.zeros(2, 3).double(), torch.zeros(2, 3).double(), torch.tensor(0.0).double())
    for begin in range(0, 50, 7):
        moments = add_moments(moments, x[begin : begin + 7], weight[begin : begin + 7])
    whole = np.repeat(x.numpy(), weight.numpy(), axis=0)
    np.testing.assert_allclose(moments.mean.numpy(), whole.mean(0), rtol=1e-10)
    np.testing.assert_allclose(moments.variance.numpy(), whole.var(0), rtol=1e-10)
    assert moments.rows.item() == len(whole)


def test_moments_without_weights_count_each_row_once() -> None:
    x = torch.from_numpy(RANDOM.normal(size=(9, 2)))
    empty = Moments(torch.zeros(2).double(), torch.zeros(2).double(), torch.tensor(0.0).double())
    once, plain = add_moments(empty, x, torch.ones(9)), add_moments(empty, x)
    torch.testing.assert_close(once, plain)


def test_soft_asymmetric_by_hand() -> None:
    shaped = soft_asymmetric(double(0.0, 1e-6, 5.0, -5.0, 1000.0, -1000.0))
    tanh = float(np.tanh(1.0))
    torch.testing.assert_close(shaped, double(0.0, 1e-6, 5 * tanh, -1.5 * tanh, 5.0, -1.5))
    assert gradcheck(soft_asymmetric, (double(0.3, -0.7, 4.0).requires_grad_(),))


def test_wrong_shapes_are_refused() -> None:
    two, three = torch.zeros(2, 3), torch.zeros(3, 2)
    count = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="expected tensors of one shape"):
        noveld_bonus(two, three, count)
    with pytest.raises(ValueError, match=r"count_TB has shape \(2, 3\), expected \(2,\)"):
        ride_bonus(two, two, count)
    with pytest.raises(ValueError, match="expected tensors of one shape"):
        categorical_kl(two, three)
    with pytest.raises(ValueError, match=r"reward_TB has shape \(3,\), expected \[T, B\]"):
        running_discounted_sum(torch.zeros(3), 0.9)
    with pytest.raises(ValueError, match=r"x_N has shape \(2, 3\), expected rows of shape \(2,\)"):
        add_moments(Moments(torch.zeros(2), torch.ones(2), torch.tensor(1.0)), two)
