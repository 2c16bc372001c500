"""V-trace: value targets and advantages from actions that a slightly older policy chose (IMPALA, Espeholt et al. 2018).

T  actions in an unroll
B  unrolls in a batch
"""

from typing import NamedTuple

import torch
from torch import Tensor

from leco.algo.losses import require_same_shape


class VTrace(NamedTuple):
    """What V-trace gives for each action.

    target_TB     v[t], which the value learns
    advantage_TB  r[t] + discount[t] * v[t+1] - V[t], *not* multiplied by the importance weight
    rho_TB        the clipped importance weight, which the policy's loss multiplies with the advantage
    """

    target_TB: Tensor
    advantage_TB: Tensor
    rho_TB: Tensor


def vtrace(
    *,
    log_rho_TB: Tensor,
    reward_TB: Tensor,
    discount_TB: Tensor,
    value_TB: Tensor,
    bootstrap_B: Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    decay: float = 1.0,
) -> VTrace:
    """V-trace targets, eq. 1 of the IMPALA paper, in the recursive form of its remark 1:

        v[t] = V[t] + delta[t] + discount[t] * decay * c[t] * (v[t+1] - V[t+1])
        delta[t] = rho[t] * (r[t] + discount[t] * V[t+1] - V[t])
        rho = min(rho_bar, pi / mu),  c = min(c_bar, pi / mu)

    log_rho_TB   log pi(a) - log mu(a): the policy that learns against the one that acted
    reward_TB    the reward of each action
    discount_TB  gamma, and 0 where the action ended an episode
    value_TB     V of the observation that each action was chosen from
    bootstrap_B  V of the observation after the last action
    decay        how much of what is seen beyond the next step counts, from 0 to 1 (that paper's remark 2): with less, targets and
                 advantages vary less and lean more on V. The advantage looks ahead by a mixture of v[t+1] and V[t+1] then, so
                 that with equal policies it is the generalised advantage estimate (Schulman et al. 2016) for this decay

    Targets and advantages are linear in the rewards and differentiable with respect to them, since a learned intrinsic
    reward is trained through them. All other inputs are constants here.
    """
    require_same_shape(log_rho_TB=log_rho_TB, reward_TB=reward_TB, discount_TB=discount_TB, value_TB=value_TB)
    if reward_TB.ndim != 2 or len(reward_TB) == 0:
        raise ValueError(f"reward_TB has shape {tuple(reward_TB.shape)}, expected [T, B] with T at least 1")
    if bootstrap_B.shape != reward_TB.shape[1:]:
        raise ValueError(
            f"bootstrap_B has shape {tuple(bootstrap_B.shape)}, expected {tuple(reward_TB.shape[1:])}, "
            "the second axis of reward_TB"
        )
    ratio_TB = log_rho_TB.detach().exp()
    rho_TB, c_TB = ratio_TB.clamp(max=rho_bar), ratio_TB.clamp(max=c_bar)
    discount_TB, value_TB, bootstrap_1B = discount_TB.detach(), value_TB.detach(), bootstrap_B.detach().unsqueeze(0)

    next_value_TB = torch.cat([value_TB[1:], bootstrap_1B])
    delta_TB = rho_TB * (reward_TB + discount_TB * next_value_TB - value_TB)
    target_TB = value_TB + _sum_ahead(delta_TB, discount_TB * c_TB * decay)
    next_target_TB = torch.cat([value_TB[1:] + decay * (target_TB[1:] - value_TB[1:]), bootstrap_1B])
    return VTrace(target_TB, reward_TB + discount_TB * next_target_TB - value_TB, rho_TB)


def _sum_ahead(x_TB: Tensor, decay_TB: Tensor) -> Tensor:
    """The solution of y[t] = x[t] + decay[t] * y[t+1] with y[T] = 0, in about log2(T) steps instead of T.

    Each step doubles how far ahead y[t] has summed: it adds what y[t + reach] has summed, decayed by the product of the
    `reach` decays in between. Each step is a few operations on whole tensors, so plain automatic differentiation
    (reverse, forward or twice) costs as little as the sum itself, and nothing has to be derived by hand. A loop over
    T = 96 steps takes three times as long, forward and backward.
    """
    y_TB, reach = x_TB, 1
    decay_SB = decay_TB[:-1]  # S = T - reach: from t to t + reach, where that is inside the unroll
    while reach < len(x_TB):
        y_TB = torch.cat([torch.addcmul(y_TB[:-reach], decay_SB, y_TB[reach:]), y_TB[-reach:]])
        decay_SB = decay_SB[:-reach] * decay_SB[reach:]
        reach *= 2
    return y_TB
