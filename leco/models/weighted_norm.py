"""A convolution and its batch norm, over distinct samples that stand for several equal ones.

The norm needs the whole batch: nothing can be normalised before all samples are convolved, and no gradient goes back before those
of mean and variance are known. Both are sums over samples, so the rest is done a few samples at a time. What is kept for the
gradient is the input, and in a small batch what the convolution made of it, which a large one makes again.

Shapes:

    N, C, H, W  samples, channels, height, width; B, h, w of what is convolved
    P           samples of a piece
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from leco.algo.ranks import all_sum
from leco.models.convolutions import Layers
from leco.models.pieces import pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_KEPT = 1 << 26  # bytes of what a convolution made, up to which it is kept
_aten = torch.ops.aten


class Normed(nn.Module):
    """A convolution and its batch norm, then perhaps a ReLU, and perhaps a linear path that skips them all and is added.

    Values, gradients and running statistics are those of `torch.nn.BatchNorm2d` on the batch with every sample repeated as often
    as its weight says, without repeating any: `mean = sum(w x) / n`, `var = sum(w (x - mean)^2) / n` with `n = H W sum(w)`, and
    the running variance takes `var n / (n - 1)`. Without weights, and in evaluation mode, it is `BatchNorm2d`. With weights it
    can be differentiated once, backwards.

    Samples may be of bfloat16: kernels are then rounded to it, and moments and the gradients of parameters stay float32.

    Where several ranks have each a part of the samples (`leco.algo.ranks`), mean and variance are those of all.

    Args:
        convolution: What is normalised, without a bias, which the norm would take away again.
        relu: Whether a ReLU follows.
    """

    def __init__(self, convolution: nn.Conv2d | nn.ConvTranspose2d, *, relu: bool) -> None:
        super().__init__()
        self.convolution = convolution
        self.norm = nn.BatchNorm2d(convolution.out_channels)
        self._relu = relu

    def forward(self, x_NBhw: Tensor, weight_N: Tensor | None = None, skip: nn.Module | None = None) -> Tensor:
        """[N, B, h, w] -> [N, C, H, W].

        Args:
            x_NBhw: The samples.
            weight_N: [N], how many equal samples each stands for; a sample of weight zero leaves no trace on the others.
                The weights must not all be zero, and are not differentiated.
            skip: A linear layer or several, of which what they make of the samples is added.
        """
        if x_NBhw.ndim != 4 or x_NBhw.shape[1] != self.convolution.in_channels:
            raise ValueError(
                f"samples must have shape [N, {self.convolution.in_channels}, H, W], not {list(x_NBhw.shape)}"
            )
        if weight_N is not None and weight_N.shape != x_NBhw.shape[:1]:
            raise ValueError(f"weights must have shape [{len(x_NBhw)}], one a sample, not {list(weight_N.shape)}")
        if weight_N is None or not self.training:
            y_NCHW: Tensor = self.norm(self.convolution(x_NBhw))
            y_NCHW = functional.relu_(y_NCHW) if self._relu else y_NCHW
            return y_NCHW if skip is None else y_NCHW + skip(x_NBhw)
        norm, weight_N = self.norm, weight_N.to(self.norm.weight.dtype)
        total, skipping = all_sum(weight_N.sum()), {} if skip is None else dict(skip.named_parameters())
        layers = Layers(self.convolution, self._relu, skip, tuple(skipping))
        tensors = [x_NBhw, weight_N / total, self.convolution.weight, norm.weight, norm.bias]
        if (
            skip is not None and len(_slices(layers, x_NBhw)) > 1
        ):  # of one piece autograd keeps what the path is made of
            y_NCHW, mean_C, var_C = _normalise(layers, [*tensors, *skipping.values()])
        else:
            y_NCHW, mean_C, var_C = _normalise(layers._replace(skip=None, names=()), tensors)
            y_NCHW = y_NCHW if skip is None else y_NCHW + layers.skipped(x_NBhw, [*skipping.values()])
        n = total * y_NCHW.shape[2] * y_NCHW.shape[3]
        with torch.no_grad():
            assert norm.running_mean is not None  # noqa: S101  # for mypy: it is
            assert norm.running_var is not None  # noqa: S101
            assert norm.num_batches_tracked is not None  # noqa: S101
            norm.running_mean.lerp_(mean_C, _MOMENTUM)
            norm.running_var.lerp_(var_C * (n / (n - 1)), _MOMENTUM)
            norm.num_batches_tracked.add_(1)
        return y_NCHW


_EPS, _MOMENTUM = 1e-5, 0.1  # of nn.BatchNorm2d


def _normalise(layers: Layers, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """y, and mean and variance of what was convolved."""
    outputs: tuple[Tensor, Tensor, Tensor] = _Normalise.apply(layers, *tensors)  # type: ignore[no-untyped-call]
    return outputs


class _Normalise(torch.autograd.Function):
    """y = relu(g h + b) + skip(x), with h = (c - mean) / s, s = sqrt(var + eps), where c is what the convolution made of x.

    By hand, because what autograd makes of these formulas reads and writes the batch far more often. Let dn be the gradient of
    g h + b of a sample, all its copies together. Then

        db = sum(dn),   dg = sum(dn h),   dc = g / s (dn - share / (H W) (db + h dg))

    In dc, db and dg are sums over all ranks; as gradients they are this rank's part.
    """

    @staticmethod
    def forward(
        ctx: Any, layers: Layers, x_NBhw: Tensor, share_N: Tensor, kernel: Tensor, *others: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gain_C, bias_C, *skipping = others
        slices = _slices(layers, x_NBhw)
        c_NCHW = _convolved(layers, x_NBhw, kernel, slices)
        norm = _Norm(*_moments(c_NCHW, share_N, slices), gain_C, bias_C)
        kept = c_NCHW.nbytes <= _KEPT

        def finish(each: slice) -> Tensor:
            """y of a piece."""
            y_PCHW = norm.apply(c_NCHW[each])
            y_PCHW = y_PCHW.relu_() if layers.relu else y_PCHW
            return y_PCHW if layers.skip is None else y_PCHW.add_(layers.skipped(x_NBhw[each], skipping))

        if len(slices) == 1:
            y_NCHW = finish(slices[0])
        else:
            y_NCHW = torch.empty_like(c_NCHW) if kept else c_NCHW
            for each in slices:
                y_NCHW[each] = finish(each)
        ctx.save_for_backward(x_NBhw, c_NCHW if kept else None, share_N, kernel, *norm, *skipping)
        ctx.layers = layers
        ctx.mark_non_differentiable(norm.mean_C, norm.var_C)
        return y_NCHW, norm.mean_C, norm.var_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_NCHW: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        layers: Layers = ctx.layers
        x_NBhw, c_NCHW, share_N, kernel, *others = ctx.saved_tensors
        norm, skipping = _Norm(*others[:4]), others[4:]
        slices, to_x = _slices(layers, x_NBhw), ctx.needs_input_grad[1]
        c_NCHW = _convolved(layers, x_NBhw, kernel, slices) if c_NCHW is None else c_NCHW

        def through_relu(each: slice) -> Tensor:
            """dn of a piece."""
            if not layers.relu:
                return dy_NCHW[each]
            dn_PCHW: Tensor = _aten.threshold_backward(dy_NCHW[each], norm.apply(c_NCHW[each]), 0)
            return dn_PCHW

        dns: Iterable[Tensor] = [through_relu(slices[0])] if len(slices) == 1 else map(through_relu, slices)
        sums = [norm.gradients(c_NCHW[each], dn_PCHW) for each, dn_PCHW in zip(slices, dns, strict=True)]
        dgain_C, dbias_C = (torch.stack(each).sum(0) for each in zip(*sums, strict=True))
        all_dgain_C, all_dbias_C = all_sum(torch.stack([dgain_C, dbias_C]))
        back = norm.backwards(all_dgain_C, all_dbias_C, c_NCHW.shape[2] * c_NCHW.shape[3])
        dx_NBhw = torch.empty_like(x_NBhw) if to_x else None
        grads = [torch.zeros_like(each) for each in (kernel, *skipping)]
        dns = dns if len(slices) == 1 else map(through_relu, slices)  # made anew, in a large batch
        for each, dn_PCHW in zip(slices, dns, strict=True):
            x_PBhw = x_NBhw[each]
            dc_PCHW = back(c_NCHW[each], dn_PCHW, share_N[each]).to(x_NBhw.dtype)
            dx_PBhw, dkernel = layers.convolve_back(dc_PCHW, x_PBhw, kernel, to_x=to_x)
            found = [dkernel]
            if dx_NBhw is not None and dx_PBhw is not None:
                dx_NBhw[each] = dx_PBhw
            if layers.skip is not None:
                past_PBhw, more = layers.skip_back(dy_NCHW[each], x_PBhw, skipping, to_x=to_x)
                found += more
                if dx_NBhw is not None and past_PBhw is not None:
                    dx_NBhw[each] += past_PBhw
            for grad, more_of_it in zip(grads, found, strict=True):
                grad.add_(more_of_it)
        return None, dx_NBhw, None, grads[0], dgain_C, dbias_C, *grads[1:]


class _Norm(NamedTuple):
    """Of float32 or float64, whatever the samples are of."""

    mean_C: Tensor
    var_C: Tensor
    gain_C: Tensor
    bias_C: Tensor

    def apply(self, c_PCHW: Tensor) -> Tensor:
        """g h + b."""
        return functional.batch_norm(c_PCHW, *self, training=False, eps=_EPS)

    def gradients(self, c_PCHW: Tensor, dn_PCHW: Tensor) -> tuple[Tensor, Tensor]:
        """A piece's part in dg and db."""
        _, dgain_C, dbias_C = _aten.native_batch_norm_backward(
            dn_PCHW, c_PCHW, self.gain_C, self.mean_C, self.var_C, None, None, False, _EPS, [False, True, True]
        )
        return dgain_C, dbias_C

    def backwards(self, dgain_C: Tensor, dbias_C: Tensor, positions: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """dc of a piece as a function of c, dn and the shares, when dg and db of all samples are known."""
        scale_C = torch.rsqrt(self.var_C + _EPS)
        own_C11 = (self.gain_C * scale_C)[:, None, None]
        slope_C = self.gain_C * scale_C.square() * dgain_C / positions
        offset_C11 = (self.gain_C * scale_C * dbias_C / positions - slope_C * self.mean_C)[:, None, None]
        slope_C11 = slope_C[:, None, None]

        def back(c_PCHW: Tensor, dn_PCHW: Tensor, share_P: Tensor) -> Tensor:
            common_PCHW = torch.addcmul(offset_C11, c_PCHW.to(slope_C.dtype), slope_C11)
            return (dn_PCHW * own_C11).addcmul_(common_PCHW, share_P[:, None, None, None], value=-1)

        return back


def _slices(layers: Layers, x_NBhw: Tensor) -> list[slice]:
    elements = max(math.prod(layers.shape(x_NBhw)[1:]), math.prod(x_NBhw.shape[1:]))
    return list(pieces(len(x_NBhw), elements, x_NBhw.device))


def _convolved(layers: Layers, x_NBhw: Tensor, kernel: Tensor, slices: Sequence[slice]) -> Tensor:
    if len(slices) == 1:
        return layers.convolve(x_NBhw, kernel)
    c_NCHW = torch.empty(
        layers.shape(x_NBhw), dtype=x_NBhw.dtype, device=x_NBhw.device, memory_format=torch.channels_last
    )
    for each in slices:
        c_NCHW[each] = layers.convolve(x_NBhw[each], kernel)
    return c_NCHW


def _moments(c_NCHW: Tensor, share_N: Tensor, slices: Sequence[slice]) -> tuple[Tensor, Tensor]:
    """Mean [C] and biased variance [C] of the samples, whose shares [N] sum to one over all ranks.

    In one pass, from distances to the first sample's mean, so that a channel that is far from zero keeps its digits.
    """
    near_C = c_NCHW[0].to(share_N.dtype).mean((1, 2))
    first_C, second_C = torch.zeros_like(near_C), torch.zeros_like(near_C)
    positions = c_NCHW.shape[2] * c_NCHW.shape[3]
    for each in slices:
        distance_PHWC = c_NCHW[each].permute(0, 2, 3, 1).to(share_N.dtype) - near_C
        distance_MC = distance_PHWC.reshape(-1, len(near_C))
        share_M = (share_N[each] / positions).repeat_interleave(positions)
        first_C += share_M @ distance_MC
        second_C += share_M @ distance_MC.square_()
    own = share_N.sum()
    mean_C = all_sum(own * near_C + first_C)
    off_C = near_C - mean_C
    return mean_C, all_sum(second_C + 2 * off_C * first_C + own * off_C.square()).clamp_(min=0)
