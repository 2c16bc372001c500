"""The losses of the policy and of the autoencoder, each a mean. Coefficients are the caller's, but for the value's 0.5.

T    actions in an unroll
B    unrolls in a batch
A    number of actions of the task
N    observations; where a batch was reduced to distinct ones, row n stands for weight_N[n] equal ones
...  the axes of one observation
"""

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from leco.algo.ranks import all_sum, world_size


def log_prob(logits_TBA: Tensor, action_TB: Tensor) -> Tensor:
    """log pi(a[t]) of the actions that were taken. Returns [T, B].

    logits_TBA  before softmax
    action_TB   any integer type, 0 to A-1
    """
    if logits_TBA.ndim != 3 or action_TB.shape != logits_TBA.shape[:2]:
        raise ValueError(
            f"logits_TBA has shape {tuple(logits_TBA.shape)} and action_TB {tuple(action_TB.shape)}, "
            "expected [T, B, A] and [T, B]"
        )
    return log_softmax(logits_TBA, dim=-1).gather(-1, action_TB.long().unsqueeze(-1)).squeeze(-1)


def entropy(logits_TBA: Tensor) -> Tensor:
    """The entropy of the policy in nats, mean over T x B: 0 if it is certain, log A if it is uniform."""
    if logits_TBA.ndim != 3:
        raise ValueError(f"logits_TBA has shape {tuple(logits_TBA.shape)}, expected [T, B, A]")
    log_pi_TBA = log_softmax(logits_TBA, dim=-1)
    return -(log_pi_TBA.exp() * log_pi_TBA).sum(dim=-1).mean()


def policy_gradient_loss(*, log_prob_TB: Tensor, advantage_TB: Tensor, rho_TB: Tensor) -> Tensor:
    """The loss whose descent climbs eq. 3 (or 4): -mean(rho * log pi(a) * advantage) over T x B.

    log_prob_TB     of the actions taken, under the policy that learns
    advantage_TB    without the importance weight, as `vtrace` gives it; a constant
    rho_TB          the clipped importance weight; a constant
    """
    require_same_shape(log_prob_TB=log_prob_TB, advantage_TB=advantage_TB, rho_TB=rho_TB)
    return -((rho_TB * advantage_TB).detach() * log_prob_TB).mean()


def clipped_surrogate_loss(
    *, log_prob_TB: Tensor, behaviour_log_prob_TB: Tensor, advantage_TB: Tensor, clip_range: float
) -> Tensor:
    """PPO's objective (Schulman et al. 2017, eq. 7): -mean(min(r A, clip(r) A)), r = pi / mu.

    On policy and before the first step r is 1, and the gradient is that of `policy_gradient_loss`.

    log_prob_TB            of the actions taken, under the policy that learns
    behaviour_log_prob_TB  the same under mu, the policy that acted; a constant
    advantage_TB           a constant
    clip_range             an action teaches nothing more once r has left 1 -+ this in the direction that its advantage asks for
    """
    require_same_shape(log_prob_TB=log_prob_TB, behaviour_log_prob_TB=behaviour_log_prob_TB, advantage_TB=advantage_TB)
    ratio_TB, advantage_TB = (log_prob_TB - behaviour_log_prob_TB.detach()).exp(), advantage_TB.detach()
    clipped_TB = ratio_TB.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(ratio_TB * advantage_TB, clipped_TB * advantage_TB).mean()


def surrogate_weight(
    *, log_prob_TB: Tensor, behaviour_log_prob_TB: Tensor, advantage_TB: Tensor, clip_range: float
) -> Tensor:
    """The factor of -A grad log pi / n in the gradient of `clipped_surrogate_loss`: r, and 0 where the clip is active."""
    ratio_TB = (log_prob_TB - behaviour_log_prob_TB).detach().exp()
    beyond_TB = torch.where(advantage_TB > 0, ratio_TB > 1 + clip_range, ratio_TB < 1 - clip_range)
    return ratio_TB.masked_fill(beyond_TB, 0.0)


def standardize(x: Tensor) -> Tensor:
    """(x - mean) / deviation over all elements; both are constants, so the result is linear in x. Zeros if all are equal."""
    # In float64, where the mean of equal numbers is that number: a rounding error over a deviation of 0 would be of size 1.
    mean, deviation = x.detach().double().mean(), x.detach().std(correction=0)
    return (x - mean) / (deviation + 1e-8)


def value_loss(*, value_TB: Tensor, target_TB: Tensor) -> Tensor:
    """Half the mean squared error of the value over T x B; the half is the loss's coefficient, so add it as it is.

    target_TB  what the value should have been, as `vtrace` gives it; a constant
    """
    require_same_shape(value_TB=value_TB, target_TB=target_TB)
    return 0.5 * (value_TB - target_TB.detach()).square().mean()


def reconstruction_loss(
    output_N: Tensor, target_N: Tensor, weight_N: Tensor | None = None, total: Tensor | None = None
) -> Tensor:
    """Mean squared error of the decoder over all elements: -log p(s|z_q) of eq. 2, up to scale and a constant.

    output_N, target_N  [N, ...]
    weight_N, total     how many equal observations each row stands for; as of `weighted_mean`
    """
    require_same_shape(output_N=output_N, target_N=target_N)
    return weighted_mean((output_N - target_N).square(), weight_N, total)


def weighted_mean(x_N: Tensor, weight_N: Tensor | None = None, total: Tensor | None = None) -> Tensor:
    """The mean over all elements of x_N [N, ...], as if row n were there weight_N[n] times.

    weight_N  any type, at least 0 and not all 0; a row of weight 0 is padding. None counts each row once
    total     where these are some rows of several: `weight_total` of all, so that what is returned for each part adds up

    Of several ranks (`leco.algo.ranks`) each has some of the rows, and the mean of what they return is that over all rows.
    """
    if x_N.ndim == 0:
        raise ValueError("x_N is a single number, expected [N, ...]")
    if weight_N is None:
        return x_N.mean()
    if weight_N.shape != x_N.shape[:1]:
        raise ValueError(f"weight_N has shape {tuple(weight_N.shape)}, expected one weight for each of {len(x_N)} rows")
    weight_N = weight_N.to(x_N.dtype)
    mean_N = x_N.reshape(len(x_N), -1).mean(dim=1)
    return (weight_N * mean_N).sum() / (weight_total(weight_N) if total is None else total)


def weight_total(weight_N: Tensor) -> Tensor:
    """What a weighted sum is divided by; of several ranks, their mean, so that it is the mean of what they return that counts."""
    return all_sum(weight_N.sum()) / world_size()


def require_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors of different shapes, which torch would broadcast to a wrong result without a word."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"expected tensors of one shape, got {shapes}")
