"""The policy's step (eq. 3): epochs of minibatches of sequences, or the paper's single pass, which is one of each.

S  actions in a sequence         C  sequences in a batch       A  number of actions
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch

from leco.algo.losses import (
    clipped_surrogate_loss,
    entropy,
    log_prob,
    policy_gradient_loss,
    standardize,
    surrogate_weight,
    value_loss,
)
from leco.algo.optim import adam, adam_jacobian_diag, adam_preconditioner, clip, clip_vjp
from leco.algo.ranks import all_mean, part, world_size
from leco.learning.policy_pass import cut, cut_batch, run_some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from leco.algo.dedup import Distinct
    from leco.algo.optim import AdamState, Clipped
    from leco.algo.vtrace import VTrace
    from leco.config.training import TrainingConfig
    from leco.learning.policy_pass import Rollout, Sequences
    from leco.learning.state import Params, StepInput
    from leco.models.policy import Policy


class Targets(NamedTuple):
    """What the policy learns from in each step of the sequences, all of it constant, [S, C].

    action_SC         the actions taken
    log_pi_SC         log pi(a) before the update
    log_mu_SC         log mu(a), of the policy that acted
    advantage_SC      of r = r_e + alpha r_i
    target_SC         for V^{e+i}
    rho_SC            V-trace's clipped importance weights
    """

    action_SC: Tensor
    log_pi_SC: Tensor
    log_mu_SC: Tensor
    advantage_SC: Tensor
    target_SC: Tensor
    rho_SC: Tensor

    def pick(self, which: Tensor) -> Targets:
        """Those of some sequences."""
        return Targets(*(each[:, which] for each in self))


class PolicyBatch(NamedTuple):
    """A batch as the policy learns from it."""

    sequences: Sequences
    targets: Targets
    unique: Distinct


class PolicyLoss(NamedTuple):
    """The policy's loss and its parts."""

    total: Tensor
    policy_gradient: Tensor
    value: Tensor
    entropy: Tensor


class PolicyStep(NamedTuple):
    """theta', how it was reached, and how it moves with the gradient of the whole batch's loss.

    parameters, adam   after the step
    jacobian_diag      D of dtheta'/dg, the optimiser's part
    clipping           the part of a limited gradient norm, transposed; None if it is held constant
    stats              what to plot
    """

    parameters: Params
    adam: AdamState
    jacobian_diag: Params
    clipping: Callable[[Params], Params] | None
    stats: dict[str, Tensor]


class PolicyUpdate(NamedTuple):
    """The policy's step, and what it was made from.

    step          the policy's own
    inner         the step that the modulator looks through: the same but for the paper's inner loss
    data          what the policy learned from
    hidden        of its recurrent core before the step
    advantage_TB  of r, as the policy learned from them, with the modulator's graph
    target_TB     for V^{e+i}, likewise
    """

    step: PolicyStep
    inner: PolicyStep
    data: PolicyBatch
    hidden: tuple[Tensor, ...]
    advantage_TB: Tensor
    target_TB: Tensor


def policy_step(
    given: StepInput, rollout: Rollout, vtrace_ei: VTrace, log_pi_TB: Tensor, log_mu_TB: Tensor
) -> PolicyUpdate:
    """Eq. 3: theta -> theta' on the advantages of r.

    rollout    what the policy says of the batch
    vtrace_ei  advantages and value targets of r
    log_pi_TB, log_mu_TB   of the actions taken, by the policy that learns and by the one that acted
    """
    batch, config, state, reuse = given.batch, given.config, given.state, given.reuse
    advantage_TB = standardize(vtrace_ei.advantage_TB) if config.normalize_advantages else vtrace_ei.advantage_TB
    learned = (batch.action_TB, log_pi_TB, log_mu_TB, advantage_TB, vtrace_ei.target_TB, vtrace_ei.rho_TB)
    targets = Targets(*(cut(each.detach(), reuse.sequence_length) for each in learned))
    data = PolicyBatch(cut_batch(batch, given.unique, rollout, reuse.sequence_length), targets, given.unique)
    if reuse.single_pass:
        virtual = given.networks.intrinsic is not None and config.inner_loss == "policy-gradient"
        inner, step = _single_pass(given.theta, state.policy_adam, rollout, targets, config, virtual=virtual)
    else:
        network = given.networks.policy
        inner = step = minibatch_steps(network, given.theta, state.policy_adam, data, config, seed=state.updates)
    return PolicyUpdate(step, inner, data, rollout.hidden, advantage_TB, vtrace_ei.target_TB)


def _single_pass(
    theta: Params, before: AdamState, rollout: Rollout, targets: Targets, config: TrainingConfig, *, virtual: bool
) -> tuple[PolicyStep, PolicyStep]:
    """The step that the modulator looks through, and the policy's own. `virtual`: the former is of the policy gradient alone."""
    loss = policy_loss(rollout.logits_TBA, rollout.value_TB[:-1], targets, config)
    step = single_step(theta, before, loss.total, config, keep=virtual)
    step.stats.update(policy_gradient_loss=loss.policy_gradient, value_loss=loss.value, entropy=loss.entropy)
    if not virtual:
        return step, step
    return single_step(theta, before, loss.policy_gradient, config, keep=False), step


def policy_loss(logits_SCA: Tensor, value_SC: Tensor, targets: Targets, config: TrainingConfig) -> PolicyLoss:
    """Policy gradient (or PPO's clipped surrogate) + value MSE - entropy, over some or all sequences."""
    log_pi_SC = log_prob(logits_SCA, targets.action_SC)
    if config.clip_range is None:
        gradient = policy_gradient_loss(log_prob_TB=log_pi_SC, advantage_TB=targets.advantage_SC, rho_TB=targets.rho_SC)
    else:
        gradient = clipped_surrogate_loss(
            log_prob_TB=log_pi_SC,
            behaviour_log_prob_TB=targets.log_mu_SC,
            advantage_TB=targets.advantage_SC,
            clip_range=config.clip_range,
        )
    value = value_loss(value_TB=value_SC, target_TB=targets.target_SC)
    entropy_value = entropy(logits_SCA)
    return PolicyLoss(gradient + value - config.entropy_cost * entropy_value, gradient, value, entropy_value)


def policy_weight(targets: Targets, config: TrainingConfig) -> Tensor:
    """The factor of -A grad log pi / n in the policy's gradient at theta, [S, C]: rho, or PPO's ratio unless it is clipped."""
    if config.clip_range is None:
        return targets.rho_SC
    return surrogate_weight(
        log_prob_TB=targets.log_pi_SC,
        behaviour_log_prob_TB=targets.log_mu_SC,
        advantage_TB=targets.advantage_SC,
        clip_range=config.clip_range,
    )


def single_step(policy: Params, before: AdamState, loss: Tensor, config: TrainingConfig, *, keep: bool) -> PolicyStep:
    """One step on the whole batch, as the paper has it. `keep`: the loss's graph is needed again."""
    gradients = gradients_of(loss, policy, keep=keep)
    clipped, after, state = _descend(policy, gradients, before, config)
    return PolicyStep(
        after,
        state,
        adam_jacobian_diag(clipped.gradients, state, **_rates(config)),
        partial(clip_vjp, gradients=gradients, clipped=clipped),
        {"gradient_norm": clipped.norm},
    )


def minibatch_steps(
    network: Policy, policy: Params, before: AdamState, batch: PolicyBatch, config: TrainingConfig, *, seed: int
) -> PolicyStep:
    """`epochs` times through the batch, each time in `minibatches` parts drawn anew; seed: of the draws.

    Each rank has its part of every minibatch.
    """
    after, adam_state, every = policy, before, []
    for which in shuffled(batch.targets.action_SC.shape[1], config.epochs, config.minibatches, seed):
        parameters, own = leaves(after), which[part()]
        output = run_some(network, parameters, batch.sequences.pick(own), batch.unique)
        loss = torch.stack(policy_loss(output.logits_TBA, output.value_TB, batch.targets.pick(own), config))
        loss = loss * (len(own) * world_size() / len(which))  # 1, if all ranks have as many
        gradients = gradients_of(loss[0], parameters)
        clipped, after, adam_state = _descend(parameters, gradients, adam_state, config)
        every.append(torch.cat([loss[1:], clipped.norm.unsqueeze(0)]).detach())
    names = ("policy_gradient_loss", "value_loss", "entropy", "gradient_norm")
    return PolicyStep(
        after,
        adam_state,
        adam_preconditioner(adam_state, **_rates(config), steps=len(every)),
        None,
        all_mean(dict(zip(names, torch.stack(every).mean(0), strict=True))),
    )


def shuffled(count: int, epochs: int, minibatches: int, seed: int) -> Iterator[Tensor]:
    """Which of `count` sequences are in each minibatch: every one once an epoch, in an order that depends on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(count, generator=generator).tensor_split(min(minibatches, count))


def leaves(tensors: Mapping[str, Tensor]) -> Params:
    """The same numbers, to be differentiated by."""
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def copies(tensors: Mapping[str, Tensor]) -> Params:
    """Of what a forward pass changes."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def gradients_of(loss: Tensor, parameters: Params, *, keep: bool = False) -> Params:
    """The mean over ranks; zero for a parameter that the loss does not depend on. `keep`: the graph is needed again."""
    found = torch.autograd.grad(loss, list(parameters.values()), retain_graph=keep, allow_unused=True)
    mean = all_mean({name: g for name, g in zip(parameters, found, strict=True) if g is not None})
    return {name: mean[name] if name in mean else torch.zeros_like(p) for name, p in parameters.items()}


def adam_step(
    parameters: Params, gradients: Params, before: AdamState, learning_rate: float, config: TrainingConfig
) -> tuple[Params, AdamState]:
    """A step of networks other than the policy."""
    return adam(
        parameters, gradients, before, learning_rate=learning_rate, betas=config.intrinsic_betas, eps=config.eps
    )


def _descend(
    policy: Params, gradients: Params, before: AdamState, config: TrainingConfig
) -> tuple[Clipped, Params, AdamState]:
    clipped = clip(gradients, config.max_gradient_norm)
    return clipped, *adam(policy, clipped.gradients, before, **_rates(config))


class _Rates(TypedDict):
    learning_rate: float
    betas: tuple[float, float]
    eps: float


def _rates(config: TrainingConfig) -> _Rates:
    return {"learning_rate": config.policy_learning_rate, "betas": config.policy_betas, "eps": config.eps}
