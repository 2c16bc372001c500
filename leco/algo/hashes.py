"""The hashes beside VQ: an autoencoder's rounded bottleneck projected to bits (AE-LSH), plain downsampling (DSC) and whole
observations (exact).

Like `leco.algo.quantize.code_bytes` they give fixed-width bytes, equal for equal observations.

    N  observations        F  units of the bottleneck       P  bits of a code
    H W C  height, width and channels of an observation     h w  of the downsampled one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from leco.algo.dedup import as_words, hash_words
from leco.algo.losses import weighted_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

DIGEST_WIDTH = 16  # bytes


def lsh_code(bottleneck_NF: Tensor, projection_PF: Tensor) -> Tensor:
    """sign(A . round(b)) as bits, eight to a byte, the first bit lowest. Zero counts as positive. uint8 [N, ceil(P/8)].

    bottleneck_NF  b(s), in [0, 1]
    projection_PF  A, fixed and Gaussian
    """
    if bottleneck_NF.ndim != 2 or projection_PF.ndim != 2 or bottleneck_NF.shape[1] != projection_PF.shape[1]:
        raise ValueError(
            f"bottleneck_NF has shape {tuple(bottleneck_NF.shape)} and projection_PF {tuple(projection_PF.shape)}, "
            "expected [N, F] and [P, F]"
        )
    # In float64, where sums of so few numbers are exact enough that no sign depends on the size of the batch.
    bits_NP = (bottleneck_NF.round().double() @ projection_PF.double().T) >= 0
    return pack_bits(bits_NP)


def pack_bits(bits_NP: Tensor) -> Tensor:
    """Bits, eight to a byte, the first one lowest: uint8 [N, ceil(P/8)]."""
    bytes_ = -(-bits_NP.shape[1] // 8)
    padded_N8 = bits_NP.new_zeros(len(bits_NP), bytes_ * 8)
    padded_N8[:, : bits_NP.shape[1]] = bits_NP
    powers_8 = 1 << torch.arange(8, device=bits_NP.device)
    return (padded_N8.view(-1, bytes_, 8) * powers_8).sum(-1).to(torch.uint8)


def binarisation_loss(bottleneck_NF: Tensor, weight_N: Tensor | None = None) -> Tensor:
    """mean min(b^2, (1 - b)^2): how far the bottleneck is from bits.

    weight_N  how many equal observations each row stands for
    """
    return weighted_mean(torch.minimum(bottleneck_NF.square(), (1 - bottleneck_NF).square()), weight_N)


def dsc_code(observation_NHWC: Tensor, *, size: tuple[int, int], levels: int, maximum: Sequence[int]) -> Tensor:
    """Nearest-neighbour downsampling, each channel rescaled to 0 .. levels-1. uint8 [N, h * w * C].

    observation_NHWC  uint8
    size              h and w
    levels            how many values are told apart in a channel, at most 256
    maximum           the largest value of each channel
    """
    if observation_NHWC.ndim != 4 or observation_NHWC.shape[3] != len(maximum):
        raise ValueError(
            f"observation_NHWC has shape {tuple(observation_NHWC.shape)}, expected [N, H, W, {len(maximum)}], "
            "one maximum for each channel"
        )
    if not 1 <= levels <= 256:
        raise ValueError(f"levels is {levels}, expected 1 to 256: a value is one byte")
    _, height, width, _ = observation_NHWC.shape
    device = observation_NHWC.device
    rows_h = torch.arange(size[0], device=device) * height // size[0]
    columns_w = torch.arange(size[1], device=device) * width // size[1]
    small_NhwC = observation_NHWC[:, rows_h][:, :, columns_w].int()
    values = torch.tensor(maximum, device=device, dtype=torch.int32) + 1
    return (small_NhwC * levels // values).clamp(max=levels - 1).to(torch.uint8).flatten(1)


def bins_code(number_NF: Tensor, levels: int) -> Tensor:
    """Which of so many equal bins between -1 and 1 each number is in. uint8 [N, F].

    number_NF  float; what is beyond -1 or 1 counts as that
    levels     how many bins, at most 256
    """
    if not 1 <= levels <= 256:
        raise ValueError(f"levels is {levels}, expected 1 to 256: a value is one byte")
    return ((number_NF + 1) * (levels / 2)).floor().clamp(0, levels - 1).to(torch.uint8)


def digest(observation_NO: Tensor, salt: int = 0) -> Tensor:
    """A digest of 128 bits of the whole observation, or of any other bytes: uint8 [N, 16]. Those of other salts are unrelated.

    Two different observations share one with a probability of 2^-128, so that none do in practice; the observation itself would
    be ten times as long, in every message and in every table.
    """
    if observation_NO.dtype != torch.uint8 or observation_NO.ndim < 2:
        raise ValueError(
            f"observations must be uint8 of shape [N, O...], not {observation_NO.dtype} of shape {list(observation_NO.shape)}"
        )
    words_NW = as_words(observation_NO)
    return torch.stack([hash_words(words_NW, 2 * salt + half) for half in (0, 1)], 1).view(torch.uint8)
