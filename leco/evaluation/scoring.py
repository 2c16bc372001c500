"""What an episode that was played is worth to a trained agent: its codes, counts and intrinsic rewards.

T     actions of the episode
W     bytes of a code
L     levels of the hash, the finest first
O...  shape of one observation
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from leco.algo.dedup import distinct
from leco.algo.rewards import intrinsic_reward
from leco.learning.rewards import BonusMoments, modulated, paid
from leco.learning.state import Batch
from leco.methods.novelty import NoveltyInput, compute_novelty
from leco.methods.table import Modulation
from leco.models.hash_function import first_bytes, make_hash_function
from leco.models.kinds.table import find_kind

if TYPE_CHECKING:
    from torch import Tensor, nn

    from leco.config.training import HashConfig, TrainingConfig
    from leco.learning.state import Networks, Params, TrainingState
    from leco.methods.table import Method
    from leco.types import ObservationLayout

PIECE = 256  # actions that are looked at together: networks for pixels would need gigabytes for a whole episode


class EpisodeRewards(NamedTuple):
    """Of the T + 1 observations their codes and counts (0 if nothing is counted), of the T actions their intrinsic rewards."""

    code_TW: npt.NDArray[np.uint8]
    count_T: npt.NDArray[np.uint32]
    r_ep_T: npt.NDArray[np.float32]
    r_ta_T: npt.NDArray[np.float32]
    r_i_T: npt.NDArray[np.float32]


class _Visits(NamedTuple):
    """Of the T + 1 observations the codes of all levels, and how often each was seen when it was."""

    code_TLW: npt.NDArray[np.uint8]
    count_TL: npt.NDArray[np.uint32]


class EpisodeScorer:
    """Judges whole episodes as the learner judges unrolls, but with the running statistics of its batch norms, as actors do.

    What a state has no parameters for (`leco.checkpoint.snapshot.acting_state`) cannot be said: r_ta without a modulator is nan,
    so is r_ep without what measures it, and r_i without either.

    Args:
        networks: Their parameters are replaced by those of the state.
        state: A checkpoint.
        method, config, hash_config: Of the run.
        observation: O..., or what its bytes are.
    """

    def __init__(
        self,
        networks: Networks,
        state: TrainingState,
        method: Method,
        config: TrainingConfig,
        *,
        observation: tuple[int, ...] | ObservationLayout,
        hash_config: HashConfig | None = None,
    ) -> None:
        self._networks, self._state, self._method, self._config = networks, state, method, config
        if networks.intrinsic is not None:
            # Not strict: constants of the networks are part of a state, but torch does not load them.
            networks.intrinsic.load_state_dict({**state.intrinsic, **state.running}, strict=False)
            networks.intrinsic.eval()
        if networks.novelty is not None:
            networks.novelty.eval()  # an episode that is looked at is not one that the run has seen
        self._hash = make_hash_function(method, find_kind(observation), networks.intrinsic, hash_config)
        self._has_modulator = _has_all(state.intrinsic, networks.intrinsic)
        self._has_novelty = not method.bonus_needs_network or _has_all(state.novelty, networks.novelty)
        if method.remembers(config.episodic_bonus):
            self._has_novelty = "steps" in state.novelty_running

    @property
    def lambda_(self) -> float:
        """The modulator's share in r_i."""
        return self._config.lambda_ if self._method.lambda_ is None else self._method.lambda_

    @torch.no_grad()
    def score(
        self,
        observation_TO: npt.NDArray[np.uint8],
        action_T: npt.NDArray[np.integer],
        reward_T: npt.NDArray[np.float32],
    ) -> EpisodeRewards:
        """A whole episode, from its first to its true last observation."""
        visits = self._visits(observation_TO)
        r_ep, r_ta = [], []
        for begin in range(0, len(action_T), PIECE):
            piece = slice(begin, begin + PIECE)
            batch = self._batch(observation_TO, action_T, reward_T, visits, piece)
            r_ep.append(self._novelty(batch))
            r_ta.append(self._modulation(batch, r_ep[-1]))
        r_ep_T, r_ta_T = torch.cat(r_ep), torch.cat(r_ta)
        moments = BonusMoments(self._state.r_ep_mean, self._state.r_ep_square)
        r_i_T = intrinsic_reward(paid(r_ep_T, moments, self._config), r_ta_T, self.lambda_)
        rewards = (each.numpy().astype(np.float32) for each in (r_ep_T, r_ta_T, r_i_T))
        return EpisodeRewards(visits.code_TLW[:, 0], visits.count_TL[:, 0], *rewards)

    def _visits(self, observation_TO: npt.NDArray[np.uint8]) -> _Visits:
        steps = len(observation_TO)
        if self._hash is None:
            return _Visits(np.zeros((steps, 1, 0), np.uint8), np.zeros((steps, 1), np.uint32))
        pieces = range(0, steps, PIECE)
        code = np.concatenate([self._hash.codes(observation_TO[begin : begin + PIECE]) for begin in pieces])
        code_TLW = code.reshape(steps, self._hash.levels, self._hash.width)
        return _Visits(code_TLW, np.stack([visit_counts(code_TLW[:, level]) for level in range(self._hash.levels)], 1))

    def _batch(
        self,
        observation_TO: npt.NDArray[np.uint8],
        action_T: npt.NDArray[np.integer],
        reward_T: npt.NDArray[np.float32],
        visits: _Visits,
        piece: slice,
    ) -> Batch:
        """Some actions of the episode as a batch of one unroll."""
        length = len(action_T[piece])
        last = piece.start + length == len(action_T)
        observation_TBO = torch.from_numpy(observation_TO[piece.start : piece.start + length + 1].copy()).unsqueeze(1)
        start_TB = torch.zeros(length + 1, 1, dtype=torch.bool)
        start_TB[0], start_TB[-1] = piece.start == 0, last
        led_to = slice(piece.start + 1, piece.start + 1 + length)
        count_TBL = torch.from_numpy(visits.count_TL[led_to].astype(np.int64)).unsqueeze(1)
        coarse = count_TBL.shape[-1] > 1
        return Batch(
            observation_TBO=observation_TBO,
            start_TB=start_TB,
            action_TB=torch.from_numpy(action_T[piece].astype(np.int64)).unsqueeze(1),
            reward_TB=torch.from_numpy(reward_T[piece].copy()).unsqueeze(1),
            behaviour_logits_TBA=torch.zeros(length, 1, 1),
            previous_action_B=torch.tensor([-1 if piece.start == 0 else int(action_T[piece.start - 1])]),
            previous_reward_B=torch.zeros(1),
            core_state=self._networks.policy.initial_state(1),
            count_TB=count_TBL[..., 0],
            terminal_observation_FO=observation_TBO[-1] if last else observation_TBO[:0, 0],
            coarse_count_TBM=count_TBL[..., 1:] if coarse else None,
            coarse_code_TBM=_coarse_codes(visits.code_TLW[led_to]).unsqueeze(1) if coarse else None,
        )

    def _novelty(self, batch: Batch) -> Tensor:
        if not self._has_novelty:
            return torch.full_like(batch.reward_TB, math.nan).flatten()
        running = {name: tensor.clone() for name, tensor in self._state.novelty_running.items()}
        logits_TBA = torch.zeros(*batch.action_TB.shape, self._networks.policy.policy_head.out_features)
        given = NoveltyInput(
            self._networks.novelty,
            {**self._state.novelty, **running},
            batch,
            distinct(batch.observation_TBO.flatten(0, 1)),
            logits_TBA,  # advantages may depend on them, but not what is new
            self._config,
        )
        return compute_novelty(given, self._method).r_ep_TB.flatten()

    def _modulation(self, batch: Batch, r_ep_T: Tensor) -> Tensor:
        net = self._networks.intrinsic
        if net is None or self._method.modulation is Modulation.NONE:
            return torch.zeros_like(r_ep_T)
        if not self._has_modulator:
            return torch.full_like(r_ep_T, math.nan)
        z_NF = net.encode(batch.observation_TBO[:-1, 0]).flatten(1)
        told = r_ep_T if self._method.modulation is Modulation.REPLACING else None
        scores_NA = net.modulate(z_NF, batch.action_TB.flatten(), novelty_N=told)
        return modulated(scores_NA.unsqueeze(1), batch, self._config, self._state.trust).flatten()


def _coarse_codes(code_TLW: npt.NDArray[np.uint8]) -> Tensor:
    """What trajectories say of all codes but the finest, [T, L - 1]."""
    return torch.from_numpy(first_bytes(code_TLW[:, 1:]).astype(np.int64))


def _has_all(params: Params, net: nn.Module | None) -> bool:
    """Whether these are all parameters of a network."""
    return net is None or all(name in params for name, _ in net.named_parameters())


def visit_counts(code_TW: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """How often each code had been seen in the episode when it was seen, that time included: [T + 1]."""
    seen: dict[bytes, int] = {}
    counts = []
    for code in map(bytes, code_TW):
        seen[code] = seen.get(code, 0) + 1
        counts.append(seen[code])
    return np.array(counts, np.uint32)
