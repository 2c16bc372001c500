"""A policy one step at a time says what the policy itself says of all steps at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from leco.models.fused_step import make_step_fn
from leco.models.kinds.minigrid import MiniGridPolicy
from leco.models.kinds.pixels import PixelPolicy
from leco.models.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, ENVIRONMENTS, ACTIONS = 6, 5, 7


def trained(policy: Policy) -> Policy:
    """In float64, and far from the small numbers that it begins with, so that every part shows."""
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return policy.double()


def seen(policy: Policy) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(2)
    high = 256 if isinstance(policy, PixelPolicy) else 11
    observation = torch.randint(0, high, (STEPS, ENVIRONMENTS, *policy.image), generator=random, dtype=torch.uint8)
    start_TE = torch.rand(STEPS, ENVIRONMENTS, generator=random) < 0.3
    start_TE[2] = False  # a step without any
    start_TE[3] = True
    action_TE = torch.randint(0, ACTIONS, (STEPS, ENVIRONMENTS), generator=random).masked_fill(start_TE, -1)
    return observation, start_TE, action_TE, torch.randn(STEPS, ENVIRONMENTS, generator=random).double()


def stepped(policy: Policy, inputs: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, Tensor]:
    step, logits = make_step_fn(policy), []
    for each in zip(*inputs, strict=True):
        before = state.clone()
        logits_EA, following = step(state, *each)
        assert (state == before).all()  # what was given stays
        logits.append(logits_EA)
        state = following
    return torch.stack(logits), state


@pytest.mark.parametrize("make", [MiniGridPolicy, partial(MiniGridPolicy, one_hot=True), PixelPolicy])
def test_stepping_gives_what_the_policy_gives(make: Callable[[int], Policy]) -> None:
    policy = trained(make(ACTIONS))
    inputs = seen(policy)
    state = torch.randn(policy.initial_state(ENVIRONMENTS).shape, dtype=torch.float64)
    with torch.inference_mode():
        expected = policy(*inputs, state)
        logits_TEA, last = stepped(policy, inputs, state)
    torch.testing.assert_close(logits_TEA, expected.logits_TBA, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(last, expected.state, rtol=1e-10, atol=1e-10)
    assert float(logits_TEA.std(0).min()) > 1e-3  # what is seen matters


def test_a_policy_of_another_make_is_called_as_it_is() -> None:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(147, 8), nn.ReLU())
    policy = trained(Policy(ACTIONS, encoder, image=(7, 7, 3), width=16, layers=2, use_last_action_reward=True))
    inputs = seen(policy)
    state = policy.initial_state(ENVIRONMENTS)
    with torch.inference_mode():
        expected = policy(*inputs, state)
        logits_TEA, last = stepped(policy, inputs, state)
    torch.testing.assert_close(logits_TEA, expected.logits_TBA)
    torch.testing.assert_close(last, expected.state)


def test_a_stepper_keeps_the_parameters_it_was_made_with() -> None:
    policy = trained(MiniGridPolicy(ACTIONS))
    inputs, state = seen(policy), policy.initial_state(ENVIRONMENTS)
    first = tuple(each[0] for each in inputs)
    step = make_step_fn(policy)
    before = step(state, *first)[0].clone()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    assert (step(state, *first)[0] == before).all()
    assert not torch.allclose(make_step_fn(policy)(state, *first)[0], before)
