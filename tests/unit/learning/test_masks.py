"""Forbidden actions in acting and learning, against a policy that only has the allowed ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from leco.algo.losses import entropy, log_prob
from leco.algo.sampling import sample_action
from leco.config.toml import parse
from leco.config.training import NetworkConfig
from leco.learning.policy_step import Targets, policy_loss
from leco.learning.state import Batch, Networks, init
from leco.learning.update import update
from leco.methods.table import find_method
from leco.models.build import build
from leco.models.policy import masked_logits
from leco.types import ObservationLayout

A, T, B = 5, 6, 3
LAYOUT = ObservationLayout(None, 2, A)


def naive(logits_NA: Any, mask_NA: Any, action_N: Any) -> tuple[Any, Any]:
    """log pi of the actions taken, and the entropy, of a softmax over the allowed actions alone."""
    log_pi, nats = [], []
    for logits_A, mask_A, action in zip(logits_NA, mask_NA, action_N, strict=True):
        places = np.flatnonzero(mask_A)
        allowed = logits_A[places]
        log_p = allowed - allowed.max() - np.log(np.exp(allowed - allowed.max()).sum())
        log_pi.append(log_p[places.tolist().index(action)])
        nats.append(-(np.exp(log_p) * log_p).sum())
    return np.array(log_pi), np.array(nats)


def made(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, masks and allowed actions, [T, B, ...]."""
    random = np.random.default_rng(seed)
    mask = random.random((T, B, A)) < 0.5
    action = random.integers(0, A, (T, B))
    np.put_along_axis(mask, action[..., None], values=True, axis=2)
    logits = torch.from_numpy(random.normal(size=(T, B, A)) * 3)
    return logits, torch.from_numpy(mask), torch.from_numpy(action)


def test_log_pi_and_entropy_are_those_of_the_allowed_actions() -> None:
    logits, mask, action = made()
    masked = masked_logits(logits, mask)
    log_pi, nats = naive(logits.view(-1, A).numpy(), mask.view(-1, A).numpy(), action.flatten().numpy())
    np.testing.assert_allclose(log_prob(masked, action).flatten(), log_pi)
    np.testing.assert_allclose(entropy(masked), nats.mean())


@pytest.mark.parametrize("clip_range", [None, 0.2])
def test_the_loss_and_its_gradient_are_those_of_the_allowed_actions(clip_range: float | None) -> None:
    config = replace(parse('task = "Empty-5x5"').training, clip_range=clip_range, entropy_cost=0.1)
    logits, mask, action = made()
    other = torch.from_numpy(np.random.default_rng(1).normal(size=(5, T, B)))
    targets = Targets(action, other[0], other[1].abs().neg(), other[2], other[3], other[4].abs())

    def loss(given: torch.Tensor) -> torch.Tensor:
        return policy_loss(masked_logits(given, mask), other[0], targets, config).total

    logits.requires_grad_()
    [gradient] = torch.autograd.grad(loss(logits), logits)
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).any()
    log_pi, nats = naive(logits.detach().view(-1, A).numpy(), mask.view(-1, A).numpy(), action.flatten().numpy())
    log_pi = log_pi.reshape(T, B)
    advantage, log_mu, rho = (each.numpy() for each in (targets.advantage_SC, targets.log_mu_SC, targets.rho_SC))
    if clip_range is None:
        gain = rho * advantage * log_pi
    else:
        ratio = np.exp(log_pi - log_mu)
        gain = np.minimum(ratio * advantage, ratio.clip(0.8, 1.2) * advantage)
    value = 0.5 * ((other[0] - other[3]) ** 2).mean()
    np.testing.assert_allclose(loss(logits).item(), -gain.mean() + value - 0.1 * nats.mean())


def test_a_forbidden_action_is_never_drawn_and_the_others_as_often_as_their_probability() -> None:
    logits_A, mask_A = torch.tensor([5.0, 0.0, 1.0, 9.0, 2.0]), torch.tensor([0, 1, 1, 0, 1])
    drawn = sample_action(masked_logits(logits_A, mask_A).expand(20_000, A), torch.Generator().manual_seed(0))
    share_A = torch.bincount(drawn, minlength=A) / len(drawn)
    assert share_A[[0, 3]].tolist() == [0, 0]
    torch.testing.assert_close(share_A[[1, 2, 4]], logits_A[[1, 2, 4]].softmax(0), atol=0.02, rtol=0)


@pytest.mark.parametrize("method", ["no-int", "leco", "agac", "rnd"])
def test_an_update_never_moves_what_belongs_to_an_action_that_is_always_forbidden(method: str) -> None:
    torch.manual_seed(0)
    row = find_method(method, None if method in ("no-int", "rnd") else "dsc")
    nets = build(row, LAYOUT, A, network=NetworkConfig(width=8))
    nets = Networks(*(net if net is None else net.double() for net in nets))  # type: ignore[arg-type]
    random = np.random.default_rng(2)
    numbers = random.normal(size=(T + 1, B, 2)).astype("<f4").view(np.uint8)
    mask = np.ones((T + 1, B, A), np.uint8)
    mask[..., 3] = 0
    start = np.zeros((T + 1, B), bool)
    start[0] = start[3] = True
    logits = masked_logits(torch.from_numpy(random.normal(size=(T, B, A))), torch.from_numpy(mask[:-1]))
    batch = Batch(
        observation_TBO=torch.from_numpy(np.concatenate([numbers, mask], 2)),
        start_TB=torch.from_numpy(start),
        action_TB=torch.from_numpy(random.integers(0, 3, (T, B))),
        reward_TB=torch.from_numpy(random.normal(size=(T, B))),
        behaviour_logits_TBA=logits,
        previous_action_B=torch.full((B,), -1),
        previous_reward_B=torch.zeros(B, dtype=torch.float64),
        core_state=nets.policy.initial_state(B).double(),
        count_TB=torch.from_numpy(random.integers(1, 4, (T, B))),
        terminal_observation_FO=torch.from_numpy(np.concatenate([numbers, mask], 2)[0]),
    )
    config = replace(
        parse('task = "Empty-5x5"\npreset = "laptop"').training, epochs=2, minibatches=2, sequence_length=3
    )
    before = init(nets)
    after, stats = update(nets, before, batch, row, config)
    after, stats = update(nets, after, batch, row, config)
    assert all(np.isfinite(list(stats.values())))
    moved = {
        name: (after.policy[name] - before.policy[name]).abs() for name in ("policy_head.weight", "policy_head.bias")
    }
    for name, change in moved.items():
        assert (change[3] == 0).all(), name
        assert (change[:3].flatten(0) > 0).any(), name
