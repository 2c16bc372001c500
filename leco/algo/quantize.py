"""Vector quantisation: from what the encoder says of an observation to the nearest vectors of a codebook.

N    observations; where a batch was reduced to distinct ones, row n stands for weight_N[n] equal ones
D    length of a code vector
H W  spatial positions
K    vectors in the codebook
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from leco.algo.losses import weighted_mean


class Quantized(NamedTuple):
    """What quantisation gives. The two terms are scalars, to be added to the reconstruction loss with weight 1.

    z_q_NDHW         exactly the codebook's vectors; its gradient goes to z as if nothing had happened
    index_NHW        int64, which vector of the codebook it was
    codebook_term    mean (sg[z] - z_q)^2, which moves the codebook
    commitment_term  mean (z - sg[z_q])^2, which moves the encoder
    """

    z_q_NDHW: Tensor
    index_NHW: Tensor
    codebook_term: Tensor
    commitment_term: Tensor


def nearest_code(z_NDHW: Tensor, codebook_KD: Tensor) -> Tensor:
    """The index of the nearest vector of the codebook at each position; the lowest, if several are. int64 [N, H, W].

    Each distance is computed by itself and not through a matrix product, whose rounding depends on the size of the
    batch: an observation's code must not depend on what else was in the batch.
    """
    if z_NDHW.ndim != 4 or codebook_KD.ndim != 2 or z_NDHW.shape[1] != codebook_KD.shape[1]:
        raise ValueError(
            f"z_NDHW has shape {tuple(z_NDHW.shape)} and codebook_KD {tuple(codebook_KD.shape)}, "
            "expected [N, D, H, W] and [K, D]"
        )
    if not 1 <= len(codebook_KD) <= 256:
        raise ValueError(f"the codebook has {len(codebook_KD)} vectors, expected 1 to 256: an index is one byte")
    z_NHWD = z_NDHW.detach().permute(0, 2, 3, 1)
    distance_PK = torch.cdist(
        z_NHWD.reshape(-1, z_NHWD.shape[-1]), codebook_KD.detach(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    return distance_PK.argmin(dim=1).reshape(z_NHWD.shape[:-1])


def quantize(z_NDHW: Tensor, codebook_KD: Tensor, weight_N: Tensor | None = None) -> Quantized:
    """Replace each vector of z by the nearest of the codebook, with the last two terms of eq. 2.

    (The printed equation has the signs of both terms flipped: they are minimised, like the reconstruction's error.)

    weight_N  how many equal observations each row stands for; the terms are means over all of them
    """
    index_NHW = nearest_code(z_NDHW, codebook_KD)
    code_NDHW = embedding(index_NHW, codebook_KD).permute(0, 3, 1, 2)
    # z - sg[z] is exactly 0, so the decoder sees the codebook's vectors to the last bit; z + sg[code - z] would round.
    z_q_NDHW = code_NDHW.detach() + (z_NDHW - z_NDHW.detach())
    codebook_term = weighted_mean((code_NDHW - z_NDHW.detach()).square(), weight_N)
    commitment_term = weighted_mean((z_NDHW - code_NDHW.detach()).square(), weight_N)
    return Quantized(z_q_NDHW, index_NHW, codebook_term, commitment_term)


def code_bytes(index_NHW: Tensor) -> Tensor:
    """The code of each observation as bytes: one for each position, row by row. uint8 [N, H * W], contiguous."""
    if index_NHW.ndim != 3:
        raise ValueError(f"index_NHW has shape {tuple(index_NHW.shape)}, expected [N, H, W]")
    if index_NHW.numel() and not 0 <= int(index_NHW.min()) <= int(index_NHW.max()) <= 255:
        raise ValueError(
            f"indices go from {int(index_NHW.min())} to {int(index_NHW.max())}, expected 0 to 255: an index is one byte"
        )
    return index_NHW.to(torch.uint8).flatten(1).contiguous()
