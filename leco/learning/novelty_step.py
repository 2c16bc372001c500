"""What is new in a batch, and the step of the networks that measure it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leco.learning.policy_step import adam_step, copies, gradients_of, leaves
from leco.methods.novelty import NoveltyInput, compute_novelty

if TYPE_CHECKING:
    from torch import Tensor

    from leco.algo.vtrace import VTrace
    from leco.learning.state import StepInput


class NoveltyStep:
    """r_ep of a batch, and what the networks that measure it learn.

    Args:
        given: The update's.
        logits_TBA: Of the policy that learns.
    """

    def __init__(self, given: StepInput, logits_TBA: Tensor) -> None:
        self._state, self._config = given.state, given.config
        self._parameters, self._running = leaves(given.state.novelty), copies(given.state.novelty_running)
        tensors = {**self._parameters, **self._running}
        output = compute_novelty(
            NoveltyInput(given.networks.novelty, tensors, given.batch, given.unique, logits_TBA, given.config),
            given.method,
        )
        self._output, self.r_ep_TB, self.stats = output, output.r_ep_TB, output.stats

    def add_adversary_bonus(self, vtrace: VTrace, weight: float) -> VTrace:
        """AGAC: actions that the adversary did not foresee are better than they were, and states where it is wrong worth more."""
        log_ratio_TB, kl_TB = self._output.adversary_log_ratio_TB, self._output.adversary_kl_TB
        if log_ratio_TB is None or kl_TB is None:
            return vtrace
        return vtrace._replace(
            advantage_TB=vtrace.advantage_TB + weight * log_ratio_TB, target_TB=vtrace.target_TB + weight * kl_TB
        )

    def step(self) -> dict[str, Any]:
        """What changes in the state."""
        changes: dict[str, Any] = {"novelty_running": self._running}
        if self._output.loss is not None:
            gradients = gradients_of(self._output.loss, self._parameters)
            rate = self._config.novelty_learning_rate
            changes["novelty"], changes["novelty_adam"] = adam_step(
                self._parameters, gradients, self._state.novelty_adam, rate, self._config
            )
        return changes
