"""A policy one step at a time, as it acts: fewer and larger products than `Policy.forward`, and no value.

MiniGrid's encoder is two or three small convolutions and a linear layer. On a few observations such layers cost far more to
call than to compute, so each stretch of layers without an activation in between becomes one matrix: what it does to the
identity. The stretch after the last activation ends in the gates of the core, and its matrix stands beside the recurrent one.

E     environments
O...  shape of one observation
A     actions
L, H  layers and width of the core
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from leco.models.kinds.minigrid import OneHotCells
from leco.models.policy import masked_logits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leco.models.policy import Policy

    # (state_L2EH, observation_EO, start_E, previous_action_E, previous_reward_E) to (logits_EA, state_L2EH)
    Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


LARGEST = 1024  # numbers in an observation: more would make matrices that cost more than they save
_LAYERS = (nn.Conv2d, nn.Linear, nn.Flatten, nn.ELU, OneHotCells)


def make_step_fn(policy: Policy) -> Step:
    """The policy as a function of one step; good until its parameters change. Arguments are as `Policy` has them, without T."""
    if _foldable(policy):
        return _masked(policy, _folded(policy)) if policy.masked else _folded(policy)

    def step(
        state: Tensor, observation_EO: Tensor, start_E: Tensor, previous_action_E: Tensor, previous_reward_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        inputs = (observation_EO, start_E, previous_action_E, previous_reward_E)
        output = policy(*(tensor.unsqueeze(0) for tensor in inputs), state)
        return output.logits_TBA[0], output.state

    return step


def _masked(policy: Policy, unmasked: Step) -> Step:
    """A step that sees which actions may be taken, and takes no other."""

    def step(
        state: Tensor, observation_EO: Tensor, start_E: Tensor, previous_action_E: Tensor, previous_reward_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits_EA, state = unmasked(state, policy.read(observation_EO), start_E, previous_action_E, previous_reward_E)
        return masked_logits(logits_EA, observation_EO[:, -policy.num_actions :]), state

    return step


def _foldable(policy: Policy) -> bool:
    """Whether its encoder is such layers on a small observation, and its core one layer that sees nothing else."""
    layers = policy.encoder if isinstance(policy.encoder, nn.Sequential) else (policy.encoder,)
    alone = len(policy.core.weight_hh) == 1 and not policy.use_last_action_reward
    return alone and math.prod(policy.image) <= LARGEST and all(isinstance(layer, _LAYERS) for layer in layers)


@torch.no_grad()
def _folded(policy: Policy) -> Step:
    encoder = cast("nn.Sequential", policy.encoder)
    one_hot = encoder[0] if isinstance(encoder[0], OneHotCells) else None
    *stretches, last = _stretches(list(encoder)[one_hot is not None :])
    height, width, channels = policy.image
    shape: tuple[int, ...] = (channels if one_hot is None else one_hot.channels, height, width)
    layers: list[tuple[Tensor, Tensor]] = []
    for stretch in stretches:
        weight, bias, shape = _affine(stretch, shape)
        layers.append((weight, bias))
    if one_hot is None:  # observations come with their channels last
        weight, bias = layers[0]
        layers[0] = weight.view(channels, height, width, -1).permute(1, 2, 0, 3).reshape(len(weight), -1), bias
    weight_ih, weight_hh, core_bias = (
        each[0] for each in (policy.core.weight_ih, policy.core.weight_hh, policy.core.bias)
    )
    weight, bias, _ = _affine(last, shape)
    gate_weight = torch.cat([weight @ weight_ih.t(), weight_hh.t()])
    gate_bias = torch.addmv(core_bias, weight_ih, bias)
    head_weight, head_bias = policy.policy_head.weight.t().contiguous(), policy.policy_head.bias.clone()
    hidden = weight_hh.shape[1]

    def step(
        state: Tensor, observation_EO: Tensor, start_E: Tensor, _previous_action_E: Tensor, _previous_reward_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        image = observation_EO if one_hot is None else one_hot(observation_EO.permute(0, 3, 1, 2))
        x = image.flatten(1).to(gate_weight.dtype)
        for weight, bias in layers:
            x = functional.elu_(torch.addmm(bias, x, weight))
        h_EH, c_EH = state[0]
        if start_E.any():
            go_on_E1 = start_E.logical_not().unsqueeze(1)
            h_EH, c_EH = h_EH * go_on_E1, c_EH * go_on_E1
        gates_E4H = torch.addmm(gate_bias, torch.cat([x, h_EH], 1), gate_weight)
        i_f_E2H = gates_E4H[:, : 2 * hidden].sigmoid_()
        g_EH, o_EH = gates_E4H[:, 2 * hidden : 3 * hidden].tanh_(), gates_E4H[:, 3 * hidden :].sigmoid_()
        following = torch.empty_like(state)
        next_h_EH, next_c_EH = following[0]
        torch.mul(i_f_E2H[:, hidden:], c_EH, out=next_c_EH).addcmul_(i_f_E2H[:, :hidden], g_EH)
        torch.mul(o_EH, next_c_EH.tanh(), out=next_h_EH)
        return torch.addmm(head_bias, next_h_EH, head_weight), following

    return step


def _stretches(layers: Iterable[nn.Module]) -> list[nn.Sequential]:
    """The layers between the activations."""
    stretches = [nn.Sequential()]
    for layer in layers:
        if isinstance(layer, nn.ELU):
            stretches.append(nn.Sequential())
        else:
            stretches[-1].append(layer)
    return stretches


def _affine(layers: nn.Sequential, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """What layers without an activation do to an input of this shape: x @ weight + bias, and the shape it then has."""
    count, like = math.prod(shape), next(layers.parameters())
    zero_and_units = torch.eye(count + 1, count, dtype=like.dtype, device=like.device).roll(1, 0)
    output = layers(zero_and_units.view(-1, *shape))
    output_NF = output.flatten(1)
    return output_NF[1:] - output_NF[0], output_NF[0].clone(), tuple(output.shape[1:])
