"""The modulator's gradient through the policy's update, without double back-propagation.

The policy's parameters theta move to theta' by one step of its optimiser along g, the gradient of the inner loss, in which
advantages (and value targets) are linear in the rewards, and so in what the modulator adds to them (eq. 3). The outer loss
judges theta' by the task's own advantages (eq. 4). By the chain rule

    dL_out/dreward = sum_t  w_A[t] dA[t]/dreward  +  w_v[t] dv[t]/dreward
    w_A[t] = -1/n rho[t] < grad log pi(a[t]), u >,      w_v[t] = -1/n < grad V[t], u >,      u = D grad L_out(theta')

where D, the diagonal of dtheta'/dg, has a closed form because Adam and SGD act element by element. All inner products at once
are one Jacobian-vector product of the policy along u: one forward pass with dual numbers, no graph of the second order.

Legend: T time, B batch, A actions. Parameters are named tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.autograd import forward_ad

from leco.algo.losses import log_prob, policy_gradient_loss
from leco.algo.ranks import all_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    Parameters = Mapping[str, Tensor]
    # Of the policy with these parameters: logits_TBA and value_TB.
    Forward = Callable[[Parameters], tuple[Tensor, Tensor]]


def outer_loss(logits_TBA: Tensor, log_pi_TB: Tensor, action_TB: Tensor, advantage_TB: Tensor) -> Tensor:
    """Eq. 4: -mean( min(1, pi'/pi) log pi'(a) A_e ), with the ratio, an importance weight, held fixed.

    logits_TBA    of pi', the policy after the step
    log_pi_TB     log pi(a), before the step
    action_TB     the actions taken
    advantage_TB  A_e, the task's own V-trace advantages
    """
    log_pi_new_TB = log_prob(logits_TBA, action_TB)
    ratio_TB = (log_pi_new_TB.detach() - log_pi_TB).exp().clamp(max=1.0)
    return policy_gradient_loss(log_prob_TB=log_pi_new_TB, advantage_TB=advantage_TB, rho_TB=ratio_TB)


class MetaWeights(NamedTuple):
    """How the outer loss changes with each advantage and each value target of the inner loss."""

    advantage_TB: Tensor
    target_TB: Tensor


def meta_gradient_weights(
    forward: Forward,
    before: Parameters,
    after: Parameters,
    jacobian_diag: Parameters,
    *,
    jvp_forward: Forward | None = None,
    clipping: Callable[[dict[str, Tensor]], Parameters] | None = None,
    action_TB: Tensor,
    log_pi_TB: Tensor,
    rho_TB: Tensor,
    advantage_e_TB: Tensor,
) -> MetaWeights:
    """The weights w_A and w_v of the head of this file.

    forward         the policy on this batch
    clipping        J^T of what was done to g before the optimiser's step, if anything was; see `clip_vjp`
    jvp_forward        the same, for the call whose tangents alone are used; forward itself, if not given
    before, after   theta and theta'
    jacobian_diag   D, for example from `adam_jacobian_diag`; -learning rate for SGD
    action_TB       the actions taken
    log_pi_TB       log pi(a) at theta
    rho_TB          the clipped importance weights of the inner loss
    advantage_e_TB  the task's own V-trace advantages

    Returns the weights, without a graph. The modulator's gradient is that of sum(w_A A + w_v v), by ordinary
    back-propagation; without the second term if the inner loss has no value loss.
    """
    names = list(before)
    theta_new = {name: after[name].detach().requires_grad_() for name in names}
    loss = outer_loss(forward(theta_new)[0], log_pi_TB.detach(), action_TB, advantage_e_TB)
    gradients = torch.autograd.grad(loss, [theta_new[name] for name in names], allow_unused=True)
    found = all_mean({name: g for name, g in zip(names, gradients, strict=True) if g is not None})
    direction = {
        name: jacobian_diag[name] * found[name] if name in found else torch.zeros_like(theta_new[name])
        for name in names
    }
    if clipping is not None:
        direction = dict(clipping(direction))
    with torch.no_grad(), forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(p.detach(), direction[name]) for name, p in before.items()}
        logits_TBA, value_TB = (jvp_forward or forward)(duals)
        slope_TB = tangent(log_prob(logits_TBA, action_TB))
        value_slope_TB = tangent(value_TB)
    return MetaWeights(-rho_TB.detach() * slope_TB / rho_TB.numel(), -value_slope_TB / rho_TB.numel())


def primal(dual: Tensor) -> Tensor:
    """Of a dual number; itself where it is none."""
    found: Tensor = forward_ad.unpack_dual(dual).primal
    return found


def tangent(dual: Tensor) -> Tensor:
    """Of a dual number; zeros where there is none."""
    found = forward_ad.unpack_dual(dual).tangent
    return torch.zeros_like(dual) if found is None else found
