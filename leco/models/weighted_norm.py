"""Batch normalisation of distinct samples that stand for several equal ones.

Shapes:

    N, C, H, W  samples, channels, height, width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from leco.algo.ranks import all_sum

_EPS = 1e-5
_MOMENTUM = 0.1


class WeightedBatchNorm2d(nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` over a batch in which each sample stands for `weight_N` equal ones.

    Values, gradients and running statistics are those of `BatchNorm2d` on the batch with every sample repeated that often,
    without repeating any: `mean = sum(w x) / n`, `var = sum(w (x - mean)^2) / n` with `n = H W sum(w)`, and the running
    variance takes `var n / (n - 1)`. Without weights, and in evaluation mode, it is `BatchNorm2d`. Its parameters and
    buffers have the same names. With weights it can be differentiated once, backwards.

    Where several ranks have each a part of the samples (`leco.algo.ranks`), mean and variance are those of all.

    Args:
        channels: C.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=_EPS, momentum=_MOMENTUM)

    def forward(self, x_NCHW: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """Normalises the samples.

        Args:
            x_NCHW: [N, C, H, W], the samples.
            weight_N: [N], how many equal samples each stands for; a sample of weight zero leaves no trace on the others.
                The weights must not all be zero, and are not differentiated.

        Returns:
            [N, C, H, W]
        """
        if x_NCHW.ndim != 4 or x_NCHW.shape[1] != self.num_features:
            raise ValueError(f"samples must have shape [N, {self.num_features}, H, W], not {list(x_NCHW.shape)}")
        if weight_N is not None and weight_N.shape != x_NCHW.shape[:1]:
            raise ValueError(f"weights must have shape [{len(x_NCHW)}], one a sample, not {list(weight_N.shape)}")
        if weight_N is None or not self.training:
            return super().forward(x_NCHW)
        weight_N = weight_N.to(x_NCHW.dtype)
        total = all_sum(weight_N.sum())
        y_NCHW, mean_C, var_C = _normalise(x_NCHW, weight_N / total, self.weight, self.bias)
        n = total * x_NCHW.shape[2] * x_NCHW.shape[3]
        with torch.no_grad():
            self.running_mean.lerp_(mean_C, _MOMENTUM)
            self.running_var.lerp_(var_C * (n / (n - 1)), _MOMENTUM)
            self.num_batches_tracked.add_(1)
        return y_NCHW


def _moments(x_NCHW: Tensor, share_N: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [C] and biased variance [C] of the samples, whose shares [N] sum to one over all ranks.

    Summing over a sample's positions first leaves only [N, C] to weight. The squares are those of distances to the mean: a
    difference of two large means would lose the digits of a channel that is far from zero.
    """
    mean_C = all_sum(share_N @ x_NCHW.mean((2, 3)))
    return mean_C, all_sum(share_N @ (x_NCHW - mean_C[:, None, None]).square_().mean((2, 3)))


class _Normalise(torch.autograd.Function):
    """y = g h + b with h = (x - mean) / s and s = sqrt(var + eps), where mean and variance are those of x with its shares.

    By hand, because what autograd makes of the formulas above reads and writes the batch far more often, which took a third of
    a training step. Let dy be the gradient of a sample, all its copies together. Then

        db = sum(dy),   dg = sum(dy h),   dx = g / s (dy - share / (H W) (db + h dg))

    and the fused kernels of torch for a batch norm with fixed statistics give db, dg and the first term of dx. In dx, db and dg
    are sums over all ranks; as gradients they are this rank's part.
    """

    @staticmethod
    def forward(
        ctx: Any, x_NCHW: Tensor, share_N: Tensor, gain_C: Tensor, bias_C: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean_C, var_C = _moments(x_NCHW, share_N)
        ctx.save_for_backward(x_NCHW, share_N, gain_C, mean_C, var_C)
        ctx.mark_non_differentiable(mean_C, var_C)
        y_NCHW = functional.batch_norm(x_NCHW, mean_C, var_C, gain_C, bias_C, training=False, eps=_EPS)
        return y_NCHW, mean_C, var_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_NCHW: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x_NCHW, share_N, gain_C, mean_C, var_C = ctx.saved_tensors
        dx_NCHW, dgain_C, dbias_C = torch.ops.aten.native_batch_norm_backward(
            dy_NCHW, x_NCHW, gain_C, mean_C, var_C, None, None, False, _EPS, [True, True, True]
        )
        scale_C = torch.rsqrt(var_C + _EPS)
        all_dgain_C, all_dbias_C = all_sum(torch.stack([dgain_C, dbias_C]))
        slope_C = gain_C * scale_C.square() * all_dgain_C
        offset_C = gain_C * scale_C * all_dbias_C - slope_C * mean_C
        common_NCHW = torch.addcmul(offset_C[:, None, None], x_NCHW, slope_C[:, None, None])
        dx_NCHW.addcmul_(common_NCHW, share_N[:, None, None, None], value=-1 / (x_NCHW.shape[2] * x_NCHW.shape[3]))
        return dx_NCHW, None, dgain_C, dbias_C


def _normalise(x_NCHW: Tensor, share_N: Tensor, gain_C: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of which each has a share, normalised; and their mean [C] and biased variance [C], which are constants."""
    outputs: tuple[Tensor, Tensor, Tensor] = _Normalise.apply(x_NCHW, share_N, gain_C, bias_C)  # type: ignore[no-untyped-call]
    return outputs
