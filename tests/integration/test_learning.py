"""Dozens of updates of a small batch: what is to be learned is learned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leco.learning.state import Networks, init
from leco.learning.update import update
from leco.methods.table import METHODS, find_method
from leco.models.intrinsic import build_hash_module
from leco.models.kinds.minigrid import MiniGridPolicy
from leco.models.kinds.table import MINIGRID
from support.training_case import A, awaken, make_batch, networks, paper_config


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def test_the_hash_learns_to_reconstruct_a_batch() -> None:
    nets, batch, settings = networks(), make_batch(), paper_config(intrinsic_learning_rate=1e-3)
    state, losses = init(nets), []
    for _ in range(40):
        state, stats = update(nets, state, batch, find_method("vq-only"), settings)
        losses.append(stats["hash_loss"])
    assert losses[-1] < 0.5 * losses[0]


def test_ae_lsh_learns_to_reconstruct_a_batch_from_bits() -> None:
    nets, batch, settings = networks("ae-lsh"), make_batch(), paper_config(intrinsic_learning_rate=1e-3)
    state, losses = init(nets), []
    for _ in range(40):
        state, stats = update(nets, state, batch, find_method("ae-lsh"), settings)
        losses.append(stats["hash_loss"])
    assert losses[-1] < 0.5 * losses[0]


def test_no_step_makes_a_number_that_is_none() -> None:
    """Twenty steps in float32, as training does them."""
    torch.manual_seed(0)
    nets = Networks(MiniGridPolicy(A), awaken(build_hash_module(MINIGRID, A)))
    state = init(nets)
    for seed in range(20):
        made = make_batch(seed)
        batch = made._replace(
            reward_TB=made.reward_TB.float(),
            behaviour_logits_TBA=made.behaviour_logits_TBA.float(),
            previous_reward_B=made.previous_reward_B.float(),
            core_state=made.core_state.float(),
        )
        state, stats = update(nets, state, batch, METHODS["leco"], paper_config(policy_learning_rate=1e-3))
    assert torch.isfinite(flat(state.policy)).all()
    assert torch.isfinite(flat(state.intrinsic)).all()
    assert all(value == value for value in stats.values())  # noqa: PLR0124  # not NaN


def test_agacs_adversary_approaches_the_policy() -> None:
    still: dict[str, Any] = {"policy_learning_rate": 1e-12, "novelty_learning_rate": 1e-3}
    nets = networks("agac")
    with torch.no_grad():  # a policy that prefers something, which a fresh adversary does not
        nets.policy.policy_head.bias.copy_(torch.linspace(-1, 1, A))
    state, apart = init(nets), []
    for _ in range(40):
        state, stats = update(nets, state, make_batch(), find_method("agac"), paper_config(**still))
        apart.append(stats["adversary_kl"])
    assert apart[0] > 0.1
    assert apart[-1] < 0.1 * apart[0]
    assert stats["novelty_loss"] == pytest.approx(stats["adversary_kl"])
