"""The numbers of an update, apart from torch, so that a configuration can be read without it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The numbers of an update, with the paper's values. Those without a default have that of the task or of the method.

    gamma       the discount; the task's
    alpha       the weight of the intrinsic reward, r = r_e + alpha r_i; the method's

    lambda_        the share of the modulator: r_i = (1 - lambda) r_ep + lambda r_ta; for methods that do not say it themselves
    policy_learning_rate, intrinsic_learning_rate   of Adam: of the policy, and of hash, modulator and V^e
    policy_betas, intrinsic_betas   how long Adam remembers gradients, and their squares
    eps            what Adam adds to the root of those squares
    entropy_cost   what a nat of the policy's entropy is worth
    vtrace_lambda  how much of what is seen beyond the next step counts in value targets and advantages: 1 is V-trace as
                published, less is the lambda of TD(lambda) and of GAE
    reward_scale  of all rewards. Adam's steps do not grow with the gradient, so values that are small beside a step are never
                learned well; `entropy_cost` is in units of the scaled reward
    bootstrap_on_truncation  whether an episode that its time limit truncates is valued as if it went on (the action at the
                cut teaches nothing), instead of being worth nothing from there on, which a policy that does not know the time
                cannot foresee
    inner_loss  what the modulator is told that the policy descends: only the policy-gradient term, as published, or the
                whole loss, for which the policy's real step serves
    learning_rate_timescale   the policy's learning rate falls as 1 / sqrt(1 + updates / timescale), so that the noise of one
                batch counts for less and less, however long the run is. None for one that stays
    modulator_learning_rate   None for that of the whole intrinsic module. An action's score is a sum over 512 units
                whose weights Adam moves all at once, however rare the reward that moved them was
    novelty_learning_rate   of the networks that only a novelty needs: RND's predictor, RIDE's dynamics, AGAC's adversary;
                the method's
    agac_coef   AGAC's c, what an action that the adversary does not foresee is worth; falls to 0 in the course of the run
    reward_shaping   what the learner makes of the task's rewards before all else; episodes are reported with the task's own.
                soft-asymmetric: 5 tanh(r / 5), times 0.3 where it is negative, as IMPALA on DMLab. The task's
    max_gradient_norm   the policy's gradient is scaled down to this norm where it is larger; None never does
    precision   what the learner's convolutions compute with: auto is bfloat16 where the processor (AVX-512 BF16, AMX) or the GPU
                multiplies it natively, and float32 elsewhere. Parameters, losses and the codes that are counted are float32 in
                either case
    decoder_samples   how many observations of a batch the decoder learns from, drawn by how often each occurs; None for all
    epochs, minibatches   how often a batch is learned from, and in how many parts each time, at most one a sequence: PPO's
                reuse. 1 and 1 is the paper's single pass
    sequence_length   the policy's gradient goes back over so many steps; advantages look ahead over the whole unroll. None, or
                more than it has, for all of it
    clip_range  PPO's clipped surrogate: where pi(a) has moved by this share away from the policy that acted, an action
                teaches nothing more. None for the plain policy gradient, which only a single pass can have
    normalize_advantages   whether the policy learns from advantages less the batch's mean in units of its deviation
    episodic_bonus   what a count is worth: 1 / sqrt(N), as published; 1 for a first visit and 0 for all others; or the
                information in a first visit beyond that of another step, log (1 - p) / p and never below 0, where p is how
                often the run has had such a one lately, summed over all levels of the hash
    center_bonus   whether r_ep is paid less its running mean: a bonus whose mean stays positive makes going on worth more than
                the goal
    normalize_bonus   whether r_ep is paid in units of its running deviation, so that alpha means the same for every hash and task
    penalty_on_revisits   whether r_ta may only take away, and not give, where nothing is new (N > 1). A first visit is paid once,
                but a modulator could pay for standing still for ever
    earned_trust   whether r_ta counts only as far as V^e explains the task's returns (a running mean of the share of variance).
                The modulator learns from V^e's advantages, and those of a V^e that knows nothing are noise
    """

    gamma: float
    alpha: float
    novelty_learning_rate: float
    reward_shaping: Literal["none", "soft-asymmetric"]
    lambda_: float = 0.5
    entropy_cost: float = 5e-4
    vtrace_lambda: float = 1.0
    reward_scale: float = 1.0
    bootstrap_on_truncation: bool = False
    policy_learning_rate: float = 3e-4
    learning_rate_timescale: int | None = None
    intrinsic_learning_rate: float = 3e-4
    modulator_learning_rate: float | None = None
    policy_betas: tuple[float, float] = (0.9, 0.999)
    intrinsic_betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    agac_coef: float = 4e-4
    inner_loss: Literal["policy-gradient", "full"] = "policy-gradient"
    max_gradient_norm: float | None = None
    precision: Literal["auto", "float32"] = "float32"
    decoder_samples: int | None = None
    epochs: int = 1
    minibatches: int = 1
    sequence_length: int | None = None
    clip_range: float | None = None
    normalize_advantages: bool = False
    episodic_bonus: Literal["inverse-sqrt", "first-visit", "information"] = "inverse-sqrt"
    center_bonus: bool = False
    normalize_bonus: bool = False
    penalty_on_revisits: bool = False
    earned_trust: bool = False

    def after(self, updates: int) -> TrainingConfig:
        """The numbers of the update that follows so many others."""
        if self.learning_rate_timescale is None:
            return self
        falls = math.sqrt(1 + updates / self.learning_rate_timescale)
        return replace(self, policy_learning_rate=self.policy_learning_rate / falls)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """How the policy sees, and how large it is.

    encoder  paper: its three convolutions, or IMPALA's network for pictures, on the numbers of an observation as they are.
             one-hot: two convolutions on MiniGrid's cells as categories, of which the second keeps four places. patches: pictures
             cut into patches, and two convolutions on these
    width    of its features and of its recurrent core; the paper's is 256
    """

    encoder: Literal["paper", "one-hot", "patches"] = "paper"
    width: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HashConfig:
    """Which hash counts, and how large codes are; what is left out (None) is the method's, or the paper's for such observations.

    kind    what makes two observations the same, where it is not the method's own: vq, ae-lsh, dsc, exact, objects, cells,
            vq-cells or vq-patches
    size    height and width of what VQ and DSC make of an observation. VQ on MiniGrid: any, for its picture is four times as
            large; on pictures two of its own, (2, 3) or (4, 6) on those of 72 x 96
    codebook_size   K: the vectors of the codebook of VQ, vq-cells or vq-patches; 2 to 256
    dsc_levels      of DSC; 2 to 256
    bits    of an AE-LSH code
    """

    kind: Literal["vq", "ae-lsh", "dsc", "exact", "objects", "cells", "vq-cells", "vq-patches"] | None = None
    size: tuple[int, int] | None = None
    codebook_size: int | None = None
    dsc_levels: int | None = None
    bits: int | None = None
