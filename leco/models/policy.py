"""The policies: what the agent sees goes to logits over its actions and to a value, through an LSTM.

Axes: T time, B batch, N = T x B, F features, A actions, L LSTM layers, H its width. Observations are time-major images of
integers, [T, B, height, width, channels]. Calls with T = 1 that carry the state give what one call over all steps gives.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from leco.models.kinds.parts import without_mask
from leco.models.kinds.table import networks_of
from leco.models.lstm import LstmCore

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.models.kinds.table import Kind

PAPER_WIDTH = 256
FORBIDDEN = -1e9  # the logit of an action that may not be taken: its probability is 0, and it stays finite


class PolicyOutput(NamedTuple):
    """What a policy says of T steps.

    Logits [T, B, A], value [T, B], the core's state after them [L, 2, B, H], and h of each of its layers [T, B, H], for a call
    that asks for the tangents of this one.
    """

    logits_TBA: Tensor
    value_TB: Tensor
    state: Tensor
    hidden: tuple[Tensor, ...]


class Policy(nn.Module):
    """What all policies share: features of each image, the core, the two heads (sizes: see algorithm.md, section 3).

    `image`: height, width and channels of an observation; or how many bytes, where it is a row that only the encoder can read.
    `use_last_action_reward` puts the one-hot previous action and the previous reward beside the core's features.

    Attributes:
        masked: Whether an observation ends with a byte for each action, 0 where it may not be taken. Its logit is then FORBIDDEN,
            for whoever asks: in acting, in log pi, in the entropy and in the clipped surrogate.
        read: What the encoder is given of an observation.
        encoder_takes_bytes: Whether it is given an image as it is, which as floats would be four times as large.
    """

    def __init__(
        self,
        num_actions: int,
        encoder: nn.Module,
        *,
        image: tuple[int, ...],
        width: int,
        layers: int,
        use_last_action_reward: bool,
    ) -> None:
        super().__init__()
        self.num_actions, self.image, self.use_last_action_reward = num_actions, image, use_last_action_reward
        self.masked, self.read, self.encoder_takes_bytes = False, _all, False
        self.encoder = encoder
        self.core = LstmCore(width, width, layers)
        self.policy_head = nn.Linear(width, num_actions)
        self.value_head = nn.Linear(width, 1)

    def initial_state(self, batch: int) -> Tensor:
        """The core's state before anything was seen: zeros [L, 2, B, H]."""
        return self.core.initial_state(batch)

    def forward(
        self,
        observation: Tensor,
        start_TB: Tensor,
        previous_action_TB: Tensor,
        previous_reward_TB: Tensor,
        state: Tensor,
        *,
        index_TB: Tensor | None = None,
        hidden: tuple[Tensor, ...] | None = None,
    ) -> PolicyOutput:
        """Follows T steps from `state`.

        observation: integers [T, B, height, width, channels]. start_TB: true where an episode starts; the state is zeroed
        there. previous_action_TB: integers, -1 where there was none. previous_reward_TB: the reward it earned.
        index_TB: with it, observation is [U, height, width, channels], each distinct one once, and index_TB says which of them
        each step saw: what depends on the observation alone is then computed U and not T x B times.
        hidden: of an earlier call with the same parameters, to compute only tangents; there is no state after it then.
        """
        self._check(observation, index_TB, start_TB, previous_action_TB, previous_reward_TB)
        seen_NO = self.read(observation).reshape(-1, *self.image)
        if len(self.image) == 3:
            seen_NO = seen_NO.permute(0, 3, 1, 2)
            seen_NO = seen_NO if self.encoder_takes_bytes else seen_NO.to(self.value_head.weight.dtype)
        feature_NF = self.encoder(seen_NO)
        if not self.use_last_action_reward and index_TB is not None:
            core = self.core(feature_NF, start_TB, state, index_TB=index_TB, hidden=hidden)
        else:
            if index_TB is not None:
                feature_NF = feature_NF.index_select(0, index_TB.flatten())
            core_TBF = feature_NF.view(*start_TB.shape, -1)
            if self.use_last_action_reward:
                choices_A = torch.arange(self.num_actions, device=core_TBF.device)
                action_TBA = previous_action_TB.unsqueeze(2) == choices_A  # nowhere true for -1
                beside = (action_TBA.to(core_TBF), previous_reward_TB.unsqueeze(2).to(core_TBF))
                core_TBF = torch.cat([core_TBF, *beside], 2)
            core = self.core(core_TBF, start_TB, state, hidden=hidden)
        logits_TBA, value_TB = self.policy_head(core.h_TBH), self.value_head(core.h_TBH).squeeze(2)
        if self.masked:
            mask = observation[..., -self.num_actions :]
            logits_TBA = masked_logits(logits_TBA, mask if index_TB is None else mask[index_TB])
        return PolicyOutput(logits_TBA, value_TB, core.state, core.hidden)

    def _check(self, observation: Tensor, index_TB: Tensor | None, start_TB: Tensor, *others_TB: Tensor) -> None:
        axes = ("T", "B") if index_TB is None else ("U",)
        shape = (math.prod(self.image) + self.num_actions,) if self.masked else self.image
        if observation.dim() != len(axes) + len(shape) or observation.shape[len(axes) :] != shape:
            expected = ", ".join((*axes, *map(str, shape)))
            raise ValueError(f"observation has shape {list(observation.shape)}; expected [{expected}]")
        steps_TB = observation.shape[:2] if index_TB is None else index_TB.shape
        names = ("start_TB", "previous_action_TB", "previous_reward_TB")
        for name, tensor in zip(names, (start_TB, *others_TB), strict=True):
            if tensor.shape != steps_TB:
                like = "the observation" if index_TB is None else "index_TB"
                raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(steps_TB)}, as {like}")


def make_policy(kind: Kind, num_actions: int, network: NetworkConfig) -> Policy:
    """The policy for a kind of observations, which takes no action that one forbids."""
    policy = networks_of(kind).build_policy(kind, num_actions, network)
    policy.masked = kind.layout is not None and kind.layout.actions > 0
    policy.read = partial(without_mask, kind)
    return policy


def masked_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits of actions, FORBIDDEN where the mask is 0. Any shape [..., A], the same for both."""
    return torch.where(mask != 0, logits, FORBIDDEN)


def begin_orthogonal(policy: Policy) -> None:
    """Weights begin orthogonal, with a gain that keeps the size of what passes through the encoder; biases begin at zero."""
    for name, parameter in policy.named_parameters():
        if parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            gain = {"encoder": math.sqrt(2), "policy_head": 0.01}.get(name.partition(".")[0], 1.0)
            nn.init.orthogonal_(parameter, gain)


def _all(observation: Tensor) -> Tensor:
    """Of an observation without anything that is not for the encoder."""
    return observation
