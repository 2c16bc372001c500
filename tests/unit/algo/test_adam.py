"""Adam as a function is torch's Adam, and its derivative is its derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leco.algo.adam import AdamState, adam, adam_jacobian_diag, clip, clip_vjp, init_adam


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_it_takes_the_steps_of_torch() -> None:
    parameters = {"a": normal(3, 4, seed=1), "b": normal(5, seed=2)}
    theirs = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    optimiser = torch.optim.Adam(theirs.values(), lr=0.01, betas=(0.9, 0.99), eps=1e-6)
    state = init_adam(parameters)
    for step in range(5):
        gradients = {name: normal(*p.shape, seed=10 * step + len(name)) for name, p in parameters.items()}
        for name, p in theirs.items():
            p.grad = gradients[name]
        optimiser.step()
        parameters, state = adam(parameters, gradients, state, learning_rate=0.01, betas=(0.9, 0.99), eps=1e-6)
        for name, p in theirs.items():
            torch.testing.assert_close(parameters[name], p.detach(), rtol=1e-12, atol=1e-14)
    assert state.steps == 5


def test_nothing_that_was_given_is_changed() -> None:
    parameters, gradients = {"a": normal(4, seed=1)}, {"a": normal(4, seed=2)}
    state = AdamState({"a": normal(4, seed=3)}, {"a": normal(4, seed=4).square()}, steps=2)
    given = [t.clone() for t in (parameters["a"], gradients["a"], state.mean["a"], state.square["a"])]
    adam(parameters, gradients, state, learning_rate=0.1, betas=(0.9, 0.99), eps=1e-6)
    for now, before in zip((parameters["a"], gradients["a"], state.mean["a"], state.square["a"]), given, strict=True):
        assert torch.equal(now, before)


def test_the_sensitivity_equals_differentiation_through_the_step() -> None:
    parameters, g = normal(6, seed=1), normal(6, seed=2).requires_grad_()
    before = AdamState({"p": normal(6, seed=3)}, {"p": normal(6, seed=4).square()}, steps=7)
    mean = (0.9 * before.mean["p"] + 0.1 * g) / (1 - 0.9**8)
    root = ((0.99 * before.square["p"] + 0.01 * g * g) / (1 - 0.99**8)).sqrt()
    moved = parameters - 0.1 * mean / (root + 1e-6)
    [expected] = torch.autograd.grad(moved.sum(), g)
    _, after = adam({"p": parameters}, {"p": g.detach()}, before, learning_rate=0.1, betas=(0.9, 0.99), eps=1e-6)
    found = adam_jacobian_diag({"p": g.detach()}, after, learning_rate=0.1, betas=(0.9, 0.99), eps=1e-6)["p"]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=0)


def test_the_first_step_by_hand() -> None:
    """Without eps it is lr * sign(g), which does not move with g; where nothing ever was, it moves with 1 / eps."""
    parameters, gradients = {"p": torch.ones(2).double()}, {"p": torch.tensor([2.0, 0.0]).double()}
    moved, after = adam(parameters, gradients, init_adam(parameters), learning_rate=0.1, betas=(0.9, 0.99), eps=1e-9)
    assert moved["p"].tolist() == pytest.approx([0.9, 1.0])
    found = adam_jacobian_diag(gradients, after, learning_rate=0.1, betas=(0.9, 0.99), eps=1e-9)["p"]
    assert found[0].item() == pytest.approx(0.0, abs=1e-9)
    assert found[1].item() == pytest.approx(-0.1 / 1e-9)


def named(*tensors: Tensor) -> dict[str, Tensor]:
    return {f"p{i}": tensor for i, tensor in enumerate(tensors)}


def test_clipping_by_hand() -> None:
    gradients = named(torch.tensor([3.0, 0.0], dtype=torch.float64), torch.tensor([[4.0]], dtype=torch.float64))
    clipped = clip(gradients, 1.0)
    assert clipped.norm.item() == 5
    assert clipped.scale.item() == pytest.approx(0.2)
    torch.testing.assert_close(clipped.gradients, named(*(g / 5 for g in gradients.values())))
    for limit in (5.0, 6.0, None):
        within = clip(gradients, limit)
        assert within.scale.item() == pytest.approx(1)
        torch.testing.assert_close(within.gradients, gradients)
    zero = named(torch.zeros(3))
    assert torch.equal(clip(zero, 1.0).gradients["p0"], zero["p0"])


@pytest.mark.parametrize("limit", [None, 0.7, 100.0])
def test_the_transposed_jacobian_of_clipping_is_that_of_automatic_differentiation(limit: float | None) -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(3, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)]
    along = [torch.randn_like(g) for g in gradients]

    def clipped(*g: Tensor) -> tuple[Tensor, ...]:
        norm = torch.stack([each.square().sum() for each in g]).sum().sqrt()
        return tuple(each if limit is None or norm.item() <= limit else each * (limit / norm) for each in g)

    own = [g.requires_grad_() for g in gradients]
    pulled = torch.autograd.grad(clipped(*own), own, along)
    gradients = [g.detach() for g in own]
    torch.testing.assert_close(tuple(clip(named(*gradients), limit).gradients.values()), clipped(*gradients))
    found = clip_vjp(named(*along), named(*gradients), clip(named(*gradients), limit))
    torch.testing.assert_close(tuple(found.values()), pulled, rtol=1e-10, atol=1e-10)
