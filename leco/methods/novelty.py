"""What is new in a batch, by the method's novelty: r_ep, and what the networks that measure it learn.

T     actions in an unroll          B  unrolls in a batch       A  number of actions
U     distinct observations         O...  shape of one observation
F     episodes that ended
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from leco.algo.dedup import Distinct, distinct
from leco.algo.exploration import categorical_kl, first_visit, noveld_bonus, ride_bonus, running_discounted_sum
from leco.algo.losses import log_prob
from leco.algo.rewards import episodic_bonus, mixed_bonus
from leco.learning.policy_pass import unroll_policy
from leco.methods.table import Method, Novelty
from leco.models.exploration import Dynamics, Rnd
from leco.models.policy import Policy

if TYPE_CHECKING:
    from leco.config.training import TrainingConfig
    from leco.learning.state import Batch, Params
    from leco.models.exploration import DynamicsOutput

FORWARDS, BACKWARDS = 10.0, 0.1  # RIDE's weights of its two models


class NoveltyOutput(NamedTuple):
    """What is new.

    r_ep_TB        a constant
    loss           of the networks that only the novelty needs; None without any
    unforeseen_TB  AGAC: log pi - log pi_adv of the actions taken, to be added to advantages; None for others
    apart_TB       AGAC: KL(pi || pi_adv), to be added to value targets; None for others
    stats          what to plot
    """

    r_ep_TB: Tensor
    loss: Tensor | None = None
    adversary_log_ratio_TB: Tensor | None = None
    adversary_kl_TB: Tensor | None = None
    stats: dict[str, Tensor] = {}  # noqa: RUF012  # never changed


def compute_novelty(
    net: nn.Module | None,
    tensors: Params,
    batch: Batch,
    *,
    unique: Distinct,
    method: Method,
    settings: TrainingConfig,
    logits_TBA: Tensor,
) -> NoveltyOutput:
    """What is new in a batch.

    Args:
        net: What only this novelty needs; None for one that needs no network.
        tensors: Its parameters, and its running moments, which are updated.
        batch: What was played.
        unique: Its distinct observations.
        method: Whose novelty it is.
        settings: Of the run.
        logits_TBA: Of the policy that learns.
    """
    dtype = batch.reward_TB.dtype
    match method.novelty:
        case Novelty.NONE:
            novel = NoveltyOutput(torch.zeros_like(batch.reward_TB))
        case Novelty.COUNT:
            novel = NoveltyOutput(_count_bonus(batch, method, settings))
        case Novelty.GAIN:
            assert isinstance(net, Rnd)  # noqa: S101  # `build` has seen to it
            seen, distance_U = _distances(net, tensors, batch)
            far_U = distance_U.detach().sqrt()
            r_ep_TB = noveld_bonus(far_U[seen.next_TB], far_U[seen.now_TB], _counts(batch, method))
            novel = NoveltyOutput(
                r_ep_TB.to(dtype), distance_U[seen.next_TB].mean(), stats={"rnd_error": far_U[seen.next_TB].mean()}
            )
        case Novelty.ERROR:
            assert isinstance(net, Rnd)  # noqa: S101
            seen, distance_U = _distances(net, tensors, batch)
            error_TB = distance_U[seen.next_TB]
            novel = NoveltyOutput(
                _normalised(net, tensors, error_TB.detach(), settings.gamma).to(dtype),
                error_TB.mean(),
                stats={"rnd_error": error_TB.detach().sqrt().mean()},
            )
        case Novelty.IMPACT:
            assert isinstance(net, Dynamics)  # noqa: S101
            novel = _impact(net, tensors, batch, _counts(batch, method))
        case Novelty.ADVERSARIAL:
            assert isinstance(net, Policy)  # noqa: S101
            r_ep_TB = first_visit(_counts(batch, method), dtype)
            novel = _adversarial(net, tensors, batch, unique, logits_TBA.detach())._replace(r_ep_TB=r_ep_TB)
    return novel._replace(stats=novel.stats | _noted(novel, batch, method))


def _noted(novel: NoveltyOutput, batch: Batch, method: Method) -> dict[str, Tensor]:
    """What to plot of every novelty."""
    stats = {}
    if method.novelty is not Novelty.NONE:
        stats["r_ep"] = novel.r_ep_TB.mean()
    if method.counts:
        stats["new_code_share"] = first_visit(_counts(batch, method)).mean()
    if novel.loss is not None:
        stats["novelty_loss"] = novel.loss.detach()
    return stats


def _counts(batch: Batch, method: Method) -> Tensor:
    if batch.count_TB is None:
        raise ValueError(f"method {method.name!r} needs counts, and this batch has none")
    return batch.count_TB


def _count_bonus(batch: Batch, method: Method, settings: TrainingConfig) -> Tensor:
    worth = first_visit if settings.episodic_bonus == "first-visit" else episodic_bonus
    r_ep_TB = worth(_counts(batch, method), batch.reward_TB.dtype)
    if settings.run_count_weight == 0:
        return r_ep_TB
    if batch.run_count_TB is None:
        raise ValueError(f"run_count_weight is {settings.run_count_weight}, but this batch has no run-wide counts")
    return mixed_bonus(r_ep_TB, batch.run_count_TB, settings.run_count_weight)


class _Transitions(NamedTuple):
    """The distinct observations of a batch, true last ones of episodes among them, and which are before and after actions.

    times_U is how often each is what an action led to.
    """

    observation_UO: Tensor
    times_U: Tensor
    now_TB: Tensor
    next_TB: Tensor


def _transitions(batch: Batch) -> _Transitions:
    ends_TB = batch.start_TB[1:]
    last_FO = batch.terminal_observation_FO
    if last_FO is None or len(last_FO) != int(ends_TB.sum()):
        found = "none" if last_FO is None else len(last_FO)
        raise ValueError(
            f"{int(ends_TB.sum())} episodes end in this batch, but it has {found} of their last observations"
        )
    every = distinct(torch.cat([batch.observation_TBO.flatten(0, 1), last_FO]))
    index_TB = every.index_N[: batch.start_TB.numel()].view(batch.start_TB.shape)
    next_TB = index_TB[1:].clone()
    next_TB[ends_TB] = every.index_N[batch.start_TB.numel() :]  # in the order of a mask: time first, then unroll
    times_U = torch.bincount(next_TB.flatten(), minlength=len(every.observation_UO))
    return _Transitions(every.observation_UO, times_U, index_TB[:-1], next_TB)


def _distances(net: Rnd, tensors: Params, batch: Batch) -> tuple[_Transitions, Tensor]:
    seen = _transitions(batch)
    distance_U: Tensor = functional_call(net, tensors, (seen.observation_UO, seen.times_U))
    return seen, distance_U


def _normalised(net: Rnd, tensors: Params, error_TB: Tensor, gamma: float) -> Tensor:
    """Rewards in running deviations of their discounted sums."""
    assert net.returns is not None  # noqa: S101  # RND's own is built to normalise
    returns_N = running_discounted_sum(error_TB, gamma).flatten()
    named = {f"returns.{name}": tensors[f"returns.{name}"] for name, _ in net.returns.named_buffers()}
    deviation: Tensor = functional_call(_Deviation(net.returns), named, (returns_N,))
    return error_TB / deviation


class _Deviation(nn.Module):
    """Running moments as one function, since `functional_call` calls `forward` alone."""

    def __init__(self, returns: nn.Module) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, returns_N: Tensor) -> Tensor:
        self.returns.add(returns_N)  # type: ignore[operator]
        deviation: Tensor = self.returns.deviation  # type: ignore[assignment]
        return deviation


def _impact(net: Dynamics, tensors: Params, batch: Batch, count_TB: Tensor) -> NoveltyOutput:
    seen = _transitions(batch)
    action_N = batch.action_TB.flatten().long()
    out: DynamicsOutput = functional_call(
        net, tensors, (seen.observation_UO, seen.now_TB.flatten(), seen.next_TB.flatten(), action_N)
    )
    shape = (*batch.action_TB.shape, -1)
    r_ep_TB = ride_bonus(out.next_NF.detach().view(shape), out.now_NF.detach().view(shape), count_TB)
    forwards = 0.5 * (out.foreseen_NF - out.next_NF).square().sum(1).mean()
    backwards = cross_entropy(out.guessed_NA, action_N)
    stats = {"forward_loss": forwards.detach(), "inverse_loss": backwards.detach()}
    return NoveltyOutput(r_ep_TB.to(batch.reward_TB.dtype), FORWARDS * forwards + BACKWARDS * backwards, stats=stats)


def _adversarial(net: Policy, tensors: Params, batch: Batch, unique: Distinct, logits_TBA: Tensor) -> NoveltyOutput:
    """The adversary remembers nothing from before the unroll: actors, which would have to carry its state, do not know it."""
    forgotten = batch._replace(core_state=torch.zeros_like(batch.core_state))
    other_TBA = unroll_policy(net, tensors, forgotten, unique, len(batch.action_TB)).logits_TBA
    adversary_kl_TB = categorical_kl(logits_TBA, other_TBA)
    with torch.no_grad():
        adversary_log_ratio_TB = log_prob(logits_TBA, batch.action_TB) - log_prob(other_TBA, batch.action_TB)
    nothing_TB = torch.zeros_like(batch.reward_TB)
    return NoveltyOutput(
        nothing_TB,
        adversary_kl_TB.mean(),
        adversary_log_ratio_TB,
        adversary_kl_TB.detach(),
        {"adversary_kl": adversary_kl_TB.detach().mean()},
    )
