"""States to save and load, and whether two are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from leco.learning.state import Networks, TrainingState, init
from support.training_case import networks

if TYPE_CHECKING:
    from collections.abc import Callable

    from leco.algo.optim import AdamState
    from leco.checkpoint.state_file import MetadataValue

FACTS: dict[str, MetadataValue] = {"run": "a-1", "method": "leco", "seed": 3, "rate": 0.1, "done": False}


def policy_alone() -> Networks:
    """Networks of a method that learns nothing but its policy."""
    return networks()._replace(intrinsic=None)


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def assert_same(a: object, b: object) -> None:
    """The same types, order of names, dtypes, shapes and bits."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        assert (a.dtype, a.shape, a.device, _bits(a)) == (b.dtype, b.shape, b.device, _bits(b))
    elif isinstance(a, dict):
        assert isinstance(b, dict)
        assert list(a) == list(b)
        for name, item in a.items():
            assert_same(item, b[name])
    elif isinstance(a, tuple):
        assert type(a) is type(b)
        assert isinstance(b, tuple)
        for left, right in zip(a, b, strict=True):
            assert_same(left, right)
    else:
        assert (type(a), a) == (type(b), b)


def odd_state() -> TrainingState:
    """Few tensors, and everything about them that a careless copy would lose."""
    nan = torch.tensor([0x7FC00001, 0x7F800123, -0x3FFFFF, -(2**31)], dtype=torch.int32).view(torch.float32)  # and -0.0
    nan64 = torch.tensor([0x7FF8000000000ABC, -(2**63)], dtype=torch.int64).view(torch.float64)
    named = {"z": nan, "a": nan64, "grid": torch.arange(6.0).view(2, 3).t(), "none": torch.zeros(0, 3)}
    other = {name: tensor + 1 for name, tensor in named.items()}
    base = init(policy_alone())
    return base._replace(
        policy=named,
        policy_adam=base.policy_adam._replace(exp_avg=other, exp_avg_sq={"z": nan}, steps=2**40),
        running={"norm.num_batches_tracked": torch.tensor(2**53 + 1), "mask": torch.tensor([True, False])},
        novelty_running={},
        updates=7,
    )


def like(state: TrainingState) -> TrainingState:
    """The same structure, other numbers."""
    zeros: Callable[[Any], Any] = lambda m: {name: torch.zeros_like(m[name]) for name in reversed(list(m))}  # noqa: E731

    def adam(old: AdamState) -> AdamState:
        return old._replace(exp_avg=zeros(old.exp_avg), exp_avg_sq=zeros(old.exp_avg_sq), steps=0)

    return state._replace(
        policy=zeros(state.policy),
        policy_adam=adam(state.policy_adam),
        intrinsic=zeros(state.intrinsic),
        intrinsic_adam=adam(state.intrinsic_adam),
        running=zeros(state.running),
        updates=0,
    )
