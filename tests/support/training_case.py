"""A small batch and small networks in float64, for tests of whole training steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from leco.config.toml import parse
from leco.learning.state import Batch, Networks
from leco.methods.table import find_method
from leco.models.build import build
from leco.models.kinds.minigrid import MiniGridPolicy
from leco.models.kinds.pixels import PixelPolicy

if TYPE_CHECKING:
    from torch import nn

    from leco.config.training import TrainingConfig
    from leco.models.intrinsic import Intrinsic

    Net = TypeVar("Net", bound=Intrinsic)

T, B, A = 6, 3, 7


def paper_config(**changes: Any) -> TrainingConfig:
    """The paper's settings for MiniGrid and leco, and what is changed in them."""
    return replace(parse('task = "KeyCorridorS3R3"').training, **changes)


def networks(method: str = "leco", hash_kind: str | None = None) -> Networks:
    torch.manual_seed(0)
    nets = build(find_method(method, hash_kind), (7, 7, 3), A)
    if nets.intrinsic is not None:
        awaken(nets.intrinsic)
    return Networks(*(net if net is None else net.double() for net in nets))  # type: ignore[arg-type]


def awaken(intrinsic: Net) -> Net:
    """Draws the last layers of modulator and V^e, which begin at zero, where half of the mathematics would not show."""
    intrinsic.modulator_out.reset_parameters()
    cast("nn.Linear", intrinsic.value_head[-1]).reset_parameters()
    return intrinsic


def make_batch(seed: int = 1) -> Batch:
    """Small integers with many repeats, as MiniGrid has, and episodes that begin inside the unroll."""
    generator = torch.Generator().manual_seed(seed)
    pool = torch.stack([torch.randint(high, (5, 7, 7), generator=generator) for high in (11, 6, 3)], -1)
    picked = torch.randint(5, (T + 1, B), generator=generator)
    start_TB = torch.rand(T + 1, B, generator=generator) < 0.25
    start_TB[0] = torch.tensor([True, False, False])
    policy = MiniGridPolicy(A)
    return Batch(
        observation_TBO=pool[picked].to(torch.uint8),
        start_TB=start_TB,
        action_TB=torch.randint(A, (T, B), generator=generator),
        reward_TB=torch.rand(T, B, generator=generator, dtype=torch.float64),
        behaviour_logits_TBA=torch.randn(T, B, A, generator=generator, dtype=torch.float64),
        previous_action_B=torch.tensor([-1, 2, 5]),
        previous_reward_B=torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64),
        core_state=policy.initial_state(B).double(),
        count_TB=torch.randint(1, 5, (T, B), generator=generator),
        terminal_observation_FO=pool[torch.randint(5, (int(start_TB[1:].sum()),), generator=generator)].to(torch.uint8),
    )


def picture_batch(shape: tuple[int, int, int], seed: int = 1) -> Batch:
    """The same with pictures, for IMPALA's network, of which each is there twice or more."""
    generator = torch.Generator().manual_seed(seed)
    batch, pool = make_batch(seed), torch.randint(256, (9, *shape), generator=generator, dtype=torch.uint8)
    picked = torch.randint(9, (T + 1, B), generator=generator)
    return batch._replace(
        observation_TBO=pool[picked], core_state=PixelPolicy(A, shape=shape).initial_state(B).double()
    )
