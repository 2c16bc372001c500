"""The intrinsic module's part in an update: heads on z_e, and the step of hash, modulator and V^e."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from leco.learning.intrinsic_pass import DecoderSampling, IntrinsicPass
from leco.learning.policy_step import adam_step, copies, leaves
from leco.methods.table import Modulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from leco.config.training import TrainingConfig
    from leco.learning.intrinsic_pass import IntrinsicOutput
    from leco.learning.state import Batch, Params, StepInput
    from leco.models.intrinsic import Intrinsic


class IntrinsicChange(NamedTuple):
    """What changes in the state, and what to plot."""

    changes: dict[str, Any]
    stats: dict[str, Tensor]


class NoIntrinsic:
    """Of a method without an intrinsic module: nothing is said, and nothing changes."""

    def heads(self, _batch: Batch, _r_ep_TB: Tensor) -> None:
        """There are none."""

    def step(self, _loss: Tensor | None) -> IntrinsicChange:
        """Nothing learns."""
        return IntrinsicChange({}, {})


class IntrinsicStep:
    """The intrinsic module, whose encoder and hash are at work in a thread of their own since this was made.

    Args:
        net: The module.
        given: The update's.
        when_hashed: Called when that thread is done.
    """

    def __init__(self, net: Intrinsic, given: StepInput, when_hashed: Callable[[], object]) -> None:
        self._state, self._method, self._config = given.state, given.method, given.config
        self._parameters, self._running = leaves(given.state.intrinsic), copies(given.state.running)
        sampling = DecoderSampling(given.config.decoder_samples, given.state.updates)
        self._pass = IntrinsicPass(net, {**self._parameters, **self._running}, given.unique, sampling)
        self._pass.then(when_hashed)

    def heads(self, batch: Batch, r_ep_TB: Tensor) -> IntrinsicOutput | None:
        """V^e and f_ta; None without a modulator, which V^e is for."""
        if self._method.modulation is Modulation.NONE:
            return None
        return self._pass.heads(batch, self._method, r_ep_TB)

    def step(self, loss: Tensor | None) -> IntrinsicChange:
        """Descends the hash's loss (eq. 2) and, if there is one, that of modulator and V^e."""
        hash_loss, gradients = self._pass.gradients(loss)
        rate = self._config.intrinsic_learning_rate
        moved, adam = adam_step(self._parameters, gradients, self._state.intrinsic_adam, rate, self._config)
        after = scale_modulator_step(self._state.intrinsic, moved, self._config)
        changes = {"intrinsic": after, "intrinsic_adam": adam, "running": self._running}
        return IntrinsicChange(changes, {"hash_loss": hash_loss})


def begin_intrinsic(given: StepInput, when_hashed: Callable[[], object]) -> IntrinsicStep | NoIntrinsic:
    """Begins to encode and hash the batch."""
    if given.networks.intrinsic is None:
        when_hashed()
        return NoIntrinsic()
    return IntrinsicStep(given.networks.intrinsic, given, when_hashed)


def scale_modulator_step(before: Params, after: Params, config: TrainingConfig) -> Params:
    """The modulator's step with its own learning rate: a step of Adam is proportional to the rate."""
    if config.modulator_learning_rate is None:
        return after
    share = config.modulator_learning_rate / config.intrinsic_learning_rate
    return {
        name: torch.lerp(before[name], moved, share) if name.startswith("modulator_") else moved
        for name, moved in after.items()
    }
