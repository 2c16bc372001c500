"""The transitions of a batch, each distinct observation once, for novelties that look at what an action led to.

T     actions in an unroll          B  unrolls in a batch       U  distinct observations
O...  shape of one observation      F  episodes that ended
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.func import functional_call

from leco.algo.dedup import distinct

if TYPE_CHECKING:
    from torch import Tensor

    from leco.learning.state import Batch
    from leco.methods.novelty import NoveltyInput


class Transitions(NamedTuple):
    """The distinct observations of a batch, true last ones of episodes among them, and which are before and after actions.

    times_U is how often each is what an action led to.
    """

    observation_UO: Tensor
    times_U: Tensor
    now_TB: Tensor
    next_TB: Tensor


def transitions(batch: Batch) -> Transitions:
    """Those of a batch.

    Raises:
        ValueError: it does not have the last observation of every episode that ended.
    """
    ends_TB = batch.start_TB[1:]
    last_FO = batch.terminal_observation_FO
    if last_FO is None or len(last_FO) != int(ends_TB.sum()):
        found = "none" if last_FO is None else len(last_FO)
        raise ValueError(
            f"{int(ends_TB.sum())} episodes end in this batch, but it has {found} of their last observations"
        )
    every = distinct(torch.cat([batch.observation_TBO.flatten(0, 1), last_FO]))
    index_TB = every.index_N[: batch.start_TB.numel()].view(batch.start_TB.shape)
    next_TB = index_TB[1:].clone()
    next_TB[ends_TB] = every.index_N[batch.start_TB.numel() :]  # in the order of a mask: time first, then unroll
    times_U = torch.bincount(next_TB.flatten(), minlength=len(every.observation_UO))
    return Transitions(every.observation_UO, times_U, index_TB[:-1], next_TB)


def rnd_distances(given: NoveltyInput) -> tuple[Transitions, Tensor]:
    """The transitions, and ||predictor - target||^2 of each distinct observation in them, [U]."""
    assert given.net is not None  # noqa: S101  # `build` has made it
    seen = transitions(given.batch)
    distance_U: Tensor = functional_call(given.net, given.tensors, (seen.observation_UO, seen.times_U))
    return seen, distance_U
