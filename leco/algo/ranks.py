"""Several processes that train as one: the ranks of `torch.distributed`, each with a part of every batch.

All ranks have the whole batch, which is small beside what networks make of it. Each sends only its own part through the networks,
and what they say of it (logits, values, scores: a few numbers for each observation) is put together again by `whole`. From there
on every rank computes the same as one alone would, so that no mean, count or condition has to be thought of twice. Gradients are
means over the ranks, as everywhere in data parallelism: `whole` multiplies by their number on the way back.

A process that has not called `join` is one rank alone, also in somebody's own job of torch.distributed: then nothing here does
anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Where = slice | Tensor | tuple[slice, ...]

Name = TypeVar("Name", bound=str)


class _Joined:
    """What this process has joined."""

    rank, size = 0, 1


def join() -> None:
    """From here on the processes of torch.distributed's group, which was made before, train as one. All of them call it."""
    _Joined.rank, _Joined.size = dist.get_rank(), dist.get_world_size()


def world_size() -> int:
    """How many ranks there are."""
    return _Joined.size


def rank() -> int:
    """Which of them this is, from 0 on."""
    return _Joined.rank


def part() -> slice:
    """Which of some things in a row are this rank's: every n-th, so that what is near each other is spread over all ranks."""
    return slice(rank(), None, world_size())


def whole(own: Tensor, where: Where, shape: Sequence[int]) -> Tensor:
    """What all ranks have computed, each a part; differentiable backwards and forwards.

    own    this rank's part
    where  its place in the whole
    shape  of the whole
    """
    if world_size() == 1:
        return own
    joined: Tensor = _Whole.apply(own, where, tuple(shape))  # type: ignore[no-untyped-call]
    return joined


class _Whole(torch.autograd.Function):
    """A sum of parts with zeros around them. All ranks go on with the same, so that all get the same gradient back."""

    @staticmethod
    def forward(own: Tensor, where: Where, shape: tuple[int, ...]) -> Tensor:
        joined = own.new_zeros(shape)
        joined[where] = own
        dist.all_reduce(joined)
        return joined

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.where, _ = inputs
        ctx.shape = output.shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad[ctx.where] * world_size(), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return _Whole.forward(tangent, ctx.where, ctx.shape)


def all_sum(own: Tensor) -> Tensor:
    """The sum over all ranks, without a gradient."""
    if world_size() == 1:
        return own
    total = own.detach().clone()
    dist.all_reduce(total)
    return total


def all_mean(own: Mapping[Name, Tensor]) -> dict[Name, Tensor]:
    """The mean over all ranks of tensors of one type, by their names: one sum of all of them in a row."""
    if world_size() == 1:
        return dict(own)
    names = sorted(own)  # whatever order a rank happens to have them in
    total = all_sum(torch.cat([own[name].flatten() for name in names])) / world_size()
    parts = torch.split(total, [own[name].numel() for name in names])
    found = {name: each.view_as(own[name]) for name, each in zip(names, parts, strict=True)}
    return {name: found[name] for name in own}


def any_rank(condition: Tensor) -> bool:
    """Whether a condition holds on some rank: what all decide by, where one alone would have others wait for ever."""
    return bool(all_sum(condition.float()) > 0)


def take_from_first(tensors: Sequence[Tensor]) -> None:
    """Gives tensors, in place, the numbers that they have on rank 0."""
    if world_size() == 1 or not tensors:
        return
    bytes_ = torch.cat([tensor.contiguous().flatten().view(torch.uint8) for tensor in tensors])
    dist.broadcast(bytes_, 0)
    parts = torch.split(bytes_, [tensor.nbytes for tensor in tensors])
    for tensor, part_ in zip(tensors, parts, strict=True):
        tensor.copy_(
            part_.clone().view(tensor.dtype).view_as(tensor)
        )  # a copy begins at an address that any type can have
