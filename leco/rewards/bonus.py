"""What a first visit is worth, and what the hash learns, step by step: the learner's parts without its policy.

E     environments        L  levels of the hash        M  L - 1, the coarser ones
N     steps of a batch    O...  shape of one observation
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from leco.algo.dedup import distinct
from leco.algo.optim import init_adam
from leco.config.presets import LAPTOP
from leco.config.training import TrainingConfig
from leco.learning.intrinsic_pass import DecoderSampling, IntrinsicPass
from leco.learning.policy_step import adam_step, copies, leaves
from leco.learning.rewards import BonusMoments, paid, running_moments
from leco.methods.count import CountedVisits, visit_bonus
from leco.methods.table import Hash, Method, Modulation
from leco.models.build import build_intrinsic
from leco.models.hash_function import first_bytes, make_hash_function
from leco.models.seen_codes import SeenCodes

if TYPE_CHECKING:
    import numpy.typing as npt

    from leco.models.kinds.table import Kind

    Worth = Literal["information", "first-visit", "inverse-sqrt"]

WARM_UP = 8  # batches that a learned hash learns from before its codes mean enough to be paid for
_LIKE_LAPTOP = ("center_bonus", "normalize_bonus", "intrinsic_learning_rate", "decoder_samples")


class EpisodicBonus:
    """From observations to codes, and from counts to what is paid.

    Args:
        kind: Of the observations.
        hash_: What makes two of them the same.
        worth: Of a count: `training.episodic_bonus`.

    Attributes:
        hash: The hash; learned ones change with `learn`.
    """

    def __init__(self, kind: Kind, hash_: Hash, worth: Worth) -> None:
        method = Method("episodic-count", hash_, "count", Modulation.NONE, lambda_=0.0)
        laptop = tomllib.loads(LAPTOP)["training"]
        self._config = TrainingConfig(
            gamma=1.0,
            alpha=1.0,
            novelty_learning_rate=method.novelty_learning_rate,
            reward_shaping="none",
            episodic_bonus=worth,
            **{name: laptop[name] for name in _LIKE_LAPTOP},
        )
        self._intrinsic = build_intrinsic(method, kind, num_actions=1)  # nobody acts: there is no modulator
        found = make_hash_function(method, kind, self._intrinsic)
        assert found is not None  # noqa: S101  # the method counts
        self.hash = found
        self._seen = SeenCodes()
        self._moments = BonusMoments(torch.zeros(()), torch.zeros(()))
        self._batches = 0 if self.hash.network is None else -WARM_UP
        self._learned = 0
        if self.hash.network is not None:
            self._parameters = leaves(dict(self.hash.network.named_parameters()))
            self._running = copies(dict(self.hash.network.named_buffers()))
            self._adam = init_adam(self._parameters)
            self.hash.network.eval()

    def pay(self, count_EL: npt.NDArray[np.uint32], code_EW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """What first visits are worth by what is known so far, less its running mean, in running deviations: [E].

        Until enough was learned it is 0: nothing is known of what is rare.
        """
        if self._batches <= 0:
            return np.zeros(len(count_EL), np.float32)
        r_ep_E = visit_bonus(self._seen.eval(), self._config, self._visits(count_EL, code_EW))
        result: npt.NDArray[np.float32] = paid(r_ep_E, self._moments, self._config).numpy()
        return result

    def learn(
        self,
        observation_NO: npt.NDArray[np.uint8],
        count_NL: npt.NDArray[np.uint32],
        code_NW: npt.NDArray[np.uint8],
    ) -> None:
        """Learns from a batch of steps what is rare and, with a learned hash, what observations are made of.

        Args:
            observation_NO: What actions led to.
            count_NL: How often that was seen in its episode, at least 1.
            code_NW: Its codes.
        """
        r_ep_N = visit_bonus(self._seen.train(), self._config, self._visits(count_NL, code_NW))
        self._moments = running_moments(self._moments, r_ep_N, max(self._batches, 0))
        if self._intrinsic is not None and self.hash.network is not None:
            sampling = DecoderSampling(self._config.decoder_samples, self._learned)
            unique = distinct(torch.from_numpy(observation_NO))
            step = IntrinsicPass(self._intrinsic, {**self._parameters, **self._running}, unique, sampling)
            _, gradients = step.gradients(None)
            rate = self._config.intrinsic_learning_rate
            moved, self._adam = adam_step(self._parameters, gradients, self._adam, rate, self._config)
            self._parameters = leaves(moved)
            self.hash.load({**moved, **self._running})
            self._learned += 1
        self._batches += 1

    def _visits(self, count_NL: npt.NDArray[np.uint32], code_NW: npt.NDArray[np.uint8]) -> CountedVisits:
        count_NL_ = torch.from_numpy(count_NL.astype(np.int64))
        if self.hash.levels == 1:
            return CountedVisits(count_NL_[:, 0])
        code_NL = first_bytes(code_NW.reshape(len(code_NW), self.hash.levels, -1))
        return CountedVisits(count_NL_[:, 0], count_NL_[:, 1:], torch.from_numpy(code_NL[:, 1:].astype(np.int64)))
