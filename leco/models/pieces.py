"""Large batches a few samples at a time, so that memory does not grow with the batch, and activations stay in the cache.

N  samples
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ELEMENTS = {"cpu": 1 << 22}  # of the largest activation: some megabytes, as caches have
_ON_GPUS = 1 << 28


def pieces(samples: int, elements: int, device: torch.device) -> Iterator[slice]:
    """Slices of a batch, each with as many samples as fit.

    Args:
        samples: In the batch.
        elements: Of the largest activation of one sample.
        device: Where it is.
    """
    size = max(_ELEMENTS.get(device.type, _ON_GPUS) // max(elements, 1), 1)
    for begin in range(0, samples, size):
        yield slice(begin, min(begin + size, samples))


def map_pieces(
    act: Callable[..., Tensor], x_N: Tensor, parameters: Sequence[Tensor], slices: Sequence[slice]
) -> Tensor:
    """`act(x, *parameters)` of each piece, together. Backwards, the activations of a piece are computed anew.

    Where there is one piece alone, its activations are kept as ever. Differentiable backwards and forwards.
    """
    if len(slices) == 1:
        return act(x_N, *parameters)
    if not torch.is_grad_enabled():
        return torch.cat([act(x_N[each], *parameters) for each in slices])
    features = [
        checkpoint(act, x_N[each], *parameters, use_reentrant=False, preserve_rng_state=False) for each in slices
    ]
    return torch.cat(features)


def sum_pieces(
    act: Callable[..., Tensor], x_N: Tensor, parameters: Sequence[Tensor], slices: Sequence[slice]
) -> Tensor:
    """The sum over pieces of `act(x, piece, *parameters)`, a number each, `piece` being the slice. Differentiable once.

    The gradient of a piece is computed with its value, so that no activations are kept; where there is no gradient to be, there
    is none.
    """
    total: Tensor = _Sum.apply(act, slices, x_N, *parameters)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, act: Callable[..., Tensor], slices: Sequence[slice], x_N: Tensor, *parameters: Tensor
    ) -> Tensor:
        leaves = [each.detach().requires_grad_() for each in parameters]
        grad_N, grads = torch.empty_like(x_N), [torch.zeros_like(each) for each in parameters]
        total = parameters[0].new_zeros(())
        for each in slices:
            piece_N = x_N[each].detach().requires_grad_()
            with torch.enable_grad():
                value = act(piece_N, each, *leaves)
            grad_N[each], *found = torch.autograd.grad(value, [piece_N, *leaves])
            for grad, more in zip(grads, found, strict=True):
                grad.add_(more)
            total += value.detach()
        ctx.save_for_backward(grad_N, *grads)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, None, *(each * grad.to(each.dtype) for each in ctx.saved_tensors)
