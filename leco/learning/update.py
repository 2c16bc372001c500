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

from leco.algo.adam import adam, adam_sensitivity, clip, clip_transposed
from leco.algo.bonus import adapted_lambda, intrinsic_reward, modulation, soft_asymmetric, total_reward
from leco.algo.dedup import distinct
from leco.algo.losses import entropy, log_prob, policy_gradient_loss, value_loss
from leco.algo.meta import reward_weights
from leco.algo.vtrace import vtrace
from leco.learning.intrinsic_pass import Chance, Looking
from leco.learning.policy_pass import follow, previous_action
from leco.novelty import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leco.algo.adam import AdamState, Clipped
    from leco.algo.dedup import Distinct
    from leco.algo.meta import Forward, RewardWeights
    from leco.algo.vtrace import VTrace
    from leco.learning.intrinsic_pass import Seen
    from leco.learning.state import Batch, Networks, Params, Settings, TrainingState
    from leco.methods import Method
    from leco.nets.policy import Policy
    from leco.novelty import Novel


def update(
    networks: Networks,
    state: TrainingState,
    batch: Batch,
    method: Method,
    settings: Settings,
    *,
    progress: float = 0.0,
    when_hashed: Callable[[], object] = lambda: None,
) -> tuple[TrainingState, dict[str, float]]:
    """One step on one batch.

    Args:
        networks: What is computed.
        state: With which numbers.
        batch: What was played.
        method, settings: How it is learned from.
        progress: The share of the run that is done, for what falls in its course.
        when_hashed: Called once, when the thread of the hash is done, perhaps in that thread: for what had better not compete
            with it for a processor. At once if the method has no hash.

    Returns:
        The state after it, and what to plot.
    """
    policy, intrinsic, running = _leaves(state.policy), _leaves(state.intrinsic), _copies(state.running)
    novelty, novelty_running = _leaves(state.novelty), _copies(state.novelty_running)
    unique = distinct(batch.observation_TBO.flatten(0, 1))
    chance = Chance(settings.decoded, state.updates)
    looking = _look(networks, {**intrinsic, **running}, unique, chance, when_hashed)  # goes on beside the policy
    acted = follow(networks.policy, policy, batch, unique)
    logits_TBA, value_TB = acted.logits_TBA[:-1], acted.value_TB
    log_pi_TB = log_prob(logits_TBA, batch.action_TB)

    novel = judge(
        networks.novelty,
        {**novelty, **novelty_running},
        batch,
        unique=unique,
        method=method,
        settings=settings,
        logits_TBA=logits_TBA,
    )
    r_ep_TB, stats = novel.r_ep_TB, novel.stats
    seen = None if looking is None else looking.see(batch, method, r_ep_TB)
    r_e_TB = _shaped(batch.reward_TB, settings)
    reward_TB, parts = _reward(seen, batch, method, settings, r_e_TB=r_e_TB, r_ep_TB=r_ep_TB)
    trace = partial(
        _trace,
        log_rho_TB=(log_pi_TB - log_prob(batch.behaviour_logits_TBA, batch.action_TB)).detach(),
        discount_TB=settings.gamma * (~batch.start_TB[1:]).to(reward_TB.dtype),
        decay=settings.trace_decay,
        cut_TB=batch.cut_TB if settings.go_on_after_cuts else None,
    )
    learned = trace(reward_TB, value_TB)  # V^{e+i}: what the policy learns from
    learned = _opposed(learned, novel, settings.reward_scale * settings.adversary * (1 - progress))

    gradient_loss = policy_gradient_loss(
        log_prob_TB=log_pi_TB, advantage_TB=learned.advantage_TB, rho_TB=learned.rho_TB
    )
    critic_loss = value_loss(value_TB=value_TB[:-1], target_TB=learned.target_TB)
    uncertainty = entropy(logits_TBA)
    virtual = seen is not None and settings.inner_loss == "policy-gradient"
    gradients = _gradients(gradient_loss + critic_loss - settings.entropy * uncertainty, policy, keep=virtual)
    step = _policy_step(policy, gradients, state.policy_adam, settings)
    stats |= parts | {"policy_gradient_loss": gradient_loss, "value_loss": critic_loss, "entropy": uncertainty}
    stats |= {
        "gradient_norm": step.clipped.norm,
        "distinct_share": (unique.multiplicity_U > 0).sum() / len(unique.index_N),
    }

    after = state._replace(
        policy=step.after,
        policy_adam=step.adam,
        running=running,
        novelty_running=novelty_running,
        updates=state.updates + 1,
    )
    loss = None
    if seen is not None:
        own = trace(settings.reward_scale * r_e_TB, seen.value_TB)  # V^e: the task's own rewards
        loss = stats["value_e_loss"] = value_loss(value_TB=seen.value_TB[:-1], target_TB=own.target_TB)
        # Until the task first rewards, V^e is zero and so is A_e: no step of the policy is then better than another.
        if own.advantage_TB.any():
            inner = step
            if virtual:
                inner = _policy_step(policy, _gradients(gradient_loss, policy, keep=False), state.policy_adam, settings)
            forward = partial(_judged, networks.policy, batch, unique)
            passes = (forward, partial(forward, known=acted.gates))
            answer = _answer(passes, policy, inner, batch, settings, log_pi_TB, learned.rho_TB, own.advantage_TB)
            loss = loss + (answer.advantage_TB * learned.advantage_TB).sum()
            if not virtual:
                loss = loss + (answer.target_TB * learned.target_TB).sum()
    if looking is not None:
        stats["hash_loss"], found = looking.learn(loss)
        moved = _descend(found, intrinsic, state.intrinsic_adam, settings.intrinsic_learning_rate, settings)
        after = after._replace(intrinsic=_held_back(state.intrinsic, moved[0], settings), intrinsic_adam=moved[1])
    if novel.loss is not None:
        found = _gradients(novel.loss, novelty, keep=False)
        moved = _descend(found, novelty, state.novelty_adam, settings.novelty_learning_rate, settings)
        after = after._replace(novelty=moved[0], novelty_adam=moved[1])
    return after, {name: value.item() for name, value in stats.items()}


def _look(
    networks: Networks, tensors: Params, unique: Distinct, chance: Chance, when_hashed: Callable[[], object]
) -> Looking | None:
    """Begins to look at the batch; None without a hash."""
    if networks.intrinsic is None:
        when_hashed()
        return None
    looking = Looking(networks.intrinsic, tensors, unique, chance)
    looking.then(when_hashed)
    return looking


def _shaped(reward_TB: Tensor, settings: Settings) -> Tensor:
    """The task's rewards as the learner takes them."""
    return soft_asymmetric(reward_TB) if settings.reward_shaping == "soft-asymmetric" else reward_TB


def _reward(
    seen: Seen | None, batch: Batch, method: Method, settings: Settings, *, r_e_TB: Tensor, r_ep_TB: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """r = scale (r_e + alpha r_i), differentiable with respect to the modulator; and its parts, to plot."""
    stats = {"r_e": batch.reward_TB.mean()}
    r_ta_TB = torch.zeros_like(r_ep_TB)
    if seen is not None:
        r_ta_TB = modulation(seen.scores_TBA, previous_action(batch)[:-1])
        stats["r_ta"] = r_ta_TB.mean()
    lambda_ = settings.lambda_ if method.lambda_ is None else method.lambda_
    if settings.adaptive_lambda:
        lambda_ = adapted_lambda(lambda_, r_ep_TB)
        stats["lambda"] = torch.tensor(lambda_)
    r_i_TB = intrinsic_reward(r_ep_TB, r_ta_TB, lambda_)
    stats["r_i"] = r_i_TB.mean()
    return settings.reward_scale * total_reward(r_e_TB, r_i_TB, settings.alpha), stats


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
    output = follow(network, policy, batch, unique, known)
    return output.logits_TBA[:-1], output.value_TB[:-1]


def _opposed(learned: VTrace, novel: Novel, weight: float) -> VTrace:
    """AGAC: actions that the adversary did not foresee are better than they were, and states where it is wrong worth more."""
    if novel.unforeseen_TB is None or novel.apart_TB is None:
        return learned
    return learned._replace(
        advantage_TB=learned.advantage_TB + weight * novel.unforeseen_TB,
        target_TB=learned.target_TB + weight * novel.apart_TB,
    )


class _Step(NamedTuple):
    """A step of the policy: along which gradients, what was left of them, and where it led."""

    gradients: Params
    clipped: Clipped
    after: Params
    adam: AdamState


def _policy_step(policy: Params, gradients: Params, before: AdamState, settings: Settings) -> _Step:
    clipped = clip(gradients, settings.max_gradient_norm)
    rates = {"learning_rate": settings.policy_learning_rate, "eps": settings.eps}
    return _Step(gradients, clipped, *adam(policy, clipped.gradients, before, betas=settings.policy_betas, **rates))


def _answer(
    passes: tuple[Forward, Forward], policy: Params, inner: _Step, batch: Batch, settings: Settings, *advantages: Tensor
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


def _descend(
    gradients: Params, parameters: Params, before: AdamState, rate: float, settings: Settings
) -> tuple[Params, AdamState]:
    """A step of networks other than the policy."""
    return adam(parameters, gradients, before, learning_rate=rate, betas=settings.intrinsic_betas, eps=settings.eps)


def _held_back(before: Params, after: Params, settings: Settings) -> Params:
    """The modulator's step with its own learning rate: a step of Adam is proportional to the rate."""
    if settings.modulator_learning_rate is None:
        return after
    share = settings.modulator_learning_rate / settings.intrinsic_learning_rate
    return {
        name: torch.lerp(before[name], moved, share) if name.startswith("modulator_") else moved
        for name, moved in after.items()
    }


def _leaves(tensors: Mapping[str, Tensor]) -> Params:
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def _copies(tensors: Mapping[str, Tensor]) -> Params:
    """Of what the forward pass changes."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _gradients(loss: Tensor, parameters: Params, *, keep: bool) -> Params:
    """Zero for a parameter that the loss does not depend on. `keep`: the graph is needed again."""
    found = torch.autograd.grad(loss, list(parameters.values()), retain_graph=keep, allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), found, strict=True)
    }
