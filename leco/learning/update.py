"""One training step: policy, hash and modulator, in the order of the paper.

T     actions in an unroll          B  unrolls in a batch       A  number of actions
N     (T + 1) B observations        U  distinct ones of them
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from leco.algo.dedup import distinct
from leco.algo.losses import log_prob
from leco.algo.ranks import take_from_first
from leco.algo.vtrace import vtrace
from leco.learning.intrinsic_step import begin_intrinsic
from leco.learning.modulator import outer_objective
from leco.learning.novelty_step import NoveltyStep
from leco.learning.policy_pass import reuse_of, unroll_policy
from leco.learning.policy_step import leaves, policy_step
from leco.learning.rewards import BonusMoments, compute_rewards, explained_variance, running_moments
from leco.learning.state import StepInput
from leco.models.precision import precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from leco.algo.dedup import Distinct
    from leco.algo.vtrace import VTrace
    from leco.config.training import TrainingConfig
    from leco.learning.policy_pass import Rollout
    from leco.learning.state import Batch, Networks, Params, TrainingState
    from leco.methods.table import Method


def update(
    networks: Networks,
    state: TrainingState,
    batch: Batch,
    method: Method,
    config: TrainingConfig,
    *,
    progress: float = 0.0,
    when_hashed: Callable[[], object] = lambda: None,
    on_policy: Callable[[Params], object] = lambda _: None,
) -> tuple[TrainingState, dict[str, float]]:
    """One step on one batch: the state after it, and what to plot.

    networks          what is computed
    state             with which numbers
    batch             what was played
    method, config    how it is learned from
    progress          the share of the run that is done, for what falls in its course
    when_hashed       called once, when the thread of the hash is done, perhaps in that thread: for what had better not compete
                      with it for a processor. At once if the method has no intrinsic module
    on_policy         called with the policy's new parameters as soon as they are known: actors need not wait for the rest
    """
    config = config.after(state.updates)
    theta, reuse = leaves(state.policy), reuse_of(config, len(batch.action_TB))
    unique = distinct(batch.observation_TBO.flatten(0, 1))
    given = StepInput(networks, state, batch, method, config, theta, unique, reuse)

    with precision(config.precision):
        intrinsic = begin_intrinsic(given, when_hashed)  # z_e and the hash's loss: eq. 2
        with torch.set_grad_enabled(reuse.single_pass):  # several epochs go through the batch again
            rollout = unroll_policy(networks.policy, theta, batch, unique, reuse.sequence_length)  # pi, V^{e+i}
        novelty = NoveltyStep(given, rollout.logits_TBA)  # r_ep
        heads = intrinsic.heads(batch, novelty.r_ep_TB)  # V^e, f_ta
        moments = running_moments(BonusMoments(state.r_ep_mean, state.r_ep_square), novelty.r_ep_TB, state.updates)
        rewards = compute_rewards(  # r_ta: eq. 5; r = r_e + alpha r_i: eq. 1
            batch, heads, method, config, r_ep_TB=novelty.r_ep_TB, moments=moments, trust=state.trust
        )

        log_mu_TB = log_prob(batch.behaviour_logits_TBA, batch.action_TB)
        log_pi_TB = log_prob(rollout.logits_TBA, batch.action_TB)
        trace = partial(_vtrace, batch=batch, log_rho_TB=(log_pi_TB - log_mu_TB).detach(), config=config)
        vtrace_ei = trace(rewards.reward_TB, rollout.value_TB)  # advantages and value targets of r
        vtrace_ei = novelty.add_adversary_bonus(vtrace_ei, config.reward_scale * config.agac_coef * (1 - progress))
        policy = policy_step(given, rollout, vtrace_ei, log_pi_TB, log_mu_TB)  # theta': eq. 3
        on_policy(policy.step.parameters)

        outer = outer_objective(given, policy, heads, partial(trace, rewards.r_e_TB))  # L_out: eq. 4; and V^e's loss
        intrinsic_after = intrinsic.step(outer.loss)

    after = state._replace(
        policy=policy.step.parameters,
        policy_adam=policy.step.adam,
        **intrinsic_after.changes,
        **novelty.step(),
        r_ep_mean=moments.mean,
        r_ep_square=moments.square,
        trust=outer.trust,
        updates=state.updates + 1,
    )
    _agree(after)
    stats = novelty.stats | rewards.stats | policy.step.stats | outer.stats | intrinsic_after.stats
    stats |= _quality(rollout, vtrace_ei, unique)
    return after, {name: value.item() for name, value in stats.items()}


def _vtrace(reward_TB: Tensor, value_TB: Tensor, *, batch: Batch, log_rho_TB: Tensor, config: TrainingConfig) -> VTrace:
    """V-trace on one reward and its value, [T, B] and [T+1, B]."""
    if batch.truncated_TB is not None and config.bootstrap_on_truncation:
        # As if the rest of the episode, of which nothing is known, were worth what was expected.
        reward_TB = torch.where(batch.truncated_TB, value_TB[:-1].detach(), reward_TB)
    return vtrace(
        log_rho_TB=log_rho_TB,
        reward_TB=reward_TB,
        discount_TB=config.gamma * (~batch.start_TB[1:]).to(reward_TB.dtype),
        value_TB=value_TB[:-1],
        bootstrap_B=value_TB[-1],
        decay=config.vtrace_lambda,
    )


def _agree(after: TrainingState) -> None:
    """What ranks have worked out each for itself becomes rank 0's: on a GPU a sum may end otherwise each time.

    Parameters and Adam's moments come from gradients that are the same numbers everywhere.
    """
    named = [each[name] for each in (after.running, after.novelty_running) for name in sorted(each)]
    take_from_first([*named, after.r_ep_mean, after.r_ep_square, after.trust])


def _quality(rollout: Rollout, vtrace_ei: VTrace, unique: Distinct) -> dict[str, Tensor]:
    """How much of the targets' variance the value explains, how far behind the acting policy was, how much repeats."""
    return {
        "explained_variance": explained_variance(rollout.value_TB[:-1], vtrace_ei.target_TB),
        "rho": vtrace_ei.rho_TB.mean(),
        "distinct_share": (unique.multiplicity_U > 0).sum() / len(unique.index_N),
    }
