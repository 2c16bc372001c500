"""A learned hash of single cells: a VQ-VAE whose pictures are one cell each, of categories.

The paper's VQ-VAE sees MiniGrid's integers as brightness, and a mean squared error weighs a wall like a key. Here categories go
in and come out, rare ones weigh more, and vectors that nobody uses begin anew where several cells share one. How many different
cells there are is known (264), so that all of them are encoded at once, whatever the batch.

M  different cells        K  vectors of the codebook        D  their width        V  values of all channels together
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from leco.algo.quantize import nearest_code

WIDTH = 16
HIDDEN = 64
DECAY = 0.9  # of the running sums that the codebook is made of
LEAST_USE = 0.05  # a vector that is used less begins anew
COMMITMENT = 0.25
STOP_SHARE = 0.75  # a code that more views than that have says nothing of a view, like the stop words of a language


class CellCodebook(nn.Module):
    """Encoder, codebook and decoder of cells.

    The codebook is moved by running means, as van den Oord et al. (2017, appendix A.1) have it, not by gradients.

    Args:
        values: How many values each channel of a cell has.
        codes: K.

    Attributes:
        vectors_KD: The codebook.
    """

    value_MC: Tensor
    vectors_KD: Tensor
    used_K: Tensor
    sum_KD: Tensor
    in_views_K: Tensor

    def __init__(self, values: tuple[int, ...], codes: int) -> None:
        super().__init__()
        self.values = values
        self.register_buffer("value_MC", torch.tensor(list(itertools.product(*map(range, values)))), persistent=False)
        self.embedding = nn.ParameterList(nn.Parameter(torch.randn(count, WIDTH)) for count in values)
        self.encoder = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
        self.decoder = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, sum(values)))
        self.register_buffer("vectors_KD", torch.zeros(codes, WIDTH))
        self.register_buffer("used_K", torch.zeros(codes))
        self.register_buffer("sum_KD", torch.zeros(codes, WIDTH))
        self.register_buffer("in_views_K", torch.zeros(codes))

    def encode(self) -> Tensor:
        """z of every cell there is, [M, D]."""
        told_MD = sum(table[value_M] for table, value_M in zip(self.embedding, self.value_MC.unbind(1), strict=True))
        z_MD: Tensor = self.encoder(told_MD)
        return z_MD

    def code(self) -> Tensor:
        """The number of the vector that is nearest to each cell, from 1 on; 0 for what nearly all views have. int64 [M]."""
        code_M = _nearest(self.encode(), self.vectors_KD)
        return torch.where(self.in_views_K[code_M] > STOP_SHARE, 0, code_M + 1)

    @torch.no_grad()
    def note_views(self, number_NC: Tensor, times_N: Tensor) -> None:
        """Learns which codes nearly all views have.

        Args:
            number_NC: [N, C], the cells of views.
            times_N: [N], how often each view occurs.
        """
        code_NC = _nearest(self.encode(), self.vectors_KD)[number_NC]
        has_NK = times_N.new_zeros(len(number_NC), len(self.in_views_K)).scatter_(1, code_NC, 1.0)
        share_K = (times_N @ has_NK) / times_N.sum()
        known_K = self.in_views_K > 0  # before that, one batch has to do
        self.in_views_K.copy_(torch.where(known_K, share_K.lerp(self.in_views_K, DECAY), share_K))

    def loss(self, times_M: Tensor, generator: torch.Generator) -> Tensor:
        """What is lost of cells that occur so often; moves the codebook.

        A cell weighs as the root of how often it occurs: walls are a hundred times as frequent as keys, and weigh ten times as
        much.

        Args:
            times_M: [M], how often each occurs in the batch; zero for most.
            generator: Draws where vectors that nobody uses begin anew.
        """
        z_MD = self.encode()
        weight_M = times_M.sqrt()
        weight_M = weight_M * (int((times_M > 0).sum()) / weight_M.sum())  # one on average, of those that occur
        self._move_codebook(z_MD.detach(), weight_M, generator)
        code_MD = self.vectors_KD[_nearest(z_MD, self.vectors_KD)]
        scores_MV = self.decoder(code_MD + (z_MD - z_MD.detach()))
        error_M = COMMITMENT * (z_MD - code_MD).square().mean(1)
        for scores_MX, value_M in zip(scores_MV.split(self.values, 1), self.value_MC.unbind(1), strict=True):
            error_M = error_M + functional.cross_entropy(scores_MX, value_M, reduction="none")
        return (weight_M * error_M).sum() / weight_M.sum()

    @torch.no_grad()
    def _move_codebook(self, z_MD: Tensor, weight_M: Tensor, generator: torch.Generator) -> None:
        self._begin_anew(z_MD, weight_M, generator)
        share_MK = functional.one_hot(_nearest(z_MD, self.vectors_KD), len(self.used_K)) * weight_M.unsqueeze(1)
        self.used_K.mul_(DECAY).add_(share_MK.sum(0), alpha=1 - DECAY)
        self.sum_KD.mul_(DECAY).add_(share_MK.T @ z_MD, alpha=1 - DECAY)
        in_use_K1 = (self.used_K >= LEAST_USE).unsqueeze(1)
        self.vectors_KD.copy_(torch.where(in_use_K1, self.sum_KD / self.used_K.unsqueeze(1), self.vectors_KD))

    def _begin_anew(self, z_MD: Tensor, weight_M: Tensor, generator: torch.Generator) -> None:
        """Puts vectors that nobody uses, the longest unused first, onto cells that share theirs with one that weighs more.

        That one keeps its vector, and so do all others: a view would be new again if the number of a common cell changed.
        """
        code_M = _nearest(z_MD, self.vectors_KD)
        rank_M = weight_M.argsort(stable=True).argsort()
        heaviest_K = torch.full_like(self.used_K, -1, dtype=torch.int64).scatter_reduce(0, code_M, rank_M, "amax")
        share_X = ((weight_M > 0) & (rank_M < heaviest_K[code_M])).nonzero().squeeze(1)
        count = min(int((self.used_K < LEAST_USE).sum()), len(share_X))
        where_B = self.used_K.topk(count, largest=False).indices
        begins_BD = z_MD[share_X[torch.randperm(len(share_X), generator=generator)[:count]]]
        self.vectors_KD[where_B] = begins_BD
        self.sum_KD[where_B] = begins_BD
        self.used_K[where_B] = 1.0
        self.in_views_K[where_B] = 0.0


def _nearest(z_MD: Tensor, vectors_KD: Tensor) -> Tensor:
    return nearest_code(z_MD.T[None, :, :, None], vectors_KD)[0, :, 0]
