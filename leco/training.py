"""The values of a training step: what goes into `leco.update.update`, and what it changes.

T     actions in an unroll          B  unrolls in a batch       A  number of actions
O...  shape of one observation
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from leco.algo.adam import AdamState, adam_start
from leco.settings import Settings

if TYPE_CHECKING:
    from leco.nets.intrinsic import Intrinsic
    from leco.nets.policy import Policy

__all__ = ["Batch", "Named", "Networks", "Settings", "State", "start"]

Named = dict[str, Tensor]


class Batch(NamedTuple):
    """B unrolls side by side, time first.

    observation_TBO       uint8 [T+1, B, O...]
    start_TB              bool [T+1, B], the observation is the first of its episode
    action_TB             integers [T, B]
    reward_TB             [T, B], the task's own
    behaviour_logits_TBA  [T, B, A], of the policy that acted
    previous_action_B     integers [B], before the unroll; -1 at the start of an episode
    previous_reward_B     [B]
    core_state            the policy's recurrent state before the unroll
    count_TB              integers [T, B], at least 1; None if the method does not count
    cut_TB                bool [T, B], the action was the last before the time limit, without success; None if none was
    """

    observation_TBO: Tensor
    start_TB: Tensor
    action_TB: Tensor
    reward_TB: Tensor
    behaviour_logits_TBA: Tensor
    previous_action_B: Tensor
    previous_reward_B: Tensor
    core_state: Tensor
    count_TB: Tensor | None
    cut_TB: Tensor | None = None


class Networks(NamedTuple):
    """What is computed, without the numbers: parameters are in `State`. `intrinsic` is None for methods without one."""

    policy: Policy
    intrinsic: Intrinsic | None


class State(NamedTuple):
    """Everything that training changes. A value: `update` makes a new one."""

    policy: Named
    policy_adam: AdamState
    intrinsic: Named
    intrinsic_adam: AdamState
    running: Named  # statistics of the intrinsic module's batch norms
    updates: int


def start(networks: Networks) -> State:
    """The state of networks as they were made."""
    policy = {name: p.detach().clone() for name, p in networks.policy.named_parameters()}
    net = networks.intrinsic if networks.intrinsic is not None else nn.Module()
    intrinsic = {name: p.detach().clone() for name, p in net.named_parameters()}
    running = {name: b.detach().clone() for name, b in net.named_buffers()}
    return State(policy, adam_start(policy), intrinsic, adam_start(intrinsic), running, updates=0)
