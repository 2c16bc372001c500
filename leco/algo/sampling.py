"""Chance: rows that stand for many, by weight, so that sums are right on average; and actions by their probability.

U  rows, of which row u stands for weight_U[u] equal ones
S  rows in the sample
E  environments
A  number of actions
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Sample(NamedTuple):
    """Which rows were drawn, and what each now stands for.

    index_S   int64, distinct rows
    weight_S  how often the row was hit, float32; zero for padding. They sum to S
    """

    index_S: Tensor
    weight_S: Tensor


def systematic_sample(weight_U: Tensor, size: int, offset: float) -> Sample:
    """Systematic sampling: S marks at even distances, the first at `offset` of one, on the line that the weights make.

    A row of weight w is hit S w / sum(weights) times on average over the offset, and never further than one from that. So a
    weighted mean over the sample is a weighted mean over all rows on average; it varies less than with independent draws.
    If all rows fit in the sample they are all in it, with their own weights, and nothing is left to chance.

    weight_U  at least 0, not all 0
    size      S
    offset    from 0 up to but not 1
    """
    if weight_U.ndim != 1 or not len(weight_U):
        raise ValueError(f"weight_U has shape {tuple(weight_U.shape)}, expected [U] with U at least 1")
    if size < 1:
        raise ValueError(f"size is {size}, expected at least 1")
    if not 0 <= offset < 1:
        raise ValueError(f"offset is {offset}, expected 0 or more and less than 1")
    if len(weight_U) <= size:
        return Sample(torch.arange(len(weight_U), device=weight_U.device), weight_U.float())
    line_U = weight_U.double().cumsum(0)
    marks_S = (torch.arange(size, device=weight_U.device, dtype=torch.float64) + offset) * (line_U[-1] / size)
    hit_S = torch.searchsorted(line_U, marks_S, right=True).clamp_(max=len(weight_U) - 1)
    hits_U = torch.bincount(hit_S, minlength=len(weight_U))
    index_S = hits_U.argsort(descending=True, stable=True)[:size]
    return Sample(index_S, hits_U[index_S].float())


def sample_action(logits_EA: Tensor, random: torch.Generator) -> Tensor:
    """One action for each row, each with the policy's probability. Any axes before the last; int64.

    The largest of (logit - log of an exponential draw) is each action with the probability that softmax gives it.
    """
    draw_EA = torch.empty_like(logits_EA).exponential_(generator=random)
    return (logits_EA - draw_EA.log()).argmax(-1)
