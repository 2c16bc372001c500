"""The policy's step: the paper's single pass, and epochs of minibatches against plain PyTorch, one sequence at a time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from leco.algo.dedup import distinct
from leco.algo.losses import log_prob
from leco.algo.optim import AdamState, adam_jacobian_diag, adam_preconditioner, init_adam
from leco.learning.policy_pass import cut, cut_batch, run_policy, unroll_policy
from leco.learning.policy_step import (
    PolicyBatch,
    PolicyStep,
    Targets,
    gradients_of,
    minibatch_steps,
    policy_loss,
    policy_weight,
    shuffled,
    single_step,
)
from leco.models.kinds.minigrid import MiniGridPolicy
from support.plain_ppo import plain_steps
from support.reference import losses_numpy
from support.training_case import A, B, T, make_batch, paper_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leco.config.training import TrainingConfig
    from leco.learning.state import Params
    from leco.models.policy import Policy

SETTINGS = paper_config(entropy_cost=0.05, policy_learning_rate=0.01, policy_betas=(0.8, 0.95), eps=1e-4)
LENGTH = 3


class Case(NamedTuple):
    """A policy and a batch of six sequences of three steps, off policy by as much as makes clips active."""

    network: Policy
    parameters: Params
    batch: PolicyBatch


def make_case(*, on_policy: bool = False) -> Case:
    torch.manual_seed(4)
    network = MiniGridPolicy(A, 8).double()
    parameters = {
        name: (p + 0.1 * torch.randn_like(p)).detach().requires_grad_() for name, p in network.named_parameters()
    }
    batch = make_batch(3)._replace(core_state=torch.randn_like(network.initial_state(B)))
    unique = distinct(batch.observation_TBO.flatten(0, 1))
    rollout = unroll_policy(network, parameters, batch, unique, LENGTH)
    log_pi_TB = log_prob(rollout.logits_TBA, batch.action_TB).detach()
    log_mu_TB = log_pi_TB if on_policy else log_pi_TB + 0.5 * torch.randn_like(log_pi_TB)
    advantage_TB, target_TB = (torch.randn(T, B, dtype=torch.float64) for _ in range(2))
    rho_TB = (log_pi_TB - log_mu_TB).exp().clamp(max=1)
    learned = (batch.action_TB, log_pi_TB, log_mu_TB, advantage_TB, target_TB, rho_TB)
    targets = Targets(*(cut(each, LENGTH) for each in learned))
    return Case(network, parameters, PolicyBatch(cut_batch(batch, unique, rollout, LENGTH), targets, unique))


def remembered(parameters: Params) -> AdamState:
    """Adam after some steps along other gradients, so that a step is no mere sign."""
    mean = {name: 0.01 * torch.randn_like(p) for name, p in parameters.items()}
    return AdamState(mean, {name: 0.01 * torch.rand_like(p) for name, p in parameters.items()}, steps=4)


def close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].detach(), tensor.detach(), rtol=tolerance, atol=tolerance, msg=name)


def same_step(found: PolicyStep, expected: PolicyStep) -> None:
    close(found.parameters, expected.parameters)
    close(found.adam.exp_avg, expected.adam.exp_avg)
    close(found.adam.exp_avg_sq, expected.adam.exp_avg_sq)
    assert found.adam.steps == expected.adam.steps


def steps(case: Case, settings: TrainingConfig, before: AdamState | None = None, seed: int = 0) -> PolicyStep:
    before = before or init_adam(case.parameters)
    return minibatch_steps(case.network, case.parameters, before, case.batch, settings, seed=seed)


@pytest.mark.parametrize(("count", "epochs", "minibatches"), [(6, 3, 2), (128, 4, 8), (5, 2, 4), (7, 1, 7), (3, 2, 1)])
def test_every_sequence_is_used_once_an_epoch(count: int, epochs: int, minibatches: int) -> None:
    parts = [part.tolist() for part in shuffled(count, epochs, minibatches, seed=3)]
    assert len(parts) == epochs * minibatches
    for epoch in range(epochs):
        of_epoch = parts[epoch * minibatches : (epoch + 1) * minibatches]
        assert sorted(sequence for part in of_epoch for sequence in part) == list(range(count))
        sizes = {len(part) for part in of_epoch}
        assert max(sizes) - min(sizes) <= 1, "minibatches are as even as they can be"


def test_there_are_no_more_minibatches_than_sequences() -> None:
    assert [len(part) for part in shuffled(3, 2, 8, seed=0)] == [1] * 6


def test_the_order_of_sequences_depends_on_the_seed_alone_and_is_another_in_every_epoch() -> None:
    def order(seed: int) -> list[list[int]]:
        return [part.tolist() for part in shuffled(32, 3, 4, seed)]

    first = order(1)
    torch.manual_seed(99)
    assert order(1) == first
    assert order(2) != first
    assert len({tuple(first[4 * epoch]) for epoch in range(3)}) == 3
    assert [len(part) for part in first] == [8] * 12


@pytest.mark.parametrize("clip_range", [None, 0.2])
def test_the_loss_equals_the_naive_reference(clip_range: float | None) -> None:
    case = make_case()
    output = run_policy(case.network, case.parameters, case.batch.sequences, case.batch.unique)
    settings = dataclasses.replace(SETTINGS, clip_range=clip_range)
    loss = policy_loss(output.logits_TBA, output.value_TB, case.batch.targets, settings)
    logits, value = output.logits_TBA.detach().numpy(), output.value_TB.detach().numpy()
    action, _, log_mu, advantage, target, rho = (each.numpy() for each in case.batch.targets)
    log_pi = losses_numpy.log_prob(logits, action)
    gradient = (
        losses_numpy.policy_gradient_loss(log_pi, advantage, rho)
        if clip_range is None
        else losses_numpy.clipped_surrogate_loss(log_pi, log_mu, advantage, clip_range)
    )
    parts = gradient, losses_numpy.value_loss(value, target), losses_numpy.entropy(logits)
    assert [each.item() for each in loss[1:]] == pytest.approx(parts, rel=1e-10)
    assert loss.total.item() == pytest.approx(parts[0] + parts[1] - 0.05 * parts[2], rel=1e-10)


@pytest.mark.parametrize("clip_range", [None, 0.2])
def test_the_weight_is_the_factor_of_each_advantage_in_the_policys_gradient(clip_range: float | None) -> None:
    case, settings = make_case(), dataclasses.replace(SETTINGS, clip_range=clip_range)
    targets = case.batch.targets
    output = run_policy(case.network, case.parameters, case.batch.sequences, case.batch.unique)
    weight_SC = policy_weight(targets, settings)
    log_pi_SC = log_prob(output.logits_TBA, targets.action_SC)
    by_weight = -(weight_SC * targets.advantage_SC * log_pi_SC).mean()
    loss = policy_loss(output.logits_TBA, output.value_TB, targets, settings).policy_gradient
    close(gradients_of(loss, case.parameters, keep=True), gradients_of(by_weight, case.parameters), 1e-12)
    if clip_range is None:
        assert weight_SC is targets.rho_SC
    else:
        assert 0 < int((weight_SC == 0).sum()) < weight_SC.numel(), "some are clipped"


@pytest.mark.parametrize("max_norm", [None, 0.05])
@pytest.mark.parametrize("clip_range", [None, 0.2])
def test_one_epoch_of_one_minibatch_is_a_single_step(clip_range: float | None, max_norm: float | None) -> None:
    """Of the same loss; only what the modulator is told of it differs."""
    case, settings = make_case(), dataclasses.replace(SETTINGS, clip_range=clip_range, max_gradient_norm=max_norm)
    before = remembered(case.parameters)
    output = run_policy(case.network, case.parameters, case.batch.sequences, case.batch.unique)
    loss = policy_loss(output.logits_TBA, output.value_TB, case.batch.targets, settings)
    single = single_step(case.parameters, before, loss.total, settings, keep=False)
    several = steps(case, settings, before)
    same_step(several, single)
    assert several.adam.steps == 5
    expected = [loss.policy_gradient, loss.value, loss.entropy, single.stats["gradient_norm"]]
    names = ("policy_gradient_loss", "value_loss", "entropy", "gradient_norm")
    assert [several.stats[name].item() for name in names] == pytest.approx([each.item() for each in expected])


def test_on_policy_a_single_clipped_step_is_that_of_the_plain_policy_gradient() -> None:
    case = make_case(on_policy=True)
    before = remembered(case.parameters)
    plain = steps(case, SETTINGS, before)
    same_step(steps(case, dataclasses.replace(SETTINGS, clip_range=0.2), before), plain)
    same_step(steps(case, dataclasses.replace(SETTINGS, clip_range=1e-9), before), plain)
    off_policy = make_case()
    plain_bias, clipped_bias = (
        steps(off_policy, dataclasses.replace(SETTINGS, clip_range=clip_range), before).parameters["policy_head.bias"]
        for clip_range in (None, 0.2)
    )
    assert not torch.allclose(plain_bias, clipped_bias), "off policy PPO's ratio is no importance weight of V-trace"


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (1, 6), (3, 1), (2, 3), (2, 4)])
def test_epochs_of_minibatches_are_those_of_plain_pytorch(epochs: int, minibatches: int) -> None:
    settings = dataclasses.replace(
        SETTINGS, epochs=epochs, minibatches=minibatches, clip_range=0.2, max_gradient_norm=0.7
    )
    case = make_case()
    step = steps(case, settings, seed=5)
    expected, norms = plain_steps(case.network, case.parameters, case.batch, settings, seed=5)
    close(step.parameters, expected, 1e-8)
    assert step.adam.steps == len(norms) == epochs * minibatches
    assert step.stats["gradient_norm"].item() == pytest.approx(np.mean(norms), rel=1e-8)
    assert max(norms) > 0.7, "and the limit of the norm does something"


def test_steps_depend_on_their_inputs_alone() -> None:
    settings = dataclasses.replace(SETTINGS, epochs=2, minibatches=3, clip_range=0.2)
    case = make_case()
    given = {name: p.detach().clone() for name, p in case.parameters.items()}
    first = steps(case, settings, seed=1)
    torch.manual_seed(99)
    again, other = steps(case, settings, seed=1), steps(case, settings, seed=2)
    assert all(torch.equal(first.parameters[name], again.parameters[name]) for name in first.parameters)
    assert any(not torch.equal(first.parameters[name], other.parameters[name]) for name in first.parameters)
    assert all(torch.equal(case.parameters[name], p) for name, p in given.items()), "what was given is a value"
    assert not any(p.requires_grad for p in first.parameters.values())


def test_the_modulator_is_told_how_the_policy_was_moved() -> None:
    """A single step: Adam's derivative, and that of a limited norm. Many: they are seen as one, with v a constant."""
    case, before = make_case(), remembered(make_case().parameters)
    settings = dataclasses.replace(SETTINGS, epochs=2, minibatches=3, clip_range=0.2, max_gradient_norm=0.05)
    rates: dict[str, Any] = {"learning_rate": 0.01, "betas": (0.8, 0.95), "eps": 1e-4}
    many = steps(case, settings, before)
    close(many.jacobian_diag, adam_preconditioner(many.adam, **rates, steps=6), 0)
    assert many.clipping is None
    output = run_policy(case.network, case.parameters, case.batch.sequences, case.batch.unique)
    loss = policy_loss(output.logits_TBA, output.value_TB, case.batch.targets, settings).total
    gradients = gradients_of(loss, case.parameters, keep=True)
    norm = torch.cat([g.flatten() for g in gradients.values()]).norm()
    single = single_step(case.parameters, before, loss, settings, keep=False)
    limited = {name: g * 0.05 / norm for name, g in gradients.items()}
    close(single.jacobian_diag, adam_jacobian_diag(limited, single.adam, **rates), 1e-9)
    assert single.clipping is not None
    assert all(not each.abs().max() > 1e-9 for each in single.clipping(gradients).values()), "the norm stays"


def test_a_parameter_that_a_loss_does_not_depend_on_has_a_gradient_of_zero() -> None:
    one, other = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    loss = (2 * one).sum()
    found = gradients_of(loss, {"one": one, "other": other}, keep=True)
    assert (found["one"].tolist(), found["other"].tolist()) == ([2, 2], [0, 0, 0])
    assert gradients_of(loss, {"one": one})["one"].tolist() == [2, 2], "the graph was kept"


def test_targets_are_picked_with_their_sequences() -> None:
    targets, which = make_case().batch.targets, torch.tensor([4, 0])
    for found, whole in zip(targets.pick(which), targets, strict=True):
        assert found.tolist() == [[row[4], row[0]] for row in whole.tolist()]
