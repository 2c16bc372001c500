"""One training step: policy, hash and modulator, in the order of the paper.

T     actions in an unroll          B  unrolls in a batch       A  number of actions
N     (T + 1) B observations        U  distinct ones of them
S, C  steps of a sequence, and how many there are (leco/learning/policy_pass.py)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leco.algo.dedup import distinct
from leco.algo.losses import log_prob, standardize, value_loss
from leco.algo.optim import adam
from leco.algo.vtrace import vtrace
from leco.config.training import at_frame
from leco.learning.intrinsic_pass import DecoderSampling, IntrinsicPass
from leco.learning.modulator import modulator_loss
from leco.learning.policy_pass import cut, cut_batch, unroll_policy
from leco.learning.policy_step import (
    PolicyBatch,
    Targets,
    gradients_of,
    leaves,
    minibatch_steps,
    policy_loss,
    policy_weight,
    single_step,
)
from leco.learning.rewards import compute_rewards, explained_variance, running_mean, running_trust
from leco.methods.novelty import compute_novelty
from leco.methods.table import Modulation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leco.algo.dedup import Distinct
    from leco.algo.optim import AdamState
    from leco.algo.vtrace import VTrace
    from leco.config.training import TrainingConfig
    from leco.learning.policy_pass import Rollout
    from leco.learning.policy_step import PolicyStep
    from leco.learning.state import Batch, Networks, Params, TrainingState
    from leco.methods.novelty import NoveltyOutput
    from leco.methods.table import Method


def update(
    networks: Networks,
    state: TrainingState,
    batch: Batch,
    method: Method,
    settings: TrainingConfig,
    *,
    progress: float = 0.0,
    when_hashed: Callable[[], object] = lambda: None,
    on_policy: Callable[[Params], object] = lambda _: None,
) -> tuple[TrainingState, dict[str, float]]:
    """One step on one batch: the state after it, and what to plot.

    networks          what is computed
    state             with which numbers
    batch             what was played
    method, settings  how it is learned from
    progress          the share of the run that is done, for what falls in its course
    when_hashed       called once, when the thread of the hash is done, perhaps in that thread: for what had better not compete
                      with it for a processor. At once if the method has no intrinsic module
    on_policy         called with the policy's new parameters as soon as they are known: actors need not wait for the rest
    """
    settings = at_frame(settings, state.updates * batch.action_TB.numel())
    theta, phi, running = leaves(state.policy), leaves(state.intrinsic), _copies(state.running)
    chi, chi_running = leaves(state.novelty), _copies(state.novelty_running)
    unique = distinct(batch.observation_TBO.flatten(0, 1))
    length = min(settings.sequence_length or len(batch.action_TB), len(batch.action_TB))
    single = settings.epochs * settings.minibatches == 1 and length == len(batch.action_TB)

    sampling = DecoderSampling(settings.decoder_samples, state.updates)
    intrinsic = _begin_intrinsic(networks, {**phi, **running}, unique, sampling, when_hashed)  # z_e, hash loss: eq. 2
    with torch.set_grad_enabled(single):  # epochs go through the batch again
        rollout = unroll_policy(networks.policy, theta, batch, unique, length)  # pi, V^{e+i}
    log_pi_TB, log_mu_TB = (
        log_prob(each, batch.action_TB) for each in (rollout.logits_TBA, batch.behaviour_logits_TBA)
    )
    novel = compute_novelty(
        *(networks.novelty, {**chi, **chi_running}, batch),
        unique=unique,
        method=method,
        settings=settings,
        logits_TBA=rollout.logits_TBA,
    )  # r_ep, of eq. 1
    r_ep_mean = running_mean(state.r_ep_mean, novel.r_ep_TB, state.updates)
    modulates = method.modulation is not Modulation.NONE
    heads = intrinsic.heads(batch, method, novel.r_ep_TB) if intrinsic is not None and modulates else None  # V^e, f_ta
    rewards = compute_rewards(  # r_ta: eq. 5; r: eq. 1
        batch, heads, method, settings, r_ep_TB=novel.r_ep_TB, r_ep_mean=r_ep_mean, trust=state.trust
    )

    trace = partial(_vtrace, batch=batch, log_rho_TB=(log_pi_TB - log_mu_TB).detach(), settings=settings)
    vtrace_ei = trace(rewards.reward_TB, rollout.value_TB)  # A and targets of r, for eq. 3
    vtrace_ei = add_adversary_bonus(vtrace_ei, novel, settings.reward_scale * settings.agac_coef * (1 - progress))
    advantage_TB = standardize(vtrace_ei.advantage_TB) if settings.normalize_advantages else vtrace_ei.advantage_TB
    learned = (batch.action_TB, log_pi_TB, log_mu_TB, advantage_TB, vtrace_ei.target_TB, vtrace_ei.rho_TB)
    targets = Targets(*(cut(each.detach(), length) for each in learned))
    data = PolicyBatch(cut_batch(batch, unique, rollout, length), targets, unique)
    inner, step = _policy_step(networks, theta, state, rollout, data, settings=settings, single=single)  # eq. 3
    on_policy(step.parameters)

    stats = novel.stats | rewards.stats | step.stats | _quality(rollout, vtrace_ei)
    stats["distinct_share"] = (unique.multiplicity_U > 0).sum() / len(unique.index_N)
    after = state._replace(
        policy=step.parameters,
        policy_adam=step.adam,
        running=running,
        novelty_running=chi_running,
        r_ep_mean=r_ep_mean,
        updates=state.updates + 1,
    )
    loss = None
    if heads is not None:
        vtrace_e = trace(rewards.r_e_TB, heads.value_TB)  # A_e and targets of r_e, for V^e and eq. 4
        loss = stats["extrinsic_value_loss"] = value_loss(value_TB=heads.value_TB[:-1], target_TB=vtrace_e.target_TB)
        after = after._replace(trust=running_trust(state.trust, heads.value_TB[:-1], vtrace_e.target_TB))
        stats["trust"] = after.trust
        # Until the task first rewards, V^e is zero and so is A_e: no step of the policy is then better than another.
        if vtrace_e.advantage_TB.any():
            loss = loss + modulator_loss(  # L_out: eq. 4
                *(networks.policy, theta, inner, data),
                gates=rollout.gates,
                weight_SC=policy_weight(targets, settings),
                advantage_e_SC=cut(vtrace_e.advantage_TB.detach(), length),
                advantage_TB=advantage_TB,
                target_TB=vtrace_ei.target_TB if settings.inner_loss == "full" else None,
            )
    if intrinsic is not None:
        stats["hash_loss"], gradients = intrinsic.gradients(loss)
        moved = _descend(gradients, phi, state.intrinsic_adam, settings.intrinsic_learning_rate, settings)
        after = after._replace(
            intrinsic=scale_modulator_step(state.intrinsic, moved[0], settings), intrinsic_adam=moved[1]
        )
    if novel.loss is not None:
        moved = _descend(
            gradients_of(novel.loss, chi), chi, state.novelty_adam, settings.novelty_learning_rate, settings
        )
        after = after._replace(novelty=moved[0], novelty_adam=moved[1])
    return after, {name: value.item() for name, value in stats.items()}


def _begin_intrinsic(
    networks: Networks,
    tensors: Params,
    unique: Distinct,
    sampling: DecoderSampling,
    when_hashed: Callable[[], object],
) -> IntrinsicPass | None:
    """Begins to look at the batch; None without an intrinsic module."""
    if networks.intrinsic is None:
        when_hashed()
        return None
    intrinsic = IntrinsicPass(networks.intrinsic, tensors, unique, sampling)
    intrinsic.then(when_hashed)
    return intrinsic


def _vtrace(
    reward_TB: Tensor, value_TB: Tensor, *, batch: Batch, log_rho_TB: Tensor, settings: TrainingConfig
) -> VTrace:
    """V-trace on one reward and its value, [T, B] and [T+1, B]."""
    if batch.truncated_TB is not None and settings.bootstrap_on_truncation:
        # As if the rest of the episode, of which nothing is known, were worth what was expected.
        reward_TB = torch.where(batch.truncated_TB, value_TB[:-1].detach(), reward_TB)
    return vtrace(
        log_rho_TB=log_rho_TB,
        reward_TB=reward_TB,
        discount_TB=settings.gamma * (~batch.start_TB[1:]).to(reward_TB.dtype),
        value_TB=value_TB[:-1],
        bootstrap_B=value_TB[-1],
        decay=settings.vtrace_lambda,
    )


def _policy_step(
    networks: Networks,
    theta: Params,
    state: TrainingState,
    rollout: Rollout,
    data: PolicyBatch,
    *,
    settings: TrainingConfig,
    single: bool,
) -> tuple[PolicyStep, PolicyStep]:
    """The step that the modulator looks through, and the policy's own. They differ only for the paper's inner loss."""
    if not single:
        step = minibatch_steps(networks.policy, theta, state.policy_adam, data, settings, seed=state.updates)
        return step, step
    loss = policy_loss(rollout.logits_TBA, rollout.value_TB[:-1], data.targets, settings)
    virtual = networks.intrinsic is not None and settings.inner_loss == "policy-gradient"
    step = single_step(theta, state.policy_adam, loss.total, settings, keep=virtual)
    step.stats.update(policy_gradient_loss=loss.policy_gradient, value_loss=loss.value, entropy=loss.entropy)
    if not virtual:
        return step, step
    return single_step(theta, state.policy_adam, loss.policy_gradient, settings, keep=False), step


def _quality(rollout: Rollout, vtrace_ei: VTrace) -> dict[str, Tensor]:
    """How much of the targets' variance the value explains, and how far the acting policy was behind."""
    explained = explained_variance(rollout.value_TB[:-1], vtrace_ei.target_TB)
    return {"explained_variance": explained, "rho": vtrace_ei.rho_TB.mean()}


def add_adversary_bonus(learned: VTrace, novel: NoveltyOutput, weight: float) -> VTrace:
    """AGAC: actions that the adversary did not foresee are better than they were, and states where it is wrong worth more."""
    if novel.adversary_log_ratio_TB is None or novel.adversary_kl_TB is None:
        return learned
    return learned._replace(
        advantage_TB=learned.advantage_TB + weight * novel.adversary_log_ratio_TB,
        target_TB=learned.target_TB + weight * novel.adversary_kl_TB,
    )


def _descend(
    gradients: Params, parameters: Params, before: AdamState, rate: float, settings: TrainingConfig
) -> tuple[Params, AdamState]:
    """A step of networks other than the policy."""
    return adam(parameters, gradients, before, learning_rate=rate, betas=settings.intrinsic_betas, eps=settings.eps)


def scale_modulator_step(before: Params, after: Params, settings: TrainingConfig) -> Params:
    """The modulator's step with its own learning rate: a step of Adam is proportional to the rate."""
    if settings.modulator_learning_rate is None:
        return after
    share = settings.modulator_learning_rate / settings.intrinsic_learning_rate
    return {
        name: torch.lerp(before[name], moved, share) if name.startswith("modulator_") else moved
        for name, moved in after.items()
    }


def _copies(tensors: Mapping[str, Tensor]) -> Params:
    """Of what the forward pass changes."""
    return {name: tensor.clone() for name, tensor in tensors.items()}
