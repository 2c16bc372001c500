"""One training step: policy, hash and modulator.

It reads in the order of the paper: what the policy and the intrinsic module say of the batch; the rewards; V-trace twice, for
what the policy learns from and for the task's own rewards; the policy's step; how that step answers to the modulator; the
intrinsic module's step.

    T     actions in an unroll          B  unrolls in a batch       A  number of actions
    N     (T + 1) B observations        U  distinct ones of them    O... shape of one observation
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leco.algo.adam import adam, adam_sensitivity
from leco.algo.bonus import episodic_bonus, intrinsic_reward, modulation, total_reward
from leco.algo.dedup import distinct, expand
from leco.algo.losses import entropy, log_prob, policy_gradient_loss, reconstruction_loss, value_loss
from leco.algo.meta import reward_weights
from leco.algo.quantize import quantize
from leco.algo.vtrace import vtrace
from leco.methods import Method, Modulation, Novelty
from leco.training import Batch, Named, Networks, Settings, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leco.algo.adam import AdamState
    from leco.algo.meta import RewardWeights
    from leco.algo.vtrace import VTrace
    from leco.nets.intrinsic import Intrinsic


def update(
    networks: Networks, state: State, batch: Batch, method: Method, settings: Settings
) -> tuple[State, dict[str, float]]:
    """One step on one batch.

    Returns:
        The state after it, and what to plot.
    """
    policy, intrinsic, running = _leaves(state.policy), _leaves(state.intrinsic), _copies(state.running)
    logits_TBA, value_TB = _act(networks.policy, policy, batch)
    log_pi_TB = log_prob(logits_TBA, batch.action_TB)
    seen = _see(networks.intrinsic, {**intrinsic, **running}, batch) if networks.intrinsic is not None else None

    reward_TB, stats = _reward(seen, batch, method, settings)
    trace = partial(
        _trace,
        log_rho_TB=(log_pi_TB - log_prob(batch.behaviour_logits_TBA, batch.action_TB)).detach(),
        discount_TB=settings.gamma * (~batch.start_TB[1:]).to(reward_TB.dtype),
    )
    learned = trace(reward_TB, value_TB)  # V^{e+i}: what the policy learns from

    gradient_loss = policy_gradient_loss(
        log_prob_TB=log_pi_TB, advantage_TB=learned.advantage_TB, rho_TB=learned.rho_TB
    )
    critic_loss = value_loss(value_TB=value_TB[:-1], target_TB=learned.target_TB)
    uncertainty = entropy(logits_TBA)
    modulated = seen is not None and method.modulation is Modulation.ADDITIVE
    virtual = modulated and settings.inner_loss == "policy-gradient"
    gradients = _gradients(gradient_loss + critic_loss - settings.entropy * uncertainty, policy, keep=virtual)
    policy_step = partial(adam, learning_rate=settings.policy_learning_rate, betas=settings.betas, eps=settings.eps)
    new_policy, policy_adam = policy_step(policy, gradients, state.policy_adam)
    stats |= {"policy_gradient_loss": gradient_loss, "value_loss": critic_loss, "entropy": uncertainty}

    new_intrinsic, intrinsic_adam = state.intrinsic, state.intrinsic_adam
    if seen is not None:
        loss = seen.hash_loss
        if modulated:
            inner = (gradients, new_policy, policy_adam)
            if virtual:
                alone = _gradients(gradient_loss, policy, keep=False)
                inner = (alone, *policy_step(policy, alone, state.policy_adam))
            own = trace(batch.reward_TB, seen.value_TB)  # V^e: the task's own rewards
            own_loss = value_loss(value_TB=seen.value_TB[:-1], target_TB=own.target_TB)
            answer = _answer(
                networks.policy, policy, inner, batch, settings, log_pi_TB, learned.rho_TB, own.advantage_TB
            )
            outer = (answer.advantage_TB * learned.advantage_TB).sum()
            if not virtual:
                outer = outer + (answer.target_TB * learned.target_TB).sum()
            loss = loss + own_loss + outer
            stats["value_e_loss"] = own_loss
        new_intrinsic, intrinsic_adam = adam(
            intrinsic,
            _gradients(loss, intrinsic, keep=False),
            intrinsic_adam,
            learning_rate=settings.intrinsic_learning_rate,
            betas=settings.betas,
            eps=settings.eps,
        )
        stats |= {"hash_loss": seen.hash_loss, "distinct_share": seen.distinct_share}
    after = State(new_policy, policy_adam, new_intrinsic, intrinsic_adam, running, state.updates + 1)
    return after, {name: value.item() for name, value in stats.items()}


def _act(network: nn.Module, policy: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    """What the policy with these parameters says: logits of the T actions, values of all T+1 observations."""
    previous_reward_TB = torch.cat([batch.previous_reward_B.unsqueeze(0), batch.reward_TB])
    output = functional_call(
        network,
        dict(policy),
        (
            batch.observation_TBO,
            batch.start_TB,
            _previous_action(batch),
            previous_reward_TB.masked_fill(batch.start_TB, 0.0),
            batch.core_state,
        ),
    )
    return output.logits_TBA[:-1], output.value_TB


def _previous_action(batch: Batch) -> Tensor:
    """a[t-1] before each of the T+1 observations; -1 at the first of an episode."""
    action_TB = torch.cat([batch.previous_action_B.long().unsqueeze(0), batch.action_TB.long()])
    return action_TB.masked_fill(batch.start_TB, -1)


class Seen(NamedTuple):
    """What the intrinsic module says of a batch.

    hash_loss       reconstruction, codebook and commitment
    value_TB        V^e of all T+1 observations
    scores_TBA      f_ta(z_e[t], a[t])
    distinct_share  distinct observations of all
    """

    hash_loss: Tensor
    value_TB: Tensor
    scores_TBA: Tensor
    distinct_share: Tensor


class _View(nn.Module):
    """The intrinsic module as one function of a batch, since `functional_call` calls `forward` alone."""

    def __init__(self, net: Intrinsic) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Batch) -> Seen:
        shape_TB = batch.start_TB.shape
        observation_UO, times_U, index_N = distinct(batch.observation_TBO.flatten(0, 1))
        z_UDHW = self.net.encode(observation_UO, times_U)
        coded = quantize(z_UDHW, self.net.codebook, times_U)
        picture = self.net.decode(coded.z_q_NDHW, times_U)
        reconstruction = reconstruction_loss(picture, self.net.target(observation_UO), times_U)
        z_UF = z_UDHW.flatten(1)
        acting = batch.action_TB.numel()  # the last observations only bootstrap
        scores_NA = self.net.modulate(z_UF, batch.action_TB.flatten(), index_N[:acting])
        return Seen(
            hash_loss=reconstruction + coded.codebook_term + coded.commitment_term,
            value_TB=expand(self.net.value(z_UF), index_N).view(shape_TB),
            scores_TBA=scores_NA.view(*batch.action_TB.shape, -1),
            distinct_share=(times_U > 0).sum() / len(index_N),
        )


def _see(net: Intrinsic, tensors: Named, batch: Batch) -> Seen:
    seen: Seen = functional_call(_View(net).train(), {f"net.{name}": t for name, t in tensors.items()}, (batch,))
    return seen


def _reward(seen: Seen | None, batch: Batch, method: Method, settings: Settings) -> tuple[Tensor, dict[str, Tensor]]:
    """r = r_e + alpha r_i, differentiable with respect to the modulator; and its parts, to plot."""
    r_e_TB = batch.reward_TB
    stats = {"r_e": r_e_TB.mean()}
    r_ep_TB = r_ta_TB = torch.zeros_like(r_e_TB)
    if method.novelty is Novelty.COUNT:
        if batch.count_TB is None:
            raise ValueError(f"method {method.name!r} needs counts, and this batch has none")
        r_ep_TB = episodic_bonus(batch.count_TB, r_e_TB.dtype)
        stats |= {"r_ep": r_ep_TB.mean(), "new_code_share": (batch.count_TB == 1).to(r_e_TB.dtype).mean()}
    if method.modulation is Modulation.ADDITIVE and seen is not None:
        r_ta_TB = modulation(seen.scores_TBA, _previous_action(batch)[:-1])
        stats["r_ta"] = r_ta_TB.mean()
    lambda_ = settings.lambda_ if method.lambda_ is None else method.lambda_
    r_i_TB = intrinsic_reward(r_ep_TB, r_ta_TB, lambda_)
    stats["r_i"] = r_i_TB.mean()
    return total_reward(r_e_TB, r_i_TB, settings.alpha), stats


def _trace(reward_TB: Tensor, value_TB: Tensor, *, log_rho_TB: Tensor, discount_TB: Tensor) -> VTrace:
    return vtrace(
        log_rho_TB=log_rho_TB,
        reward_TB=reward_TB,
        discount_TB=discount_TB,
        value_TB=value_TB[:-1],
        bootstrap_B=value_TB[-1],
    )


def _answer(
    network: nn.Module,
    policy: Named,
    inner: tuple[Named, Named, AdamState],
    batch: Batch,
    settings: Settings,
    *advantages: Tensor,
) -> RewardWeights:
    """How the task's own objective, after the policy's step, answers to each advantage and target of the inner loss."""
    gradients, after, adam_after = inner
    log_pi_TB, rho_TB, advantage_e_TB = advantages

    def forward(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits_TBA, value_TB = _act(network, parameters, batch)
        return logits_TBA, value_TB[:-1]

    return reward_weights(
        forward,
        policy,
        after,
        adam_sensitivity(
            gradients, adam_after, learning_rate=settings.policy_learning_rate, betas=settings.betas, eps=settings.eps
        ),
        action_TB=batch.action_TB,
        behind_TB=log_pi_TB.detach(),
        rho_TB=rho_TB,
        advantage_e_TB=advantage_e_TB,
    )


def _leaves(tensors: Mapping[str, Tensor]) -> Named:
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def _copies(tensors: Mapping[str, Tensor]) -> Named:
    """Of what the forward pass changes."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _gradients(loss: Tensor, parameters: Named, *, keep: bool) -> Named:
    """Zero for a parameter that the loss does not depend on. `keep`: the graph is needed again."""
    found = torch.autograd.grad(loss, list(parameters.values()), retain_graph=keep, allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), found, strict=True)
    }
