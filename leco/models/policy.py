"""The policies: what the agent sees goes to logits over its actions and to a value, through an LSTM.

Axes: T time, B batch, N = T x B, F features, A actions, L LSTM layers, H its width. Observations are time-major images of
integers, [T, B, height, width, 3]. Calls with T = 1 that carry the state give what one call over all steps gives.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leco.models.lstm import LstmCore

PAPER_WIDTH = 256


class PolicyOutput(NamedTuple):
    """What a policy says of T steps.

    Logits [T, B, A], value [T, B], the core's state after them [L, 2, B, H], and its gates, for a call that asks for the
    tangents of this one.
    """

    logits_TBA: Tensor
    value_TB: Tensor
    state: Tensor
    gates: tuple[Tensor, ...]


class Policy(nn.Module):
    """What both policies share: features of each image, the core, the two heads (sizes: see algorithm.md, section 3).

    `use_last_action_reward` puts the one-hot previous action and the previous reward beside the core's features.
    """

    def __init__(
        self,
        actions: int,
        encoder: nn.Module,
        *,
        image: tuple[int, int],
        width: int,
        layers: int,
        use_last_action_reward: bool,
    ) -> None:
        super().__init__()
        self.actions, self.image, self.use_last_action_reward = actions, (*image, 3), use_last_action_reward
        self.encoder = encoder
        self.core = LstmCore(width, width, layers)
        self.policy_head = nn.Linear(width, actions)
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
        known: tuple[Tensor, ...] | None = None,
    ) -> PolicyOutput:
        """Follows T steps from `state`.

        observation: integers [T, B, height, width, 3]. start_TB: true where an episode starts; the state is zeroed
        there. previous_action_TB: integers, -1 where there was none. previous_reward_TB: the reward it earned.
        index_TB: with it, observation is [U, height, width, 3], each distinct one once, and index_TB says which of them
        each step saw: what depends on the observation alone is then computed U and not T x B times.
        known: the gates of an earlier call with the same parameters, to compute only tangents.
        """
        self._check(observation, index_TB, start_TB, previous_action_TB, previous_reward_TB)
        image_NCHW = observation.reshape(-1, *self.image).permute(0, 3, 1, 2).to(self.value_head.weight.dtype)
        feature_NF = self.encoder(image_NCHW)
        if not self.use_last_action_reward and index_TB is not None:
            core = self.core(feature_NF, start_TB, state, index_TB=index_TB, known=known)
        else:
            if index_TB is not None:
                feature_NF = feature_NF.index_select(0, index_TB.flatten())
            core_TBF = feature_NF.view(*start_TB.shape, -1)
            if self.use_last_action_reward:
                choices_A = torch.arange(self.actions, device=core_TBF.device)
                action_TBA = previous_action_TB.unsqueeze(2) == choices_A  # nowhere true for -1
                beside = (action_TBA.to(core_TBF), previous_reward_TB.unsqueeze(2).to(core_TBF))
                core_TBF = torch.cat([core_TBF, *beside], 2)
            core = self.core(core_TBF, start_TB, state, known=known)
        logits_TBA, value_TB = self.policy_head(core.h_TBH), self.value_head(core.h_TBH).squeeze(2)
        return PolicyOutput(logits_TBA, value_TB, core.state, core.gates)

    def _check(self, observation: Tensor, index_TB: Tensor | None, start_TB: Tensor, *others_TB: Tensor) -> None:
        axes = ("T", "B") if index_TB is None else ("U",)
        if observation.dim() != len(axes) + 3 or observation.shape[-3:] != self.image:
            expected = ", ".join((*axes, *map(str, self.image)))
            raise ValueError(f"observation has shape {list(observation.shape)}; expected [{expected}]")
        steps_TB = observation.shape[:2] if index_TB is None else index_TB.shape
        names = ("start_TB", "previous_action_TB", "previous_reward_TB")
        for name, tensor in zip(names, (start_TB, *others_TB), strict=True):
            if tensor.shape != steps_TB:
                like = "the observation" if index_TB is None else "index_TB"
                raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(steps_TB)}, as {like}")


class MiniGridPolicy(Policy):
    """The policy for MiniGrid's 7 x 7 view of (object, colour, state) integers.

    The integers enter the first convolution as they are. The previous action and reward are not used.

    Weights begin orthogonal, with a gain that keeps the size of what passes through the encoder. With torch's own beginnings the
    observation's share of the gates varied by 0.005 (now by 0.13), and agents that count explored more slowly (docs/results).
    """

    def __init__(self, actions: int, width: int = PAPER_WIDTH) -> None:
        encoder = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ELU()),
            *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ELU()),
            *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ELU()),
            nn.Flatten(),  # 7 -> 4 -> 2 -> 1: 32 numbers
            nn.Linear(32, width),
        )
        super().__init__(actions, encoder, image=(7, 7), width=width, layers=1, use_last_action_reward=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            else:
                gain = {"encoder": math.sqrt(2), "policy_head": 0.01}.get(name.partition(".")[0], 1.0)
                nn.init.orthogonal_(parameter, gain)


class DmlabPolicy(Policy):
    """The policy for DMLab's 72 x 96 pixels: IMPALA's residual network (Espeholt et al. 2018, figure 3, right).

    The core, two layers wide as its input, also sees the one-hot previous action and the previous reward.
    """

    def __init__(self, actions: int, width: int = PAPER_WIDTH) -> None:
        encoder = nn.Sequential(
            _Scale((127.5, 127.5, 127.5), shift=-1.0),
            *_stage(3, 16),
            *_stage(16, 32),
            *_stage(32, 32),
            nn.ReLU(),
            nn.Flatten(),  # 72 x 96 -> 36 x 48 -> 18 x 24 -> 9 x 12
            nn.Linear(32 * 9 * 12, width),
            nn.ReLU(),
        )
        super().__init__(
            actions, encoder, image=(72, 96), width=width + actions + 1, layers=2, use_last_action_reward=True
        )


def _stage(channels_in: int, channels: int) -> tuple[nn.Module, ...]:
    """One section of IMPALA's network; halves the image."""
    convolution = nn.Conv2d(channels_in, channels, 3, padding=1)
    return convolution, nn.MaxPool2d(3, stride=2, padding=1), _Residual(channels), _Residual(channels)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        inner_NCHW: Tensor = self.second(self.first(x_NCHW.relu()).relu())
        return x_NCHW + inner_NCHW


class _Scale(nn.Module):
    """x / divisor + shift, with a divisor for each channel."""

    divisor_C11: Tensor

    def __init__(self, divisors: tuple[float, ...], *, shift: float) -> None:
        super().__init__()
        self.shift = shift
        self.register_buffer("divisor_C11", torch.tensor(divisors).view(-1, 1, 1), persistent=False)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return x_NCHW / self.divisor_C11 + self.shift
