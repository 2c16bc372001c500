"""Nothing is new: no intrinsic reward but what a modulator makes by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from leco.methods.novelty import NoveltyOutput

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.methods.novelty import NoveltyInput
    from leco.models.kinds.table import KindNetworks


def build(_kind: KindNetworks, _num_actions: int, _network: NetworkConfig) -> None:
    """There are no networks."""


def compute(given: NoveltyInput) -> NoveltyOutput:
    """r_ep is zero."""
    return NoveltyOutput(torch.zeros_like(given.batch.reward_TB))
