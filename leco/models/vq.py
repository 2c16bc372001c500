"""What z_e passes on its way to the decoder, and what an observation's code is read from: VQ, or AE-LSH's bits.

Both have the same face: `forward` gives what the decoder sees and, as VQ layers do everywhere, the bottleneck's own terms of the
loss, whose mathematics is in leco/algo; `code` gives fixed-width bytes.

Shapes:

    N     observations, or distinct observations with multiplicities
    D     width of a code vector
    H, W  height and width of z_e
    K     codes in the codebook
    F     units of the bits' bottleneck
    P     bits of a code
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from leco.algo.hashes import binarisation_loss, lsh_code
from leco.algo.quantize import code_bytes, nearest_code, quantize
from leco.algo.ranks import part, world_size

BINARISATION = 10.0  # its weight beside the reconstruction
NOISE = 0.3


class BottleneckOutput(NamedTuple):
    """What came through.

    z_NDHW  for the decoder
    loss    to be added to the reconstruction's
    """

    z_NDHW: Tensor
    loss: Tensor


class VectorQuantizer(nn.Module):
    """VQ: the nearest of K vectors at each position.

    Args:
        codes: K.
        width: D.
        size: H and W.

    Attributes:
        vectors: [K, D], at first uniform in (-1/K, 1/K).
        code_width: Bytes of a code: H W, one a position.
    """

    def __init__(self, codes: int, width: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.code_width = size[0] * size[1]
        self.vectors = nn.Parameter(torch.empty(codes, width).uniform_(-1 / codes, 1 / codes))

    def forward(
        self,
        z_NDHW: Tensor,
        weight_N: Tensor | None = None,
        generator: torch.Generator | None = None,  # noqa: ARG002  # there is nothing random in it
    ) -> BottleneckOutput:
        """z_q, straight through; the codebook's and the commitment term.

        Args:
            z_NDHW: [N, D, H, W], z_e.
            weight_N: [N], how often each observation occurs in the batch; once, if not given.
            generator: Not used.
        """
        coded = quantize(z_NDHW, self.vectors, weight_N)
        return BottleneckOutput(coded.z_q_NDHW, coded.codebook_term + coded.commitment_term)

    def code(self, z_NDHW: Tensor) -> Tensor:
        """uint8 [N, H W]."""
        return code_bytes(nearest_code(z_NDHW, self.vectors))


class LSHBottleneck(nn.Module):
    """AE-LSH: a sigmoid bottleneck b(s), pressed towards bits; the code is sign(A . round(b)) with a fixed Gaussian A.

    Args:
        units: F.
        bits: P.
        width: D.
        size: H and W.

    Attributes:
        projection_PF: A. It never changes; it is saved and published with the networks' other buffers.
        code_width: Bytes of a code.
    """

    projection_PF: Tensor

    def __init__(self, units: int, bits: int, width: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.code_width = -(-bits // 8)
        self._shape = (width, *size)
        features = width * size[0] * size[1]
        self.narrow = nn.Linear(features, units)
        self.widen = nn.Linear(units, features)
        self.register_buffer("projection_PF", torch.randn(bits, units))

    def forward(
        self, z_NDHW: Tensor, weight_N: Tensor | None = None, generator: torch.Generator | None = None
    ) -> BottleneckOutput:
        """What the decoder sees of b(s), and the binarisation term.

        Args:
            z_NDHW: [N, D, H, W], z_e.
            weight_N: [N], how often each observation occurs in the batch; once, if not given.
            generator: Draws the noise in (-0.3, 0.3), one draw for each of the N; without it there is no noise.
        """
        b_NF = self._bottleneck(z_NDHW)
        told_NF = b_NF
        if generator is not None:
            shape = (len(b_NF) * world_size(), b_NF.shape[1])  # all ranks draw the same, and each takes its rows
            noise_NF = torch.rand(shape, generator=generator, dtype=b_NF.dtype, device=b_NF.device)[part()]
            told_NF = b_NF + NOISE * (2 * noise_NF - 1)
        z_back_NDHW = self.widen(told_NF).unflatten(1, self._shape)
        return BottleneckOutput(z_back_NDHW, BINARISATION * binarisation_loss(b_NF, weight_N))

    def code(self, z_NDHW: Tensor) -> Tensor:
        """uint8 [N, ceil(P / 8)]."""
        return lsh_code(self._bottleneck(z_NDHW), self.projection_PF)

    def _bottleneck(self, z_NDHW: Tensor) -> Tensor:
        if z_NDHW.shape[1:] != self._shape:
            raise ValueError(f"z must have shape [N, {', '.join(map(str, self._shape))}], not {list(z_NDHW.shape)}")
        return torch.sigmoid(self.narrow(z_NDHW.flatten(1)))
