"""Episodic counts, LECO's own novelty: an observation whose code was seen seldom in this episode (r_ep of eq. 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.algo.exploration import first_visit
from leco.algo.rewards import episodic_bonus, mixed_bonus
from leco.methods.novelty import NoveltyOutput

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.methods.novelty import NoveltyInput
    from leco.models.kinds.table import KindNetworks


def build(_kind: KindNetworks, _num_actions: int, _network: NetworkConfig) -> None:
    """The hash belongs to the intrinsic module: there are no networks beside it."""


def compute(given: NoveltyInput) -> NoveltyOutput:
    """1 / sqrt(N), or 1 for a first visit alone; with a share of the counts over the whole run, if the run asks for it."""
    batch, config = given.batch, given.config
    bonus = first_visit if config.episodic_bonus == "first-visit" else episodic_bonus
    r_ep_TB = bonus(given.counts(), batch.reward_TB.dtype)
    if config.run_count_weight > 0:
        if batch.run_count_TB is None:
            raise ValueError(f"run_count_weight is {config.run_count_weight}, but this batch has no run-wide counts")
        r_ep_TB = mixed_bonus(r_ep_TB, batch.run_count_TB, config.run_count_weight)
    return NoveltyOutput(r_ep_TB)
