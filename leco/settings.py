"""The numbers of an update, apart from torch, so that a configuration can be read without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of an update, with the paper's values for MiniGrid.

    trace_decay  how much of what is seen beyond the next step counts in value targets and advantages: 1 is V-trace as published,
                less is the lambda of TD(lambda) and of generalised advantages
    reward_scale  of all rewards. Adam's steps do not grow with the gradient, so values that are small beside a step are never
                learned well; `entropy` is in units of the scaled reward
    go_on_after_cuts  whether an episode that its time limit cuts off is valued as if it went on (the action at the cut teaches
                nothing), instead of being worth nothing from there on, which a policy that does not know the time cannot foresee
    inner_loss  what the modulator is told that the policy descends: only the policy-gradient term, as published, or the
                whole loss, for which the policy's real step serves
    max_gradient_norm   the policy's gradient is scaled down to this norm where it is larger; None never does
    decoded     how many observations of a batch the decoder learns from, drawn by how often each occurs; None for all
    """

    gamma: float = 0.99
    alpha: float = 0.01
    lambda_: float = 0.5
    entropy: float = 5e-4
    trace_decay: float = 1.0
    reward_scale: float = 1.0
    go_on_after_cuts: bool = False
    policy_learning_rate: float = 3e-4
    intrinsic_learning_rate: float = 3e-4
    policy_betas: tuple[float, float] = (0.9, 0.999)
    intrinsic_betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    inner_loss: Literal["policy-gradient", "whole"] = "policy-gradient"
    max_gradient_norm: float | None = None
    decoded: int | None = None
