"""What is in the bytes of an observation: an image, numbers, and which actions may be taken.

N     observations
O...  shape of one observation
A     actions of the task
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from leco.models.kinds.table import Kind


def without_mask(kind: Kind, observation_NO: Tensor) -> Tensor:
    """What a network of the kind reads: all but the action mask. An image, or a row of bytes that has numbers. [..., O...]."""
    if kind.layout is None or not kind.layout.actions:
        return observation_NO
    bare_NX = observation_NO[..., : -kind.layout.actions]
    return bare_NX if kind.layout.numbers else bare_NX.reshape(*bare_NX.shape[:-1], *kind.shape)


def image_of(kind: Kind, observation_NO: Tensor) -> Tensor | None:
    """The image, uint8 [N, height, width, channels]; None where there is none."""
    if kind.layout is None:
        return observation_NO
    if kind.layout.image is None:
        return None
    return observation_NO.flatten(1)[:, : kind.layout.image_bytes].reshape(-1, *kind.layout.image)


def numbers_of(kind: Kind, observation_NO: Tensor) -> Tensor | None:
    """The numbers, float32 [N, F]; None where there are none."""
    if kind.layout is None or not kind.layout.numbers:
        return None
    begin = kind.layout.image_bytes
    row_NX = observation_NO[:, begin : begin + 4 * kind.layout.numbers]
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]  # `leco export`
        return single_of_bytes(row_NX.reshape(-1, kind.layout.numbers, 4))
    return row_NX.clone(memory_format=torch.contiguous_format).view(torch.float32)


def single_of_bytes(byte_N4: Tensor) -> Tensor:
    """The float32 of four little-endian bytes, by arithmetic, for runtimes that cannot see bytes as a number. [..., 4] -> [...].

    Exact; but numbers below 1e-38 count as 0.
    """
    first, second, third, fourth = byte_N4.to(torch.int64).unbind(-1)
    exponent = fourth % 128 * 2 + third // 128
    fraction = (third % 128 * 65536 + second * 256 + first).to(torch.float32) / 8388608
    size = (1 + fraction) * torch.pow(2.0, (exponent - 127).to(torch.float32))
    return torch.where(exponent == 0, 0.0, torch.where(fourth < 128, size, -size))


def squashed(number_NF: Tensor) -> Tensor:
    """Numbers of any size to -1..1, for what needs bounds."""
    return number_NF.tanh()
