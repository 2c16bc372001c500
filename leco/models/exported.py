"""A policy as one function of a step, of plain operations that other runtimes have too: what `leco export` writes.

N     environments          O...  shape of one observation        A  number of actions
L, H  layers and width of the core
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from leco.models.policy import masked_logits

if TYPE_CHECKING:
    from leco.models.policy import Policy

INPUTS = ("observation", "start", "previous_action", "previous_reward", "state")
OUTPUTS = ("logits", "value", "next_state")


class ExportedPolicy(nn.Module):
    """`Policy.forward` of one step, without the parts that only training needs.

    Args:
        policy: Whose parameters it shares.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self, observation: Tensor, start: Tensor, previous_action: Tensor, previous_reward: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [N, A], very low where an action is forbidden, values [N], and the state for the next step [L, 2, N, H].

        Args:
            observation: uint8 [N, O...].
            start: bool [N], whether an episode begins, whatever the state says.
            previous_action: int64 [N], -1 where an episode begins.
            previous_reward: float32 [N], what it earned.
            state: float32 [L, 2, N, H], zeros at first.
        """
        policy, core = self.policy, self.policy.core
        seen = policy.read(observation).reshape(-1, *policy.image)
        x = policy.encoder(seen.permute(0, 3, 1, 2).to(torch.float32) if len(policy.image) == 3 else seen)
        if policy.use_last_action_reward:
            first = (previous_action < 0).unsqueeze(1)
            action_NA = one_hot(previous_action.clamp(min=0), policy.num_actions).to(x.dtype).masked_fill(first, 0.0)
            x = torch.cat([x, action_NA, previous_reward.unsqueeze(1)], 1)
        state = state * (~start).to(state.dtype).view(1, 1, -1, 1)
        following = []
        for layer in range(core.layers):
            h_NH, c_NH = state[layer, 0], state[layer, 1]
            gates = nn.functional.linear(x, core.weight_ih[layer], core.bias[layer])
            gates = gates + nn.functional.linear(h_NH, core.weight_hh[layer])
            i_NH, f_NH, g_NH, o_NH = gates.chunk(4, 1)
            c_NH = f_NH.sigmoid() * c_NH + i_NH.sigmoid() * g_NH.tanh()
            x = o_NH.sigmoid() * c_NH.tanh()
            following.append(torch.stack([x, c_NH]))
        logits = policy.policy_head(x)
        if policy.masked:
            logits = masked_logits(logits, observation[..., -policy.num_actions :])
        # Nothing that is given is left out of the graph, so that all policies have the same inputs.
        unused = 0.0 * (previous_reward + previous_action.to(x.dtype))
        return logits, policy.value_head(x).squeeze(1) + unused, torch.stack(following)


def example_inputs(policy: Policy, observation_shape: tuple[int, ...], num_envs: int = 2) -> tuple[Tensor, ...]:
    """Inputs of the right shapes and types, as `INPUTS` names them: the beginning of episodes that show nothing."""
    return (
        torch.zeros(num_envs, *observation_shape, dtype=torch.uint8),
        torch.ones(num_envs, dtype=torch.bool),
        torch.full((num_envs,), -1),
        torch.zeros(num_envs),
        policy.initial_state(num_envs),
    )
