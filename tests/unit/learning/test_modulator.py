"""The whole intrinsic gradient of `update`, against plain double back-propagation through the real networks.

The reference differentiates twice through a plain loop over time and a hand-written Adam, sees every observation and not only the
distinct ones, and shares with `update` only functions that have tests of their own.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import leco.learning.modulator
from leco.algo.dedup import distinct
from leco.algo.losses import entropy, log_prob, reconstruction_loss
from leco.algo.optim import AdamState
from leco.algo.quantize import quantize
from leco.algo.vtrace import vtrace
from leco.learning.state import Batch, Networks, TrainingState, init
from leco.learning.update import update
from leco.methods.table import find_method
from leco.models.intrinsic import HashModule
from leco.models.lstm import CoreOutput, LstmCore
from leco.models.vq import LSHBottleneck
from support.training_case import A, B, T, make_batch, networks, paper_config

if TYPE_CHECKING:
    from leco.models.intrinsic import Intrinsic

SETTINGS = paper_config(alpha=0.7, entropy_cost=0.05, policy_learning_rate=0.01)


def plain_core(core: LstmCore, x_TBI: Tensor, start_TB: Tensor, state: Tensor, **_: object) -> CoreOutput:
    """One layer, step by step, as it can be differentiated twice."""
    (h_BH, c_BH), outputs = state[0], []
    for x_BI, start_B in zip(x_TBI, start_TB, strict=True):
        alive_B1 = (~start_B).to(h_BH.dtype)[:, None]
        gates_B4H = x_BI @ core.weight_ih[0].T + (h_BH * alive_B1) @ core.weight_hh[0].T + core.bias[0]
        i, f, g, o = gates_B4H.chunk(4, 1)
        c_BH = f.sigmoid() * c_BH * alive_B1 + i.sigmoid() * g.tanh()
        h_BH = o.sigmoid() * c_BH.tanh()
        outputs.append(h_BH)
    return CoreOutput(torch.stack(outputs), torch.stack([h_BH, c_BH]).unsqueeze(0), ())


def act(policy: nn.Module, parameters: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    unused = torch.zeros(T + 1, B)
    output = functional_call(
        policy, parameters, (batch.observation_TBO, batch.start_TB, unused, unused, batch.core_state)
    )
    return output.logits_TBA[:-1], output.value_TB


def reference(
    nets: Networks, batch: Batch, adam: AdamState, method: str, *, whole: bool, max_norm: float | None, small: bool
) -> dict[str, Tensor]:
    net = nets.intrinsic
    assert net is not None
    assert batch.count_TB is not None
    policy = {name: p.detach().clone().requires_grad_() for name, p in nets.policy.named_parameters()}
    logits, value = act(nets.policy, policy, batch)
    log_pi = log_prob(logits, batch.action_TB)
    log_rho = (log_pi - log_prob(batch.behaviour_logits_TBA, batch.action_TB)).detach()
    discount = 0.99 * (~batch.start_TB[1:]).double()

    r_ep = 1 / batch.count_TB.double().sqrt()
    hash_loss, value_e, r_ta = look(net, batch, r_ep if method == "leco-naive" else None)
    reward = batch.reward_TB + 0.7 * (r_ta if method == "leco-naive" else 0.5 * r_ep + 0.5 * r_ta)
    trace = partial(vtrace, log_rho_TB=log_rho, discount_TB=discount, decay=0.8 if small else 1.0)
    if small:
        assert batch.truncated_TB is not None
        reward = torch.where(batch.truncated_TB, value[:-1].detach(), 3 * reward)
    learned = trace(reward_TB=reward, value_TB=value[:-1], bootstrap_B=value[-1])
    own_reward = batch.reward_TB
    if batch.truncated_TB is not None:
        own_reward = torch.where(batch.truncated_TB, value_e[:-1].detach(), 3 * batch.reward_TB)
    own = trace(reward_TB=own_reward, value_TB=value_e[:-1], bootstrap_B=value_e[-1])

    inner = -(learned.rho_TB * log_pi * learned.advantage_TB).mean()
    if whole:
        inner = inner + 0.5 * (value[:-1] - learned.target_TB).square().mean() - 0.05 * entropy(logits)
    gradients = torch.autograd.grad(inner, list(policy.values()), create_graph=True, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(policy.values(), gradients, strict=True)]
    if max_norm is not None:
        norm = torch.stack([g.square().sum() for g in filled]).sum().sqrt()
        assert norm > max_norm, "it is clipped"
        filled = [g * max_norm / (norm + 1e-12) for g in filled]
    moved = {}
    for (name, p), g in zip(policy.items(), filled, strict=True):
        m = (0.9 * adam.exp_avg[name] + 0.1 * g) / (1 - 0.9 ** (adam.steps + 1))
        v = (0.999 * adam.exp_avg_sq[name] + 0.001 * g * g) / (1 - 0.999 ** (adam.steps + 1))
        moved[name] = p - 0.01 * m / (v.sqrt() + 1e-6)
    ahead = log_prob(act(nets.policy, moved, batch)[0], batch.action_TB)
    ratio = (ahead - log_pi).exp().clamp(max=1).detach()
    outer = -(ratio * ahead * own.advantage_TB.detach()).mean()
    loss = hash_loss + 0.5 * (value_e[:-1] - own.target_TB.detach()).square().mean() + outer
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def look(net: Intrinsic, batch: Batch, told: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Hash loss, V^e and r_ta, from every observation. `told`: r_ep, to a modulator that does not train the encoder."""
    assert isinstance(net, HashModule)
    observation = batch.observation_TBO.flatten(0, 1)
    z = net.train().encode(observation)
    if isinstance(net.bottleneck, LSHBottleneck):
        b = torch.sigmoid(net.bottleneck.narrow(z.flatten(1)))
        unique = distinct(observation)
        noise = torch.rand(len(unique.observation_UO), 256, dtype=b.dtype, generator=torch.Generator().manual_seed(0))
        picture = net.decode(net.bottleneck.widen(b + 0.6 * noise[unique.index_N] - 0.3).view(z.shape))
        extra = 10 * torch.minimum(b * b, (1 - b) ** 2).mean()
    else:
        coded = quantize(z, net.bottleneck.vectors)
        picture, extra = net.decode(coded.z_q_NDHW), coded.codebook_term + coded.commitment_term
    hash_loss = reconstruction_loss(picture, net.target(observation)) + extra
    z = z.flatten(1)
    judged = z[: T * B] if told is None else z[: T * B].detach()
    scores = net.modulate(judged, batch.action_TB.flatten(), novelty_N=None if told is None else told.flatten())
    scores = scores.view(T, B, A)
    r_ta = []
    for t in range(T):
        previous = batch.previous_action_B if t == 0 else batch.action_TB[t - 1]
        row = scores[t].gather(1, previous.clamp(min=0)[:, None])[:, 0].tanh()
        r_ta.append(torch.where(batch.start_TB[t], torch.zeros_like(row), row))
    return hash_loss, net.value(z).view(T + 1, B), torch.stack(r_ta)


def remembered(state: TrainingState) -> AdamState:
    """As if the policy had taken steps before."""
    generator = torch.Generator().manual_seed(4)
    random = {name: torch.randn(p.shape, dtype=p.dtype, generator=generator) for name, p in state.policy.items()}
    return AdamState(
        {name: 0.01 * r for name, r in random.items()},
        {name: 1e-4 * (0.1 + r * r) for name, r in random.items()},
        steps=3,
    )


@pytest.mark.parametrize("inner_loss", ["policy-gradient", "full"])
@pytest.mark.parametrize(
    ("name", "max_norm", "small"),
    [
        ("leco", None, 1.0),
        ("leco-ae-lsh", None, 1.0),
        ("leco-naive", None, 1.0),
        ("leco", 0.05, 1.0),
        ("leco", None, 0.8),
    ],
)
def test_update_equals_double_backpropagation(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    max_norm: float | None,
    small: bool,
    inner_loss: Literal["policy-gradient", "full"],
) -> None:
    nets, batch = networks(name), make_batch(3)
    assert batch.start_TB[1:-1].any(), "an episode begins inside the unroll"
    state = init(nets)
    adam = remembered(state)
    settings = dataclasses.replace(SETTINGS, inner_loss=inner_loss, max_gradient_norm=max_norm)
    if small:  # what small budgets need: decay, scale, and episodes that go on after a cut
        settings = dataclasses.replace(settings, vtrace_lambda=0.8, reward_scale=3.0, bootstrap_on_truncation=True)
        batch = batch._replace(truncated_TB=batch.start_TB[1:].clone())
        assert batch.truncated_TB is not None
        batch.truncated_TB[:, 0] = False
    after, _ = update(nets, state._replace(policy_adam=adam), batch, find_method(name), settings)

    monkeypatch.setattr(LstmCore, "forward", plain_core)
    expected = reference(nets, batch, adam, name, whole=inner_loss == "full", max_norm=max_norm, small=small)
    for key, gradient in expected.items():
        found = after.intrinsic_adam.exp_avg[key] / (1 - 0.9)  # Adam's first mean is the gradient
        assert (found - gradient).norm() <= 1e-9 * (gradient.norm() + 1e-6), key
    assert expected["modulator_out.weight"].norm() > 1e-6


@pytest.mark.parametrize("inner_loss", ["policy-gradient", "full"])
def test_until_the_task_rewards_the_policy_is_not_asked_and_the_gradients_are_the_same(
    monkeypatch: pytest.MonkeyPatch, inner_loss: Literal["policy-gradient", "full"]
) -> None:
    nets, batch = networks("leco"), make_batch(3)
    batch = batch._replace(reward_TB=torch.zeros_like(batch.reward_TB))
    assert nets.intrinsic is not None
    for parameter in nets.intrinsic.value_head[-1].parameters():  # as it begins
        nn.init.zeros_(parameter)
    state = init(nets)
    adam = remembered(state)
    judged: list[object] = []
    monkeypatch.setattr(leco.learning.modulator, "modulator_loss", lambda *given, **_: judged.append(given))
    settings = dataclasses.replace(SETTINGS, inner_loss=inner_loss, max_gradient_norm=None)
    after, stats = update(nets, state._replace(policy_adam=adam), batch, find_method("leco"), settings)
    assert (judged, stats["extrinsic_value_loss"]) == ([], 0.0)

    monkeypatch.setattr(LstmCore, "forward", plain_core)
    expected = reference(nets, batch, adam, "leco", whole=inner_loss == "full", max_norm=None, small=False)
    for key, gradient in expected.items():
        found = after.intrinsic_adam.exp_avg[key] / (1 - 0.9)
        assert (found - gradient).norm() <= 1e-9 * gradient.norm(), key
    assert expected["modulator_out.weight"].norm() == 0
    assert expected["encoder.0.convolution.weight"].norm() > 0


REUSE = dataclasses.replace(
    SETTINGS,
    epochs=2,
    minibatches=3,
    sequence_length=3,
    clip_range=0.2,
    normalize_advantages=True,
    max_gradient_norm=0.05,
    vtrace_lambda=0.9,
    episodic_bonus="first-visit",
    center_bonus=True,
    penalty_on_revisits=True,
)


def by_sequences(
    policy: nn.Module, parameters: dict[str, Tensor], batch: Batch, length: int, states: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Logits of the T actions and values of the T + 1 observations; no gradient passes from one sequence to the next.

    states: those before the sequences. The first is given; others that are not are found.
    """
    logits, values = [], []
    for number, begin in enumerate(range(0, T + 1, length)):
        piece = slice(begin, begin + length)
        start = batch.start_TB[piece]
        inputs = (batch.observation_TBO[piece], start, torch.zeros(start.shape), torch.zeros(start.shape))
        output = functional_call(policy, parameters, (*inputs, states[number]))
        if len(states) == number + 1:
            states.append(output.state.detach())
        logits.append(output.logits_TBA)
        values.append(output.value_TB)
    return torch.cat(logits)[:-1], torch.cat(values)


@pytest.mark.parametrize("inner_loss", ["policy-gradient", "full"])
@pytest.mark.parametrize("kind", [None, "exact"])
def test_the_steps_of_a_batch_seen_as_one_equal_double_backpropagation(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, inner_loss: Literal["policy-gradient", "full"]
) -> None:
    """theta'(r_ta) is where the policy really went, plus D times the change of the whole batch's gradient at theta.

    Constants are: the states before the sequences, D = -6 lr / (sqrt(v^) + eps) of the last step, the limit of the norm, the mean
    and the deviation of advantages.
    """
    method = find_method("leco", kind)
    nets, batch = networks("leco", kind), make_batch(3)
    net = nets.intrinsic
    assert net is not None
    assert batch.count_TB is not None
    state = init(nets)
    adam = remembered(state)
    settings = dataclasses.replace(REUSE, inner_loss=inner_loss)
    after, _ = update(nets, state._replace(policy_adam=adam), batch, method, settings)
    assert after.policy_adam.steps == adam.steps + 6

    monkeypatch.setattr(LstmCore, "forward", plain_core)
    policy = {name: p.detach().clone().requires_grad_() for name, p in nets.policy.named_parameters()}
    states = [batch.core_state]
    logits, value = by_sequences(nets.policy, policy, batch, 3, states)
    log_pi = log_prob(logits, batch.action_TB)
    log_rho = (log_pi - log_prob(batch.behaviour_logits_TBA, batch.action_TB)).detach()
    new = (batch.count_TB == 1).double()
    if kind is None:
        hash_loss, value_e, r_ta = look(net, batch, None)
    else:
        hash_loss, (value_e, r_ta) = torch.zeros(()), look_at_features(net, batch)
    assert ((r_ta > 0) & (new == 0)).any(), "the guard does something"
    r_ta = torch.where(new == 1, r_ta, torch.minimum(r_ta, torch.zeros(())))
    reward = batch.reward_TB + 0.7 * (0.5 * (new - new.mean()) + 0.5 * r_ta)
    trace = partial(vtrace, log_rho_TB=log_rho, discount_TB=0.99 * (~batch.start_TB[1:]).double(), decay=0.9)
    learned = trace(reward_TB=reward, value_TB=value[:-1], bootstrap_B=value[-1])
    own = trace(reward_TB=batch.reward_TB, value_TB=value_e[:-1], bootstrap_B=value_e[-1])
    constant = learned.advantage_TB.detach()
    advantage = (learned.advantage_TB - constant.mean()) / (constant.std(correction=0) + 1e-8)
    ratio = (log_pi - log_prob(batch.behaviour_logits_TBA, batch.action_TB)).exp()
    inner = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    beyond = torch.where(advantage > 0, ratio > 1.2, ratio < 0.8)
    assert 0 < beyond.sum() < beyond.numel(), "the clip is active for some"
    if inner_loss == "full":
        inner = inner + 0.5 * (value[:-1] - learned.target_TB).square().mean() - 0.05 * entropy(logits)
    gradients = torch.autograd.grad(inner, list(policy.values()), create_graph=True, allow_unused=True)
    moved = {}
    for (name, p), g in zip(policy.items(), gradients, strict=True):
        change = torch.zeros_like(p) if g is None else g - g.detach()
        v = after.policy_adam.exp_avg_sq[name] / (1 - 0.999 ** (adam.steps + 6))
        moved[name] = after.policy[name] - 6 * 0.01 / (v.sqrt() + 1e-6) * change
    log_pi_new = log_prob(by_sequences(nets.policy, moved, batch, 3, states)[0], batch.action_TB)
    weight = (log_pi_new - log_pi).exp().clamp(max=1).detach()
    outer = -(weight * log_pi_new * own.advantage_TB.detach()).mean()
    loss = hash_loss + 0.5 * (value_e[:-1] - own.target_TB.detach()).square().mean() + outer
    names, parameters = zip(*net.named_parameters(), strict=True)
    for key, gradient in zip(names, torch.autograd.grad(loss, parameters), strict=True):
        found = after.intrinsic_adam.exp_avg[key] / (1 - 0.9)
        assert (found - gradient).norm() <= 1e-9 * (gradient.norm() + 1e-6), key
        if key == "modulator_out.weight":
            assert gradient.norm() > 1e-6


def look_at_features(net: Intrinsic, batch: Batch) -> tuple[Tensor, Tensor]:
    """V^e and r_ta of a module without a learned hash, from every observation."""
    z = net.encode(batch.observation_TBO.flatten(0, 1))
    scores = net.modulate(z[: T * B], batch.action_TB.flatten()).view(T, B, A)
    r_ta = []
    for t in range(T):
        previous = batch.previous_action_B if t == 0 else batch.action_TB[t - 1]
        row = scores[t].gather(1, previous.clamp(min=0)[:, None])[:, 0].tanh()
        r_ta.append(torch.where(batch.start_TB[t], torch.zeros_like(row), row))
    return net.value(z).view(T + 1, B), torch.stack(r_ta)
