"""The outer loss (eq. 4): how the policy after its step does at the task itself, as a loss of the modulator.

The inner step that the modulator looks through is all that the policy learns from a batch, theta -> theta'. With the paper's
single pass that is one step of Adam, and the gradient is exact: through Adam's moments and through a limited norm. With
epochs of minibatches the many small steps are seen as one, from theta along the gradient of the whole batch's loss to the real
theta', where Adam's second moment and the limit of the norm are constants. At theta the clip of the surrogate is active nowhere
(on policy pi / mu is 1), so every reward of the batch counts; a look through the last minibatch alone would see an eighth of
the data, and only where the clip has left something. The mean and the deviation that advantages are standardised by are
constants in either case. `leco.algo.meta` has the derivation, tests/unit/learning/test_modulator.py the proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leco.algo.losses import value_loss
from leco.algo.meta import meta_gradient_weights
from leco.algo.ranks import any_rank
from leco.learning.policy_pass import cut, join, of_all_sequences, run_policy, with_few
from leco.learning.policy_step import policy_weight
from leco.learning.rewards import running_trust

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from leco.algo.vtrace import VTrace
    from leco.learning.intrinsic_pass import IntrinsicOutput
    from leco.learning.policy_step import PolicyBatch, PolicyStep, PolicyUpdate
    from leco.learning.state import Params, StepInput
    from leco.models.policy import Policy


class OuterObjective(NamedTuple):
    """What V^e and the modulator learn from a batch.

    loss   of both; None without a modulator
    trust  in the modulator, after the batch
    stats  what to plot
    """

    loss: Tensor | None
    trust: Tensor
    stats: dict[str, Tensor]


def outer_objective(
    given: StepInput,
    policy: PolicyUpdate,
    heads: IntrinsicOutput | None,
    trace_e: Callable[[Tensor], VTrace],
) -> OuterObjective:
    """V^e's loss on the task's own returns and, through the policy's step, the modulator's (eq. 4).

    policy   its step
    heads    V^e and f_ta; None without a modulator
    trace_e  V-trace of the task's own reward with a value
    """
    config, trust = given.config, given.state.trust
    if heads is None:
        return OuterObjective(None, trust, {})
    vtrace_e = trace_e(heads.value_TB)  # A_e and the targets of V^e
    loss = extrinsic_value_loss = value_loss(value_TB=heads.value_TB[:-1], target_TB=vtrace_e.target_TB)
    trust = running_trust(trust, heads.value_TB[:-1], vtrace_e.target_TB)
    # Until the task first rewards, V^e is zero and so is A_e: no step of the policy is then better than another.
    if any_rank(vtrace_e.advantage_TB.any()):
        targets = policy.data.targets
        loss = loss + modulator_loss(
            given.networks.policy,
            given.theta,
            policy.inner,
            policy.data,
            hidden=policy.hidden,
            weight_SC=policy_weight(targets, config),
            advantage_e_SC=cut(vtrace_e.advantage_TB.detach(), len(targets.action_SC)),
            advantage_TB=policy.advantage_TB,
            target_TB=policy.target_TB if config.inner_loss == "full" else None,
        )
    return OuterObjective(loss, trust, {"extrinsic_value_loss": extrinsic_value_loss, "trust": trust})


def modulator_loss(
    network: Policy,
    policy: Params,
    inner: PolicyStep,
    batch: PolicyBatch,
    *,
    hidden: tuple[Tensor, ...],
    weight_SC: Tensor,
    advantage_e_SC: Tensor,
    advantage_TB: Tensor,
    target_TB: Tensor | None,
) -> Tensor:
    """A loss whose gradient with respect to the modulator is that of the outer loss.

    network, policy      the policy and theta
    inner                its step to theta'
    batch                what the policy learned from
    hidden               of its recurrent core at theta, in this rank's sequences
    weight_SC            the importance weights in its gradient at theta
    advantage_e_SC       A_e, the task's own V-trace advantages
    advantage_TB         those that the policy learned from, with the modulator's graph
    target_TB            its value targets likewise; None if the inner loss is the policy gradient alone
    """

    unrolls = advantage_TB.shape[1]
    sequences, unique = with_few(batch.sequences.of_this_rank(unrolls), batch.unique)

    def forward(parameters: Mapping[str, Tensor], cached: tuple[Tensor, ...] | None = None) -> tuple[Tensor, Tensor]:
        output = run_policy(network, parameters, sequences, unique, cached)
        return of_all_sequences(output.logits_TBA, unrolls), of_all_sequences(output.value_TB, unrolls)

    weights = meta_gradient_weights(
        forward,
        policy,
        inner.parameters,
        inner.jacobian_diag,
        jvp_forward=lambda parameters: forward(parameters, hidden),
        clipping=inner.clipping,
        action_TB=batch.targets.action_SC,
        log_pi_TB=batch.targets.log_pi_SC,
        rho_TB=weight_SC,
        advantage_e_TB=advantage_e_SC,
    )
    loss = (join(weights.advantage_TB, unrolls) * advantage_TB).sum()
    return loss if target_TB is None else loss + (join(weights.target_TB, unrolls) * target_TB).sum()
