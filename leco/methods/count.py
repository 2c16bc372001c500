"""Episodic counts, LECO's own novelty: an observation whose code was seen seldom in this episode (r_ep of eq. 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.func import functional_call

from leco.algo.exploration import first_visit
from leco.algo.rewards import episodic_bonus
from leco.methods.novelty import NoveltyOutput
from leco.models.seen_codes import SeenCodes

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.methods.novelty import NoveltyInput
    from leco.models.kinds.table import Kind


def build(_kind: Kind, _num_actions: int, _network: NetworkConfig) -> SeenCodes:
    """What the run has seen; nothing in it learns by gradients."""
    return SeenCodes()


def compute(given: NoveltyInput) -> NoveltyOutput:
    """1 / sqrt(N); 1 for a first visit alone; or the information in first visits, of coarser codes too."""
    batch, config = given.batch, given.config
    if config.episodic_bonus == "information":
        assert given.net is not None  # noqa: S101  # `build` has made it
        visits = (given.counts(), batch.coarse_count_TBM, batch.coarse_code_TBM)
        return NoveltyOutput(functional_call(given.net, given.tensors, visits).to(batch.reward_TB.dtype))
    bonus = first_visit if config.episodic_bonus == "first-visit" else episodic_bonus
    return NoveltyOutput(bonus(given.counts(), batch.reward_TB.dtype))
