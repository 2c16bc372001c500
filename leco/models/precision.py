"""What convolutions compute with while a learner learns: float32, or bfloat16 where the machine multiplies it natively.

bfloat16 has float32's range and 8 of its 24 digits. In it are the images, the activations and a copy of each kernel; parameters,
statistics of batch norms, sums over samples, losses, and whatever follows the convolutions stay float32. Outside of `precision`,
where actors act and hash, everything is computed in the parameters' own type, so that codes are the same on all machines.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    Precision = Literal["auto", "float32"]

_SETTING: ContextVar[Precision] = ContextVar("leco_precision", default="float32")


@contextmanager
def precision(setting: Precision) -> Iterator[None]:
    """What is computed inside follows the setting `training.precision`; so does a thread that is given a copy of the context."""
    token = _SETTING.set(setting)
    try:
        yield
    finally:
        _SETTING.reset(token)


def convolution_dtype(parameter: Tensor) -> torch.dtype:
    """Of activations between convolutions that have such parameters: the parameter's own, or bfloat16 instead of float32."""
    if _SETTING.get() == "auto" and parameter.dtype == torch.float32 and multiplies_bfloat16(parameter.device.type):
        return torch.bfloat16
    return parameter.dtype


@functools.cache
def multiplies_bfloat16(device: str) -> bool:
    """Whether a device ("cpu", "cuda") has products of bfloat16: AVX-512 BF16, AMX, or a GPU since Ampere."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    found = torch.cpu.get_capabilities()
    return device == "cpu" and bool(found.get("avx512_bf16") or found.get("amx_bf16"))
