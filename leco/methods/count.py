"""Episodic counts, LECO's own novelty: an observation whose code was seen seldom in this episode (r_ep of eq. 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.algo.exploration import first_visit
from leco.algo.rewards import episodic_bonus
from leco.methods.novelty import NoveltyOutput

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.methods.novelty import NoveltyInput
    from leco.models.kinds.table import KindNetworks


def build(_kind: KindNetworks, _num_actions: int, _network: NetworkConfig) -> None:
    """The hash belongs to the intrinsic module: there are no networks beside it."""


def compute(given: NoveltyInput) -> NoveltyOutput:
    """1 / sqrt(N), or 1 for a first visit alone."""
    bonus = first_visit if given.config.episodic_bonus == "first-visit" else episodic_bonus
    return NoveltyOutput(bonus(given.counts(), given.batch.reward_TB.dtype))
