"""Where updates are computed."""

from __future__ import annotations

import os
import re

from leco.config.experiment import ConfigError

NO_GPU = "torch finds no GPU here"


def device_name(text: str) -> str:
    """auto, cpu, cuda or cuda:N.

    Raises:
        ValueError: it is none of these.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise ValueError(f"must be auto, cpu, cuda or cuda:N, and not {text!r}")
    return text


def joins_others() -> bool:
    """Whether torchrun, or what is like it, has started this process as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


def local_ranks() -> int:
    """How many of them are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def find_device(name: str) -> str:
    """The device of a name, as torch writes it; auto is a GPU if there is one. Each of several ranks has a GPU of its own.

    Raises:
        ConfigError: there is no such GPU.
    """
    if name == "cpu":
        return name
    import torch  # noqa: PLC0415  # slow to import

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if there else "cpu"
    if name == "cpu":
        return name
    if joins_others():
        if name != "cuda":
            raise ConfigError(f"--device {name} is one GPU for several ranks: say --device cuda, and each has its own")
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    number = int(name.partition(":")[2] or 0)
    if number >= there:
        found = NO_GPU if not there else f"torch finds {there} here, numbered from 0"
        raise ConfigError(f"there is no GPU for --device {name}: {found}; say --device cpu, or leave it out")
    return name
