"""What encoders and decoders of a learned hash are made of: observation -> z_e, and z_q -> reconstructed observation.

Every block takes the multiplicities of its samples, for its batch norms. A convolution before a batch norm has no bias,
which the norm would take away again. Activations stay in torch's `channels_last` memory format, in which observations
arrive and in which CPU and GPU convolve fastest.

Shapes:

    N     observations
    D     width of every layer, and of a code vector
    H, W  height and width of what a layer takes or gives
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from leco.algo.losses import reconstruction_loss, weight_total
from leco.models.pieces import pieces, sum_pieces
from leco.models.precision import convolution_dtype
from leco.models.weighted_norm import Normed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Scale(nn.Module):
    """Turns integer observations into the images that are encoded and reconstructed.

    Args:
        shape: Height, width and channels of an observation.
        maximum: The largest value of each channel.
        size: Height and width of the image.
    """

    maximum_C: Tensor

    def __init__(self, shape: tuple[int, int, int], maximum: Sequence[float], size: tuple[int, int]) -> None:
        super().__init__()
        self._shape = shape
        self._size = size
        self.register_buffer("maximum_C", torch.tensor(maximum, dtype=torch.get_default_dtype()), persistent=False)

    def forward(self, observation_NHWC: Tensor) -> Tensor:
        """[N, H, W, C] integers from 0 to the channel's maximum -> [N, C, *size] in [-1, 1], bilinearly resized."""
        if observation_NHWC.shape[1:] != self._shape:
            raise ValueError(
                f"observations must have shape [N, {', '.join(map(str, self._shape))}], not {list(observation_NHWC.shape)}"
            )
        scaled_NCHW = (observation_NHWC.to(self.maximum_C.dtype) * (2 / self.maximum_C) - 1).permute(0, 3, 1, 2)
        return functional.interpolate(scaled_NCHW, self._size, mode="bilinear", align_corners=False)


class Chain(nn.ModuleList):
    """Blocks one after another, each given the multiplicities."""

    def forward(self, x_NDHW: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """[N, ., H, W] -> what the last block gives."""
        for block in self:
            x_NDHW = block(x_NDHW, weight_N)
        return x_NDHW


class Resized(nn.Module):
    """A block that changes the resolution, added to a linear path that skips it."""

    def __init__(self, block: Normed, skip: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.skip = skip

    def forward(self, x_NDHW: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """[N, ., H, W] -> [N, D, H/2, W/2] or [N, D, 2H, 2W]."""
        y_NDHW: Tensor = self.block(x_NDHW, weight_N, self.skip)
        return y_NDHW


class Residual(nn.Module):
    """x + [ReLU, Conv 3x3, BN, ReLU, Conv 1x1, BN]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = Normed(nn.Conv2d(width, width, 3, padding=1, bias=False), relu=True)
        self.outer = Normed(nn.Conv2d(width, width, 1, bias=False), relu=False)

    def forward(self, x_NDHW: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """[N, D, H, W] -> the same shape."""
        y_NDHW: Tensor = x_NDHW + self.outer(self.inner(functional.relu(x_NDHW), weight_N), weight_N)
        return y_NDHW


def encode(scale: nn.Module, encoder: Chain, observation_NO: Tensor, weight_N: Tensor | None) -> Tensor:
    """z_e: [N, O...] -> [N, D, H, W]. With multiplicities, in which it learns, as `leco.models.precision` says."""
    parameter = next(encoder.parameters())
    dtype = parameter.dtype if weight_N is None else convolution_dtype(parameter)
    slices = list(pieces(len(observation_NO), observation_NO[0].numel(), observation_NO.device))
    image_NCHW = torch.cat([scale(observation_NO[each]).to(dtype) for each in slices])
    z_NDHW: Tensor = encoder(image_NCHW, weight_N)
    return z_NDHW.to(parameter.dtype)


class Decoder(nn.Module):
    """Blocks, then one layer to the channels of the image, then tanh."""

    def __init__(self, blocks: Sequence[nn.Module], last: nn.Conv2d | nn.ConvTranspose2d) -> None:
        super().__init__()
        self.blocks = Chain(blocks)
        self.last = last

    def forward(self, z_NDHW: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """[N, D, H, W] -> the reconstructed image [N, C, ., .], in (-1, 1)."""
        return torch.tanh(self.last(self.blocks(_channels_last(z_NDHW), weight_N)))

    def reconstruction_loss(
        self, z_NDHW: Tensor, weight_N: Tensor, target: Callable[[slice], Tensor], elements: int
    ) -> Tensor:
        """`leco.algo.losses.reconstruction_loss` of what it makes of z.

        target gives the images of a piece of the samples, which have so many elements each.
        """
        last, weight_N = dict(self.last.named_parameters()), weight_N.to(z_NDHW.dtype)
        total = weight_total(weight_N)
        y_NDHW = self.blocks(_channels_last(z_NDHW).to(convolution_dtype(self.last.weight)), weight_N)

        def loss(y_PDHW: Tensor, piece: slice, *parameters: Tensor) -> Tensor:
            lowered = {name: each.to(y_PDHW.dtype) for name, each in zip(last, parameters, strict=True)}
            picture_PCHW = torch.tanh(functional_call(self.last, lowered, y_PDHW).to(weight_N.dtype))
            return reconstruction_loss(picture_PCHW, target(piece), weight_N[piece], total)

        slices = list(pieces(len(y_NDHW), max(elements, y_NDHW[0].numel()), y_NDHW.device))
        return sum_pieces(loss, y_NDHW, list(last.values()), slices)


def _channels_last(z_NDHW: Tensor) -> Tensor:
    return z_NDHW.contiguous(memory_format=torch.channels_last)


def down(channels: int, width: int) -> Resized:
    """Halves height and width."""
    block = Normed(nn.Conv2d(channels, width, 4, 2, 1, bias=False), relu=True)
    return Resized(block, nn.Sequential(nn.AvgPool2d(4, 2, 1), nn.Conv2d(channels, width, 1)))


def up(width: int) -> Resized:
    """Doubles height and width. The nearest neighbour, for its gradient is deterministic on every device."""
    block = Normed(nn.ConvTranspose2d(width, width, 4, 2, 1, bias=False), relu=True)
    return Resized(block, nn.Sequential(nn.Conv2d(width, width, 1), nn.Upsample(scale_factor=2, mode="nearest")))
