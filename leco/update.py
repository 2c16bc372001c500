"""One training step: policy, hash and modulator.

It reads in the order of the paper: what the policy and the intrinsic module say of the batch; the rewards; V-trace twice, for
what the policy learns from and for the task's own rewards; the policy's step; how that step answers to the modulator; the
intrinsic module's step.

    T     actions in an unroll          B  unrolls in a batch       A  number of actions
    N     (T + 1) B observations        U  distinct ones of them
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from leco.algo.adam import adam, adam_sensitivity, clip, clip_transposed
from leco.algo.bonus import episodic_bonus, intrinsic_reward, modulation, total_reward
from leco.algo.dedup import distinct
from leco.algo.losses import entropy, log_prob, policy_gradient_loss, value_loss
from leco.algo.meta import reward_weights
from leco.algo.vtrace import vtrace
from leco.methods import Method, Novelty
from leco.seeing import Chance, see
from leco.training import Batch, Named, Networks, Settings, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leco.algo.adam import AdamState, Clipped
    from leco.algo.dedup import Distinct
    from leco.algo.meta import Forward, RewardWeights
    from leco.algo.vtrace import VTrace
    from leco.nets.policy import Policy, PolicyOutput
    from leco.seeing import Seen


def update(
    networks: Networks, state: State, batch: Batch, method: Method, settings: Settings
) -> tuple[State, dict[str, float]]:
    """One step on one batch.

    Returns:
        The state after it, and what to plot.
    """
    policy, intrinsic, running = _leaves(state.policy), _leaves(state.intrinsic), _copies(state.running)
    unique = distinct(batch.observation_TBO.flatten(0, 1))
    acted = _act(networks.policy, policy, batch, unique)
    logits_TBA, value_TB = acted.logits_TBA[:-1], acted.value_TB
    log_pi_TB = log_prob(logits_TBA, batch.action_TB)

    r_ep_TB, stats = _novelty(batch, method)
    seen = None
    if networks.intrinsic is not None:
        chance = Chance(settings.decoded, state.updates)
        tensors = {**intrinsic, **running}
        seen = see(networks.intrinsic, tensors, batch, unique, method, r_ep_TB=r_ep_TB, chance=chance)
    reward_TB, parts = _reward(seen, r_ep_TB, batch, method, settings)
    trace = partial(
        _trace,
        log_rho_TB=(log_pi_TB - log_prob(batch.behaviour_logits_TBA, batch.action_TB)).detach(),
        discount_TB=settings.gamma * (~batch.start_TB[1:]).to(reward_TB.dtype),
        decay=settings.trace_decay,
        cut_TB=batch.cut_TB if settings.go_on_after_cuts else None,
    )
    learned = trace(reward_TB, value_TB)  # V^{e+i}: what the policy learns from

    gradient_loss = policy_gradient_loss(
        log_prob_TB=log_pi_TB, advantage_TB=learned.advantage_TB, rho_TB=learned.rho_TB
    )
    critic_loss = value_loss(value_TB=value_TB[:-1], target_TB=learned.target_TB)
    uncertainty = entropy(logits_TBA)
    modulated = seen is not None and seen.scores_TBA is not None
    virtual = modulated and settings.inner_loss == "policy-gradient"
    gradients = _gradients(gradient_loss + critic_loss - settings.entropy * uncertainty, policy, keep=virtual)
    step = _policy_step(policy, gradients, state.policy_adam, settings)
    stats["gradient_norm"] = step.clipped.norm
    stats |= parts | {"policy_gradient_loss": gradient_loss, "value_loss": critic_loss, "entropy": uncertainty}
    stats["distinct_share"] = (unique.multiplicity_U > 0).sum() / len(unique.index_N)

    new_intrinsic, intrinsic_adam = state.intrinsic, state.intrinsic_adam
    if seen is not None:
        loss = seen.hash_loss
        if seen.value_TB is not None:
            inner = step
            if virtual:
                alone = _gradients(gradient_loss, policy, keep=False)
                inner = _policy_step(policy, alone, state.policy_adam, settings)
            own = trace(settings.reward_scale * batch.reward_TB, seen.value_TB)  # V^e: the task's own rewards
            own_loss = value_loss(value_TB=seen.value_TB[:-1], target_TB=own.target_TB)
            forward = partial(_judged, networks.policy, batch, unique)
            passes = (forward, partial(forward, known=acted.gates))
            answer = _answer(passes, policy, inner, batch, settings, log_pi_TB, learned.rho_TB, own.advantage_TB)
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
            betas=settings.intrinsic_betas,
            eps=settings.eps,
        )
        stats["hash_loss"] = seen.hash_loss
    after = State(step.after, step.adam, new_intrinsic, intrinsic_adam, running, state.updates + 1)
    return after, {name: value.item() for name, value in stats.items()}


def _act(
    network: Policy,
    policy: Mapping[str, Tensor],
    batch: Batch,
    unique: Distinct,
    known: tuple[Tensor, ...] | None = None,
) -> PolicyOutput:
    """What the policy with these parameters says of all T+1 observations."""
    previous_reward_TB = torch.cat([batch.previous_reward_B.unsqueeze(0), batch.reward_TB])
    output: PolicyOutput = functional_call(
        network,
        dict(policy),
        (
            unique.observation_UO,
            batch.start_TB,
            _previous_action(batch),
            previous_reward_TB.masked_fill(batch.start_TB, 0.0),
            batch.core_state,
        ),
        {"index_TB": unique.index_N.view(batch.start_TB.shape), "known": known},
    )
    return output


def _previous_action(batch: Batch) -> Tensor:
    """a[t-1] before each of the T+1 observations; -1 at the first of an episode."""
    action_TB = torch.cat([batch.previous_action_B.long().unsqueeze(0), batch.action_TB.long()])
    return action_TB.masked_fill(batch.start_TB, -1)


def _novelty(batch: Batch, method: Method) -> tuple[Tensor, dict[str, Tensor]]:
    """r_ep, zero for a method that asks for none; and what to plot of it."""
    if method.novelty is Novelty.NONE:
        return torch.zeros_like(batch.reward_TB), {}
    if batch.count_TB is None:
        raise ValueError(f"method {method.name!r} needs counts, and this batch has none")
    r_ep_TB = episodic_bonus(batch.count_TB, batch.reward_TB.dtype)
    return r_ep_TB, {"r_ep": r_ep_TB.mean(), "new_code_share": (batch.count_TB == 1).to(r_ep_TB.dtype).mean()}


def _reward(
    seen: Seen | None, r_ep_TB: Tensor, batch: Batch, method: Method, settings: Settings
) -> tuple[Tensor, dict[str, Tensor]]:
    """r = scale (r_e + alpha r_i), differentiable with respect to the modulator; and its parts, to plot."""
    stats = {"r_e": batch.reward_TB.mean()}
    r_ta_TB = torch.zeros_like(r_ep_TB)
    if seen is not None and seen.scores_TBA is not None:
        r_ta_TB = modulation(seen.scores_TBA, _previous_action(batch)[:-1])
        stats["r_ta"] = r_ta_TB.mean()
    lambda_ = settings.lambda_ if method.lambda_ is None else method.lambda_
    r_i_TB = intrinsic_reward(r_ep_TB, r_ta_TB, lambda_)
    stats["r_i"] = r_i_TB.mean()
    return settings.reward_scale * total_reward(batch.reward_TB, r_i_TB, settings.alpha), stats


def _trace(
    reward_TB: Tensor, value_TB: Tensor, *, log_rho_TB: Tensor, discount_TB: Tensor, decay: float, cut_TB: Tensor | None
) -> VTrace:
    if cut_TB is not None:  # as if the rest of the episode, of which nothing is known, were worth what was expected
        reward_TB = torch.where(cut_TB, value_TB[:-1].detach(), reward_TB)
    return vtrace(
        log_rho_TB=log_rho_TB,
        reward_TB=reward_TB,
        discount_TB=discount_TB,
        value_TB=value_TB[:-1],
        bootstrap_B=value_TB[-1],
        decay=decay,
    )


def _judged(
    network: Policy,
    batch: Batch,
    unique: Distinct,
    policy: Mapping[str, Tensor],
    known: tuple[Tensor, ...] | None = None,
) -> tuple[Tensor, Tensor]:
    """Logits and values of the T actions."""
    output = _act(network, policy, batch, unique, known)
    return output.logits_TBA[:-1], output.value_TB[:-1]


class _Step(NamedTuple):
    """A step of the policy: along which gradients, what was left of them, and where it led."""

    gradients: Named
    clipped: Clipped
    after: Named
    adam: AdamState


def _policy_step(policy: Named, gradients: Named, before: AdamState, settings: Settings) -> _Step:
    clipped = clip(gradients, settings.max_gradient_norm)
    rates = {"learning_rate": settings.policy_learning_rate, "eps": settings.eps}
    return _Step(gradients, clipped, *adam(policy, clipped.gradients, before, betas=settings.policy_betas, **rates))


def _answer(
    passes: tuple[Forward, Forward], policy: Named, inner: _Step, batch: Batch, settings: Settings, *advantages: Tensor
) -> RewardWeights:
    """How the task's own objective, after the policy's step, answers to each advantage and target of the inner loss."""
    log_pi_TB, rho_TB, advantage_e_TB = advantages
    forward, tangents = passes
    rates = {"learning_rate": settings.policy_learning_rate, "eps": settings.eps}
    return reward_weights(
        forward,
        policy,
        inner.after,
        adam_sensitivity(inner.clipped.gradients, inner.adam, betas=settings.policy_betas, **rates),
        tangents=tangents,
        clipping=partial(clip_transposed, gradients=inner.gradients, clipped=inner.clipped),
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
