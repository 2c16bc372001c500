"""What is new, by other measures than the episodic count: NovelD, RIDE, RND and AGAC.

T    actions in an unroll
B    unrolls in a batch
A    number of actions of the task
F    features of an observation
N    rows of anything, of which row n stands for weight_N[n] equal ones
...  the axes of one row
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from leco.algo.losses import require_same_shape
from leco.algo.rewards import episodic_bonus


def first_visit(count: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """floor(1 / sqrt(N)): 1 for a code that is new in its episode, 0 for all others. Any shape.

    count  how often the code was seen in its episode, this visit included
    """
    if count.is_floating_point():
        raise ValueError(f"count has type {count.dtype}, expected an integer type")
    return (count == 1).to(dtype)


def noveld_bonus(next_TB: Tensor, now_TB: Tensor, count_TB: Tensor, share: float = 0.5) -> Tensor:
    """NovelD: max(n(s') - share n(s), 0) where N(s') = 1, and 0 elsewhere: only crossing into the unknown pays, once.

    next_TB, now_TB  n, how new the observation after and before the action is
    count_TB         N(s') in the episode
    """
    require_same_shape(next_TB=next_TB, now_TB=now_TB, count_TB=count_TB)
    return (next_TB - share * now_TB).clamp(min=0) * first_visit(count_TB, next_TB.dtype)


def ride_bonus(next_TBF: Tensor, now_TBF: Tensor, count_TB: Tensor) -> Tensor:
    """RIDE: ||phi(s') - phi(s)|| / sqrt(N(s')): how much an action changes what matters, and less each time. [T, B].

    next_TBF, now_TBF  phi, the features of the observation after and before the action
    """
    require_same_shape(next_TBF=next_TBF, now_TBF=now_TBF)
    if count_TB.shape != next_TBF.shape[:-1]:
        raise ValueError(f"count_TB has shape {tuple(count_TB.shape)}, expected {tuple(next_TBF.shape[:-1])}")
    moved_TB: Tensor = (next_TBF - now_TBF).norm(dim=-1)
    return moved_TB * episodic_bonus(count_TB, next_TBF.dtype)


def categorical_kl(logits_TBA: Tensor, other_TBA: Tensor) -> Tensor:
    """KL(pi || other) of each step, in nats: [T, B]."""
    require_same_shape(logits_TBA=logits_TBA, other_TBA=other_TBA)
    log_pi_TBA = log_softmax(logits_TBA, dim=-1)
    return (log_pi_TBA.exp() * (log_pi_TBA - log_softmax(other_TBA, dim=-1))).sum(dim=-1)


def running_discounted_sum(reward_TB: Tensor, gamma: float) -> Tensor:
    """R[t] = gamma R[t-1] + r[t] within the unroll, over ends of episodes too: what RND divides its rewards by the spread of."""
    if reward_TB.ndim != 2:
        raise ValueError(f"reward_TB has shape {tuple(reward_TB.shape)}, expected [T, B]")
    age_TT = torch.arange(len(reward_TB), device=reward_TB.device)
    age_TT = age_TT.unsqueeze(1) - age_TT
    weight_TT = torch.where(age_TT >= 0, gamma ** age_TT.clamp(min=0).to(reward_TB.dtype), 0.0)
    return weight_TT @ reward_TB


class Moments(NamedTuple):
    """Mean and variance of rows [...], and of how many rows they are."""

    mean: Tensor
    variance: Tensor
    rows: Tensor


def add_moments(before: Moments, x_N: Tensor, weight_N: Tensor | None = None) -> Moments:
    """The moments of all rows so far, from those before and some more rows (Chan, Golub and LeVeque, 1979).

    before    `rows` may be a fraction, for a beginning that soon weighs nothing
    x_N       [N, ...]
    weight_N  how many equal rows each stands for; once, if not given
    """
    if x_N.shape[1:] != before.mean.shape:
        raise ValueError(f"x_N has shape {tuple(x_N.shape)}, expected rows of shape {tuple(before.mean.shape)}")
    weight_N = x_N.new_ones(len(x_N)) if weight_N is None else weight_N.to(x_N.dtype)
    rows = weight_N.sum()
    share_N = (weight_N / rows).view(-1, *(1 for _ in before.mean.shape))
    mean = (share_N * x_N).sum(0)
    variance = (share_N * (x_N - mean).square()).sum(0)
    total = before.rows + rows
    new = (rows / total).to(x_N.dtype)
    step = mean - before.mean
    spread = before.variance * (1 - new) + variance * new + step.square() * new * (1 - new)
    return Moments(before.mean + step * new, spread, total)
