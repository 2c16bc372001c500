"""What is new in a batch, r_ep, and what the networks that measure it learn: the interface of the files beside this one.

T     actions in an unroll          B  unrolls in a batch       A  number of actions
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from leco.algo.exploration import first_visit
from leco.references import load_object

if TYPE_CHECKING:
    from torch import Tensor, nn

    from leco.algo.dedup import Distinct
    from leco.config.training import NetworkConfig, TrainingConfig
    from leco.learning.state import Batch, Params
    from leco.methods.table import Method
    from leco.models.kinds.table import Kind


class NoveltyInput(NamedTuple):
    """What a novelty is computed from.

    net         what `Novelty.build` made
    tensors     its parameters, and its running moments, which are updated
    batch       what was played
    unique      its distinct observations
    logits_TBA  of the policy that learns
    config      of the run
    """

    net: nn.Module | None
    tensors: Params
    batch: Batch
    unique: Distinct
    logits_TBA: Tensor
    config: TrainingConfig

    def counts(self) -> Tensor:
        """N of each observation that an action led to, [T, B]. A method whose row says that it counts has them."""
        assert self.batch.count_TB is not None  # noqa: S101  # `compute_novelty` has seen to it
        return self.batch.count_TB


class NoveltyOutput(NamedTuple):
    """What is new.

    r_ep_TB                 a constant
    loss                    of the networks that only the novelty needs; None without any
    adversary_log_ratio_TB  AGAC: log pi - log pi_adv of the actions taken, to be added to advantages; None for others
    adversary_kl_TB         AGAC: KL(pi || pi_adv), to be added to value targets; None for others
    stats                   what to plot
    """

    r_ep_TB: Tensor
    loss: Tensor | None = None
    adversary_log_ratio_TB: Tensor | None = None
    adversary_kl_TB: Tensor | None = None
    stats: dict[str, Tensor] = {}  # noqa: RUF012  # never changed


class Novelty(Protocol):
    """What a file of leco/methods has, or a class or object of another package. `leco.methods.table` names them."""

    def build(self, kind: Kind, num_actions: int, network: NetworkConfig) -> nn.Module | None:
        """The networks that only this novelty needs, if it needs any. `network` is how the policy is made."""

    def compute(self, given: NoveltyInput) -> NoveltyOutput:
        """r_ep of a batch, and the networks' loss."""


def find_novelty(method: Method) -> Novelty:
    """What computes a method's r_ep: a file beside this one, or an object of another package."""
    return _novelty(method.novelty)


@cache
def _novelty(name: str) -> Novelty:
    if ":" not in name:
        return cast("Novelty", import_module(f"leco.methods.{name}"))
    found = load_object(name)
    return cast("Novelty", found() if isinstance(found, type) else found)


def compute_novelty(given: NoveltyInput, method: Method) -> NoveltyOutput:
    """r_ep of a batch by a method, with what to plot of every one."""
    if method.counts and given.batch.count_TB is None:
        raise ValueError(f"method {method.name!r} needs counts, and this batch has none")
    found = find_novelty(method).compute(given)
    stats = dict(found.stats)
    if method.has_novelty:
        stats["r_ep"] = found.r_ep_TB.mean()
    if method.counts:
        stats["new_code_share"] = first_visit(given.counts()).mean()
    if found.loss is not None:
        stats["novelty_loss"] = found.loss.detach()
    return found._replace(stats=stats)
