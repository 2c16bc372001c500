"""The reward that the policy learns from, r = r_e + alpha r_i (eq. 1), and its parts.

T  actions in an unroll        B  unrolls in a batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from leco.algo.rewards import (
    intrinsic_reward,
    modulation,
    penalty_on_revisits,
    soft_asymmetric,
    total_reward,
)
from leco.learning.policy_pass import previous_action

if TYPE_CHECKING:
    from torch import Tensor

    from leco.config.training import TrainingConfig
    from leco.learning.intrinsic_pass import IntrinsicOutput
    from leco.learning.state import Batch
    from leco.methods.table import Method

MEAN_DECAY = 0.95  # of the running mean of r_ep, a batch


class BonusMoments(NamedTuple):
    """The mean of r_ep, and of its square."""

    mean: Tensor
    square: Tensor

    @property
    def deviation(self) -> Tensor:
        """Never less than 0.01: where nothing is ever new, noise is not made large."""
        return (self.square - self.mean.square()).clamp(min=1e-4).sqrt()


class Rewards(NamedTuple):
    """What an update is rewarded with.

    r_e_TB     the task's own, shaped and scaled
    reward_TB  r_e + alpha r_i, scaled; differentiable with respect to the modulator
    stats      what to plot, unscaled
    """

    r_e_TB: Tensor
    reward_TB: Tensor
    stats: dict[str, Tensor]


def compute_rewards(
    batch: Batch,
    heads: IntrinsicOutput | None,
    method: Method,
    config: TrainingConfig,
    *,
    r_ep_TB: Tensor,
    moments: BonusMoments,
    trust: Tensor,
) -> Rewards:
    """r_ta (eq. 5), r_i and r (eq. 1).

    heads      what the intrinsic module says; None without a modulator
    r_ep_TB    what is new
    moments    its running moments, for `center_bonus` and `normalize_bonus`
    trust      in the modulator, if `earned_trust`
    """
    r_e_TB = soft_asymmetric(batch.reward_TB) if config.reward_shaping == "soft-asymmetric" else batch.reward_TB
    stats = {"r_e": batch.reward_TB.mean()}
    r_ta_TB = torch.zeros_like(r_ep_TB)
    if heads is not None:
        r_ta_TB = modulated(heads.scores_TBA, batch, config, trust)
        stats["r_ta"] = r_ta_TB.mean()
    lambda_ = config.lambda_ if method.lambda_ is None else method.lambda_
    r_i_TB = intrinsic_reward(paid(r_ep_TB, moments, config), r_ta_TB, lambda_)
    stats["r_i"] = r_i_TB.mean()
    reward_TB = config.reward_scale * total_reward(r_e_TB, r_i_TB, config.alpha)
    return Rewards(config.reward_scale * r_e_TB, reward_TB, stats)


def modulated(scores_TBA: Tensor, batch: Batch, config: TrainingConfig, trust: Tensor) -> Tensor:
    """r_ta of the scores f_ta(z_e[t], a[t]), as far as it counts."""
    r_ta_TB = modulation(scores_TBA, previous_action(batch)[:-1])
    if config.penalty_on_revisits and batch.count_TB is not None:
        r_ta_TB = penalty_on_revisits(r_ta_TB, batch.count_TB)
    return trust * r_ta_TB if config.earned_trust else r_ta_TB


def paid(r_ep: Tensor, moments: BonusMoments, config: TrainingConfig) -> Tensor:
    """What is paid of r_ep: all of it, or what it is beyond its running mean, perhaps in running deviations. Any shape."""
    r_ep = r_ep - moments.mean if config.center_bonus else r_ep
    return r_ep / moments.deviation if config.normalize_bonus else r_ep


def running_moments(before: BonusMoments, r_ep_TB: Tensor, updates: int) -> BonusMoments:
    """Of r_ep over batches; `updates` is how many there were before."""
    now = BonusMoments(r_ep_TB.detach().mean(), r_ep_TB.detach().square().mean())
    if updates == 0:
        return now
    return BonusMoments(*(torch.lerp(new, old, MEAN_DECAY) for new, old in zip(now, before, strict=True)))


def explained_variance(value_TB: Tensor, target_TB: Tensor) -> Tensor:
    """The share of the targets' variance that values explain; 0 if there is none to explain."""
    spread = target_TB.detach().var()
    return torch.where(spread > 0, 1 - (target_TB - value_TB).detach().var() / spread, torch.zeros_like(spread))


def running_trust(before: Tensor, value_TB: Tensor, target_TB: Tensor) -> Tensor:
    """The trust in the modulator after a batch: the running mean of what V^e explains of it, from 0 to 1."""
    return torch.lerp(explained_variance(value_TB, target_TB).clamp(0.0, 1.0), before, MEAN_DECAY)
