"""The intrinsic reward of LECO: an episodic count bonus, modulated additively.

T    actions in an unroll
B    unrolls in a batch
A    number of actions of the task
"""

import torch
from torch import Tensor

from leco.algo.losses import require_same_shape


def episodic_bonus(count: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """r_ep = 1 / sqrt(N), part of eq. 1: 1 for a code that is new in its episode. Any shape, in (0, 1].

    count  how often the code of the observation that the action led to was seen in its episode, this visit
           included, so at least 1; uint32 or any other integer type
    dtype  of the result
    """
    if count.is_floating_point():
        raise ValueError(f"count has type {count.dtype}, expected an integer type")
    return count.to(dtype).rsqrt()


def soft_asymmetric(reward: Tensor) -> Tensor:
    """5 tanh(r / 5), times 0.3 where it is negative: large rewards count for less, and losses for less than gains. Any shape."""
    squeezed = 5 * torch.tanh(reward / 5)
    return torch.where(reward < 0, 0.3 * squeezed, squeezed)


def modulation(scores_TBA: Tensor, previous_action_TB: Tensor) -> Tensor:
    """r_ta[t] = tanh(onehot(a[t-1]) . scores[t]), eq. 5, in (-1, 1). Returns [T, B].

    scores_TBA          f_ta(z_e[t], a[t])
    previous_action_TB  any integer type; a[t-1], or -1 at the first step of an episode, where the one-hot vector is
                        zero and so is the result
    """
    if scores_TBA.ndim != 3 or previous_action_TB.shape != scores_TBA.shape[:2]:
        raise ValueError(
            f"scores_TBA has shape {tuple(scores_TBA.shape)} and previous_action_TB {tuple(previous_action_TB.shape)}, "
            "expected [T, B, A] and [T, B]"
        )
    start_TB = previous_action_TB == -1
    index_TB = previous_action_TB.long().masked_fill(start_TB, 0)
    score_TB = scores_TBA.gather(-1, index_TB.unsqueeze(-1)).squeeze(-1)
    return score_TB.masked_fill(start_TB, 0).tanh()


def penalty_on_revisits(r_ta: Tensor, count: Tensor) -> Tensor:
    """r_ta where the code is new in its episode (N = 1), and at most 0 elsewhere. Both of one shape.

    A first visit is paid once, but tanh is worth the same at every step: a modulator that has seen few successes can learn to pay
    for standing still, and the policy then stands still for ever. With this, a step into nothing new never gains.
    """
    require_same_shape(r_ta=r_ta, count=count)
    return torch.where(count == 1, r_ta, r_ta.clamp(max=0.0))


def intrinsic_reward(r_ep: Tensor, r_ta: Tensor, lambda_: float) -> Tensor:
    """r_i = (1 - lambda) * r_ep + lambda * r_ta, eq. 1. Both of one shape; lambda_ from 0 (count only) to 1."""
    require_same_shape(r_ep=r_ep, r_ta=r_ta)
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_ is {lambda_}, expected 0 to 1")
    return (1 - lambda_) * r_ep + lambda_ * r_ta


def total_reward(r_e: Tensor, r_i: Tensor, alpha: float) -> Tensor:
    """r = r_e + alpha * r_i, the reward that the policy learns from (in eq. 3). Both of one shape."""
    require_same_shape(r_e=r_e, r_i=r_i)
    return r_e + alpha * r_i
