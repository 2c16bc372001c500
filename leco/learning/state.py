"""The values of a training step: what goes into `leco.learning.update.update`, and what it changes.

T     actions in an unroll          B  unrolls in a batch       A  number of actions
O...  shape of one observation
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from leco.algo.optim import AdamState, init_adam

if TYPE_CHECKING:
    from leco.algo.dedup import Distinct
    from leco.config.training import TrainingConfig
    from leco.learning.policy_pass import Reuse
    from leco.methods.table import Method
    from leco.models.intrinsic import Intrinsic
    from leco.models.policy import Policy


Params = dict[str, Tensor]


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
    truncated_TB          bool [T, B], the action was the last before the time limit, without success; None if none was
    terminal_observation_FO   uint8 [F, O...], the true last observations of the F episodes that ended, by time and then by
                          unroll; None if the method does not look at them
    coarse_count_TBM      integers [T, B, M], at least 1: of the M coarser codes of an observation; None without any
    coarse_code_TBM       integers [T, B, M], four bytes of each of those codes; None without any
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
    truncated_TB: Tensor | None = None
    terminal_observation_FO: Tensor | None = None
    coarse_count_TBM: Tensor | None = None
    coarse_code_TBM: Tensor | None = None


class Networks(NamedTuple):
    """What is computed, without the numbers: parameters are in `TrainingState`. None for what a method does not have.

    intrinsic  hash, modulator and V^e
    novelty    what only the method's novelty needs; AGAC's adversary is a policy
    """

    policy: Policy
    intrinsic: Intrinsic | None
    novelty: nn.Module | None = None


class StepInput(NamedTuple):
    """What all parts of an update know.

    networks, state, batch, method, config   as of `update`
    theta   the policy's parameters, as leaves
    unique  the distinct observations of the batch: each network looks at each one once
    reuse   in which sequences the policy learns from it, and how often
    """

    networks: Networks
    state: TrainingState
    batch: Batch
    method: Method
    config: TrainingConfig
    theta: Params
    unique: Distinct
    reuse: Reuse


class TrainingState(NamedTuple):
    """Everything that training changes. A value: `update` makes a new one."""

    policy: Params
    policy_adam: AdamState
    intrinsic: Params
    intrinsic_adam: AdamState
    running: Params  # statistics of the intrinsic module's batch norms
    novelty: Params
    novelty_adam: AdamState
    novelty_running: Params  # moments that the novelty's networks keep
    r_ep_mean: Tensor  # the running mean of r_ep, which `center_bonus` takes away
    r_ep_square: Tensor  # the running mean of its square, for `normalize_bonus`
    trust: Tensor  # in the modulator, from 0 to 1: how much of the task's returns V^e has explained lately
    updates: int


def init(networks: Networks) -> TrainingState:
    """The state of networks as they were made."""
    policy, _ = _numbers(networks.policy)
    intrinsic, running = _numbers(networks.intrinsic)
    novelty, novelty_running = _numbers(networks.novelty)
    return TrainingState(
        policy=policy,
        policy_adam=init_adam(policy),
        intrinsic=intrinsic,
        intrinsic_adam=init_adam(intrinsic),
        running=running,
        novelty=novelty,
        novelty_adam=init_adam(novelty),
        novelty_running=novelty_running,
        r_ep_mean=next(iter(policy.values())).new_zeros(()),
        r_ep_square=next(iter(policy.values())).new_zeros(()),
        trust=next(iter(policy.values())).new_zeros(()),
        updates=0,
    )


def _numbers(net: nn.Module | None) -> tuple[Params, Params]:
    """Parameters and buffers; none of no network."""
    net = net or nn.Module()
    return (
        {name: p.detach().clone() for name, p in net.named_parameters()},
        {name: b.detach().clone() for name, b in net.named_buffers()},
    )
