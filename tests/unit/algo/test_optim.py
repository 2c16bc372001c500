"""Adam as a function is torch's Adam, and its derivative is its derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leco.algo.optim import AdamState, adam, adam_jacobian_diag, adam_preconditioner, clip, clip_vjp, init_adam


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
    given = [t.clone() for t in (parameters["a"], gradients["a"], state.exp_avg["a"], state.exp_avg_sq["a"])]
    adam(parameters, gradients, state, learning_rate=0.1, betas=(0.9, 0.99), eps=1e-6)
    for now, before in zip(
        (parameters["a"], gradients["a"], state.exp_avg["a"], state.exp_avg_sq["a"]), given, strict=True
    ):
        assert torch.equal(now, before)


def test_the_sensitivity_equals_differentiation_through_the_step() -> None:
    parameters, g = normal(6, seed=1), normal(6, seed=2).requires_grad_()
    before = AdamState({"p": normal(6, seed=3)}, {"p": normal(6, seed=4).square()}, steps=7)
    mean = (0.9 * before.exp_avg["p"] + 0.1 * g) / (1 - 0.9**8)
    root = ((0.99 * before.exp_avg_sq["p"] + 0.01 * g * g) / (1 - 0.99**8)).sqrt()
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


def test_many_steps_seen_as_one_by_hand() -> None:
    """v^ is 2 / (1 - 0.5), its root 2: three steps of 0.1 / (2 + 0.5). Where nothing ever was, 0.1 / 0.5."""
    after = AdamState({"p": torch.zeros(2)}, {"p": torch.tensor([2.0, 0.0], dtype=torch.float64)}, steps=1)
    found = adam_preconditioner(after, learning_rate=0.1, betas=(0.9, 0.5), eps=0.5, steps=3)
    assert found["p"].tolist() == pytest.approx([-0.12, -0.6], rel=1e-12)


def moved_by(
    nudge: Tensor, before: AdamState, *, steps: int, rest: int, betas: tuple[float, float]
) -> tuple[Tensor, AdamState]:
    """Where `steps` steps along a gradient lead, all of them nudged, and `rest` more that are not."""
    parameters, gradient = {"p": torch.zeros(6, dtype=torch.float64)}, normal(6, seed=2)
    state = before
    for step in range(steps + rest):
        gradients = {"p": gradient + nudge if step < steps else gradient}
        parameters, state = adam(parameters, gradients, state, learning_rate=0.01, betas=betas, eps=0.1)
    return parameters["p"], state


@pytest.mark.parametrize(
    ("beta1", "steps", "rest", "tolerance"),
    [
        (0.0, 1, 0, 1e-6),
        (0.0, 32, 0, 1e-6),
        (0.9, 32, 400, 1e-6),  # momentum only delays
        (0.9, 2000, 0, 0.9 / 0.1 / 2000 + 1e-6),  # and what it has not given yet is nothing beside so many steps
    ],
)
def test_many_steps_seen_as_one_have_their_effect_to_the_first_order(
    beta1: float, steps: int, rest: int, tolerance: float
) -> None:
    """With a second moment that does not move: it has seen so much that a few more gradients change nothing in it."""
    betas, nudge = (beta1, 1 - 1e-12), 1e-3 * normal(6, seed=5)
    before = AdamState({"p": normal(6, seed=3)}, {"p": normal(6, seed=4).square()}, steps=10**14)
    (ahead, _), (behind, _) = (moved_by(sign * nudge, before, steps=steps, rest=rest, betas=betas) for sign in (1, -1))
    _, after = moved_by(torch.zeros_like(nudge), before, steps=steps, rest=0, betas=betas)
    found = adam_preconditioner(after, learning_rate=0.01, betas=betas, eps=0.1, steps=steps)["p"]
    torch.testing.assert_close((ahead - behind) / 2 / nudge, found, rtol=tolerance, atol=0)


def test_one_step_of_a_gradient_that_leaves_the_second_moment_alone_is_the_derivative_of_the_step() -> None:
    """Without momentum, and where g is 0, which does not move v to the first order."""
    before = AdamState({"p": normal(6, seed=3)}, {"p": normal(6, seed=4).square()}, steps=7)
    gradients = {"p": torch.zeros(6, dtype=torch.float64)}
    _, after = adam(gradients, gradients, before, learning_rate=0.1, betas=(0.0, 0.99), eps=1e-6)
    expected = adam_jacobian_diag(gradients, after, learning_rate=0.1, betas=(0.0, 0.99), eps=1e-6)
    found = adam_preconditioner(after, learning_rate=0.1, betas=(0.0, 0.99), eps=1e-6, steps=1)
    torch.testing.assert_close(found["p"], expected["p"], rtol=1e-12, atol=0)


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
