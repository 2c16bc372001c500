"""Adam as a function: parameters, gradients and moments in, parameters and moments out (Kingma and Ba, 2015)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

Params = Mapping[str, Tensor]


class AdamState(NamedTuple):
    """What Adam remembers.

    Attributes:
        exp_avg: m, the running mean of each gradient.
        exp_avg_sq: v, the running mean of its square.
        steps: How many steps were taken.
    """

    exp_avg: Params
    exp_avg_sq: Params
    steps: int


def init_adam(parameters: Params) -> AdamState:
    """Nothing remembered yet."""
    return AdamState(
        {name: torch.zeros_like(p) for name, p in parameters.items()},
        {name: torch.zeros_like(p) for name, p in parameters.items()},
        steps=0,
    )


@torch.no_grad()
def adam(
    parameters: Params,
    gradients: Params,
    state: AdamState,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
) -> tuple[dict[str, Tensor], AdamState]:
    """One step: theta' = theta - lr m^ / (sqrt(v^) + eps), with m^ and v^ the moments corrected for their bias.

    Returns:
        The parameters after it, and what Adam remembers then. Nothing that was given is changed.
    """
    beta1, beta2 = betas
    steps = state.steps + 1
    correction1, correction2 = 1 - beta1**steps, 1 - beta2**steps
    moved, exp_avg, exp_avg_sq = {}, {}, {}
    for name, parameter in parameters.items():
        g = gradients[name]
        exp_avg[name] = torch.lerp(g, state.exp_avg[name], beta1)
        exp_avg_sq[name] = (beta2 * state.exp_avg_sq[name]).addcmul_(g, g, value=1 - beta2)
        below = (exp_avg_sq[name] / correction2).sqrt_().add_(eps)
        moved[name] = torch.addcdiv(parameter.detach(), exp_avg[name], below, value=-learning_rate / correction1)
    return moved, AdamState(exp_avg, exp_avg_sq, steps)


class Clipped(NamedTuple):
    """Gradients of at most some norm.

    Attributes:
        gradients: As they were, or all scaled by one factor.
        norm: Of all elements together, before.
        scale: That factor; 1 if they were not too large.
    """

    gradients: dict[str, Tensor]
    norm: Tensor
    scale: Tensor


def clip(gradients: Params, max_norm: float | None) -> Clipped:
    """Scales gradients so that the norm of all elements together is at most `max_norm`; None leaves them as they are."""
    norm = torch.nn.utils.get_total_norm(list(gradients.values()))
    scale = torch.ones_like(norm) if max_norm is None else (max_norm / (norm + 1e-12)).clamp(max=1.0)
    if max_norm is None:
        return Clipped(dict(gradients), norm, scale)
    return Clipped({name: g * scale for name, g in gradients.items()}, norm, scale)


def clip_vjp(along: Params, gradients: Params, clipped: Clipped) -> dict[str, Tensor]:
    """J^T u, where J is how the clipped gradients move with the gradients themselves (J is symmetric).

    Where nothing was clipped J is the identity. Otherwise the norm is fixed, and only what is orthogonal to g moves, scaled:
    J = s (1 - g g^T / |g|^2).

    Args:
        along: u.
        gradients: g.
        clipped: What `clip` made of them.
    """
    if clipped.scale >= 1:
        return dict(along)
    share = sum((u * gradients[name]).sum() for name, u in along.items()) / clipped.norm.square()
    return {name: clipped.scale * (u - share * gradients[name]) for name, u in along.items()}


def adam_jacobian_diag(
    gradients: Params, after: AdamState, *, learning_rate: float, betas: tuple[float, float], eps: float
) -> dict[str, Tensor]:
    """dtheta'/dg: how each element of the step's result moves with the same element of its gradient.

    Where a gradient was never other than zero, sqrt(v) has no derivative; it is taken as 0 there, as the step is.

    Args:
        gradients: g of the step.
        after: What Adam remembers after it.
        learning_rate, betas, eps: Of the step.
    """
    beta1, beta2 = betas
    correction1, correction2 = 1 - beta1**after.steps, 1 - beta2**after.steps
    jacobian_diag = {}
    for name, g in gradients.items():
        mean = after.exp_avg[name] / correction1
        root = (after.exp_avg_sq[name] / correction2).sqrt()
        below = root + eps
        root_by_g = torch.where(root > 0, (1 - beta2) / correction2 * g / root, torch.zeros_like(root))
        jacobian_diag[name] = -learning_rate * ((1 - beta1) / correction1 / below - mean * root_by_g / below.square())
    return jacobian_diag


def adam_preconditioner(
    after: AdamState, *, learning_rate: float, betas: tuple[float, float], eps: float, steps: int
) -> dict[str, Tensor]:
    """dtheta'/dg if many small steps along g are seen as one: -steps lr / (sqrt(v^) + eps), with v a constant.

    Momentum only delays: what it keeps back of a gradient in one step it gives in the next ones.

    Args:
        after: What Adam remembers after the last step.
        learning_rate, betas, eps: Of each step.
        steps: How many there were.
    """
    correction2 = 1 - betas[1] ** after.steps
    return {
        name: -steps * learning_rate / ((square / correction2).sqrt() + eps)
        for name, square in after.exp_avg_sq.items()
    }
