"""Episodic counts, LECO's own novelty: an observation whose code was seen seldom in this episode (r_ep of eq. 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.func import functional_call

from leco.algo.exploration import first_visit
from leco.algo.rewards import episodic_bonus
from leco.methods.novelty import NoveltyOutput
from leco.models.seen_codes import SeenCodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from leco.config.training import NetworkConfig, TrainingConfig
    from leco.methods.novelty import NoveltyInput
    from leco.models.kinds.table import Kind


class CountedVisits(NamedTuple):
    """Of observations that actions led to, in any shape [...]: `SeenCodes.forward` says what it makes of them.

    times         how often the code was seen in its episode, this visit included
    coarse_times  [..., M], of coarser codes; None without any
    coarse_code   [..., M], four bytes of each of those
    """

    times: Tensor
    coarse_times: Tensor | None = None
    coarse_code: Tensor | None = None


def build(_kind: Kind, _num_actions: int, _network: NetworkConfig) -> SeenCodes:
    """What the run has seen; nothing in it learns by gradients."""
    return SeenCodes()


def compute(given: NoveltyInput) -> NoveltyOutput:
    """What the visits of a batch are worth."""
    batch = given.batch

    def seen(*visits: Tensor) -> Tensor:
        assert given.net is not None  # noqa: S101  # `build` has made it
        lately: Tensor = functional_call(given.net, given.tensors, visits)
        return lately

    visits = CountedVisits(given.counts(), batch.coarse_count_TBM, batch.coarse_code_TBM)
    return NoveltyOutput(visit_bonus(seen, given.config, visits, batch.reward_TB.dtype))


def visit_bonus(
    seen: Callable[..., Tensor], config: TrainingConfig, visits: CountedVisits, dtype: torch.dtype = torch.float32
) -> Tensor:
    """1 / sqrt(N); 1 for a first visit alone; or the information in first visits, of coarser codes too. Any shape.

    seen    of what the run has shown lately, `SeenCodes.forward`; only the information in a visit needs it
    config  says which of the three, by `episodic_bonus`
    visits  what was counted
    dtype   of the result
    """
    if config.episodic_bonus == "information":
        return seen(*visits).to(dtype)
    bonus = first_visit if config.episodic_bonus == "first-visit" else episodic_bonus
    return bonus(visits.times, dtype)
