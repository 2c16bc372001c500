"""Whether an update may be kept: its numbers are finite, and its gradients are not absurd beside those before them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from leco.checkpoint.state_file import not_finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leco.algo.optim import AdamState
    from leco.learning.state import TrainingState

# Adam's memory of how large gradients are may grow this many times in one update: with the usual betas, by a gradient 3,000
# times as large as those before it. Honest ones grow by less than twice, but for the first reward after a long time without any:
# what is below SMALL never counts. A novelty's own networks are not asked: no reward reaches them.
MOST_GROWTH = 100.0
SMALL = 10.0
MOST_LEFT_OUT = 100  # in a row


class DivergedError(ValueError):
    """Nothing but updates that may not be kept."""


def objection(
    before: TrainingState, after: TrainingState, stats: Mapping[str, float], beta2s: tuple[float, float]
) -> str:
    """Why an update may not be kept, in words; empty if it may.

    It depends on nothing but its arguments, so that a run that is resumed decides as one that never ended.

    beta2s  of the policy's Adam, and of the intrinsic module's
    """
    for name, value in stats.items():
        if (name.endswith("loss") or name == "gradient_norm") and not math.isfinite(value):
            return f"{name} is {value}"
    if name := not_finite(after):
        return f"{name} is not finite"
    for name, beta2 in zip(("policy_adam", "intrinsic_adam"), beta2s, strict=True):
        then, now = (gradient_size(getattr(state, name), beta2) for state in (before, after))
        if now > MOST_GROWTH * max(then, SMALL):
            return f"{name} remembers gradients of {now:.3g}, and of {then:.3g} before"
    return ""


def gradient_size(adam: AdamState, beta2: float) -> float:
    """The norm of recent gradients, as Adam remembers their squares; 0 before the first."""
    if adam.steps == 0 or not adam.exp_avg_sq:
        return 0.0
    squares = torch.stack([square.sum() for square in adam.exp_avg_sq.values()]).double().sum()
    return math.sqrt(float(squares) / (1 - beta2**adam.steps))
