"""Weighted batch normalisation, against torch's own on a batch in which every sample is repeated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leco.models.weighted_norm import Normed

WEIGHTS = [[1, 1, 1, 1, 1], [3, 1, 7, 2, 1], [0, 4, 1, 0, 2], [0, 0, 5, 0, 0]]


def close(actual: Tensor, expected: Tensor) -> None:
    """To 1e-10 of the largest element."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10 * float(expected.detach().abs().max()))


def alone(channels: int) -> Normed:
    """A norm after a convolution that changes nothing."""
    ours = Normed(nn.Conv2d(channels, channels, 1, bias=False), relu=False)
    nn.init.dirac_(ours.convolution.weight)
    return ours


def norms(channels: int = 3) -> tuple[Normed, nn.BatchNorm2d]:
    """Ours and torch's, in the same state, which is not the initial one."""
    ours, theirs = alone(channels).double(), nn.BatchNorm2d(channels).double()
    for name in ("weight", "bias", "running_mean", "running_var"):
        nn.init.uniform_(theirs.state_dict()[name], 0.5, 1.5)
    ours.norm.load_state_dict(theirs.state_dict())
    return ours, theirs


def same_state(ours: Normed, theirs: Normed | nn.BatchNorm2d) -> None:
    theirs = theirs.norm if isinstance(theirs, Normed) else theirs
    for name, value in theirs.state_dict().items():
        close(ours.norm.state_dict()[name].double(), value.double())


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("size", [(4, 2), (1, 3)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_equals_batch_norm_of_the_expanded_batch(
    weights: list[int], size: tuple[int, int], layout: torch.memory_format
) -> None:
    ours, theirs = norms()
    weight_N = torch.tensor(weights)
    index_M = torch.arange(5).repeat_interleave(weight_N)
    for _ in range(3):  # the running statistics go on from where they are
        x = (torch.randn(5, 3, *size, dtype=torch.float64) * 2 + 5).to(memory_format=layout).requires_grad_()
        upstream = torch.randn(len(index_M), 3, *size, dtype=torch.float64)
        expanded = theirs(x[index_M])
        expected = torch.autograd.grad(expanded, (x, theirs.weight, theirs.bias), upstream)
        y = ours(x, weight_N.float())
        close(y[index_M], expanded)
        summed = torch.zeros_like(y).index_add(0, index_M, upstream)
        for actual, wanted in zip(
            torch.autograd.grad(y, (x, ours.norm.weight, ours.norm.bias), summed), expected, strict=True
        ):
            close(actual, wanted)
        same_state(ours, theirs)


def test_by_hand() -> None:
    """Values 0 (three times) and 4: mean 1, variance (3 * 1 + 9) / 4 = 3, unbiased 12 / 3 = 4."""
    ours = alone(1).double()
    norm = ours.norm
    x = torch.tensor([0.0, 4.0], dtype=torch.float64).reshape(2, 1, 1, 1)
    y = ours(x, torch.tensor([3.0, 1.0]))
    expected = torch.tensor([-1.0, 3.0], dtype=torch.float64) / (3 + 1e-5) ** 0.5
    torch.testing.assert_close(y.flatten(), expected)
    assert norm.state_dict()["running_mean"].item() == pytest.approx(0.1)
    assert norm.state_dict()["running_var"].item() == pytest.approx(0.9 + 0.1 * 4)


def test_without_weights_and_with_weights_of_one_it_is_batch_norm() -> None:
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64)
    for weight_N in (None, torch.ones(6)):
        ours, theirs = norms()
        close(ours(x, weight_N), theirs(x))
        same_state(ours, theirs)


def test_only_the_ratios_of_weights_matter_to_the_values() -> None:
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    weight_N = torch.tensor([1.0, 2.0, 3.0, 4.0])
    ours, _ = norms()
    close(ours(x, weight_N), ours(x, weight_N * 5))


def test_a_sample_of_weight_zero_leaves_no_trace() -> None:
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    weight_N = torch.tensor([1.0, 0.0, 3.0, 0.0])
    (ours, _), spoilt = norms(), x.clone()
    other = alone(3).double()
    other.load_state_dict(ours.state_dict())
    spoilt[1::2] = 1e3
    close(ours(x, weight_N)[::2], other(spoilt, weight_N)[::2])
    same_state(ours, other)


def test_evaluation_uses_the_running_statistics_and_no_weights() -> None:
    ours, theirs = norms()
    ours.eval(), theirs.eval()
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    close(ours(x, torch.tensor([9.0, 0.0, 1.0, 1.0])), theirs(x))
    close(ours(x[:1]), theirs(x)[:1])
    same_state(ours, theirs)


def test_the_gradient_is_that_of_finite_differences() -> None:
    ours, _ = norms(2)
    x = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    weight_N = torch.tensor([2.0, 0.0, 3.0])
    assert torch.autograd.gradcheck(lambda x, *_: ours(x, weight_N), (x, ours.norm.weight, ours.norm.bias))


def test_a_channel_far_from_zero_keeps_its_digits_in_float32() -> None:
    x = 1000 + torch.randn(64, 1, 12, 12)
    y = alone(1)(x, torch.ones(64))
    assert y.mean().abs() < 1e-3
    assert abs(y.std().item() - 1) < 1e-3


def test_wrong_shapes_are_refused() -> None:
    ours, _ = norms()
    with pytest.raises(ValueError, match=r"samples must have shape \[N, 3, H, W\], not \[2, 4, 5, 5\]"):
        ours(torch.zeros(2, 4, 5, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"weights must have shape \[2\], one a sample, not \[2, 1\]"):
        ours(torch.zeros(2, 3, 5, 5, dtype=torch.float64), torch.ones(2, 1))
