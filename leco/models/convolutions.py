"""A convolution without a bias and a linear path beside it, forwards and backwards, as functions of some samples.

Samples may be of a smaller type than the parameters, which are then rounded to it.

Shapes:

    P           samples of a piece; N, all of a batch
    C, H, W     channels, height, width of what the convolution makes; B, h, w of what it is given
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

if TYPE_CHECKING:
    from collections.abc import Sequence

_aten = torch.ops.aten


class Layers(NamedTuple):
    """What they are, without the numbers.

    convolution  its kernel is an argument everywhere
    relu         whether a ReLU follows the norm
    skip         the linear path, if there is one
    names        of its parameters, in the order in which they are given
    """

    convolution: nn.Conv2d | nn.ConvTranspose2d
    relu: bool
    skip: nn.Module | None
    names: tuple[str, ...]

    def convolve(self, x_PBhw: Tensor, kernel: Tensor) -> Tensor:
        """[P, B, h, w] -> [P, C, H, W]."""
        convolved: Tensor = _aten.convolution(x_PBhw, kernel.to(x_PBhw.dtype), None, *self._arguments())
        return convolved

    def convolve_back(
        self, dc_PCHW: Tensor, x_PBhw: Tensor, kernel: Tensor, *, to_x: bool
    ) -> tuple[Tensor | None, Tensor]:
        """The gradients of x, if it is to have one, and of the kernel."""
        kernel, mask = kernel.to(x_PBhw.dtype), [to_x, True, False]
        dx, dkernel, _ = _aten.convolution_backward(dc_PCHW, x_PBhw, kernel, None, *self._arguments(), mask)
        return dx, dkernel

    def skipped(self, x_PBhw: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """What the linear path makes of them: [P, B, h, w] -> [P, C, H, W]."""
        assert self.skip is not None  # noqa: S101  # who asks has one
        lowered = {name: each.to(x_PBhw.dtype) for name, each in zip(self.names, parameters, strict=True)}
        past: Tensor = functional_call(self.skip, lowered, x_PBhw)
        return past

    def skip_back(
        self, dy_PCHW: Tensor, x_PBhw: Tensor, parameters: Sequence[Tensor], *, to_x: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """The gradients of x, if it is to have one, and of these parameters."""
        x_PBhw, leaves = x_PBhw.detach().requires_grad_(to_x), [each.detach().requires_grad_() for each in parameters]
        with torch.enable_grad():
            past = self.skipped(x_PBhw, leaves)
        found = list(torch.autograd.grad(past, [x_PBhw, *leaves] if to_x else leaves, dy_PCHW))
        return (found[0], found[1:]) if to_x else (None, found)

    def shape(self, x_NBhw: Tensor) -> tuple[int, ...]:
        """Of what the convolution makes of all samples."""
        layer = self.convolution
        edges = cast("tuple[int, int]", layer.padding)
        sides = zip(x_NBhw.shape[2:], layer.kernel_size, layer.stride, edges, strict=True)
        if layer.transposed:
            made = [(side - 1) * step - 2 * edge + kernel for side, kernel, step, edge in sides]
        else:
            made = [(side + 2 * edge - kernel) // step + 1 for side, kernel, step, edge in sides]
        return len(x_NBhw), layer.out_channels, *made

    def _arguments(self) -> tuple[Any, ...]:
        layer = self.convolution
        return layer.stride, layer.padding, layer.dilation, layer.transposed, layer.output_padding, layer.groups
