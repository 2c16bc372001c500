"""How surprising first visits are, by what the run has shown lately: the memory that outlasts an episode.

T  actions in an unroll        B  unrolls in a batch        M  coarser levels of a hash        K  buckets
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BUCKETS = 1 << 14
DECAY = 0.99  # of all sums, a batch


class SeenCodes(nn.Module):
    """How often an episode visits something for the first time, of all steps lately: anything at all, and each coarse code.

    Codes may share a bucket, but there are far fewer of them: some hundred in MiniGrid. All is forgotten slowly, and so are the
    codes of a hash that learns, whose meaning changes.
    """

    steps: Tensor
    fine: Tensor
    coarse_K: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("fine", torch.zeros(()))
        self.register_buffer("coarse_K", torch.zeros(BUCKETS))

    def forward(self, count_TB: Tensor, coarse_count_TBM: Tensor | None, coarse_code_TBM: Tensor | None) -> Tensor:
        """The log-odds log (1 - p) / p of what is visited for the first time, [T, B]; the sum of that of all levels.

        That is the information -log p of a rare event, and 0 where first visits are no rarer than others.

        The finest codes are too many to know each of them: p is how often any of them is visited for the first time. Of a coarser
        code it is how often that code is. While training, the batch itself is added first.
        """
        first_TB = (count_TB == 1).to(self.steps.dtype)
        if self.training:
            for sums in (self.steps, self.fine, self.coarse_K):
                sums.mul_(DECAY)
            self.steps.add_(first_TB.numel())
            self.fine.add_(first_TB.sum())
        information_TB = first_TB * self._information(self.fine)
        if coarse_count_TBM is None or coarse_code_TBM is None:
            return information_TB
        first_TBM = (coarse_count_TBM == 1).to(first_TB.dtype)
        bucket_TBM = coarse_code_TBM % len(self.coarse_K)
        if self.training:
            self.coarse_K.index_add_(0, bucket_TBM.flatten(), first_TBM.flatten())
        return information_TB + (first_TBM * self._information(self.coarse_K[bucket_TBM])).sum(-1)

    def _information(self, visits: Tensor) -> Tensor:
        """Less that of a step that is no such visit, and never less than 0."""
        return ((self.steps - visits).clamp(min=visits + 1) / (visits + 1)).log()
