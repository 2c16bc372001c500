"""What a policy says of a batch that was played.

T  actions in an unroll        B  unrolls in a batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leco.algo.dedup import Distinct
    from leco.learning.state import Batch
    from leco.nets.policy import Policy, PolicyOutput


def follow(
    network: Policy,
    parameters: Mapping[str, Tensor],
    batch: Batch,
    unique: Distinct,
    known: tuple[Tensor, ...] | None = None,
) -> PolicyOutput:
    """What the policy with these parameters says of all T+1 observations.

    Args:
        network: What is computed.
        parameters: Its numbers.
        batch: What was played.
        unique: Its distinct observations.
        known: The gates of an earlier call with the same parameters, to compute only tangents.
    """
    previous_reward_TB = torch.cat([batch.previous_reward_B.unsqueeze(0), batch.reward_TB])
    output: PolicyOutput = functional_call(
        network,
        dict(parameters),
        (
            unique.observation_UO,
            batch.start_TB,
            previous_action(batch),
            previous_reward_TB.masked_fill(batch.start_TB, 0.0),
            batch.core_state,
        ),
        {"index_TB": unique.index_N.view(batch.start_TB.shape), "known": known},
    )
    return output


def previous_action(batch: Batch) -> Tensor:
    """a[t-1] before each of the T+1 observations; -1 at the first of an episode."""
    action_TB = torch.cat([batch.previous_action_B.long().unsqueeze(0), batch.action_TB.long()])
    return action_TB.masked_fill(batch.start_TB, -1)
