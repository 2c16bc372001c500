"""AGAC (Flet-Berliac et al., 2021): a first visit in the episode, and actions that an adversary does not foresee.

The adversary imitates the policy. What it did not foresee is added to advantages, how far it is from the policy to value targets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from leco.algo.exploration import categorical_kl, first_visit
from leco.algo.losses import log_prob
from leco.learning.policy_pass import unroll_policy
from leco.methods.novelty import NoveltyOutput
from leco.models.policy import Policy, make_policy

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.methods.novelty import NoveltyInput
    from leco.models.kinds.table import Kind


def build(kind: Kind, num_actions: int, network: NetworkConfig) -> Policy:
    """The adversary, another policy."""
    return make_policy(kind, num_actions, network)


def compute(given: NoveltyInput) -> NoveltyOutput:
    """The adversary remembers nothing from before the unroll: actors, which would have to carry its state, do not know it."""
    assert isinstance(given.net, Policy)  # noqa: S101  # `build` has made it
    batch, logits_TBA = given.batch, given.logits_TBA.detach()
    forgotten = batch._replace(core_state=torch.zeros_like(batch.core_state))
    adversary_TBA = unroll_policy(given.net, given.tensors, forgotten, given.unique, len(batch.action_TB)).logits_TBA
    kl_TB = categorical_kl(logits_TBA, adversary_TBA)
    with torch.no_grad():
        log_ratio_TB = log_prob(logits_TBA, batch.action_TB) - log_prob(adversary_TBA, batch.action_TB)
    return NoveltyOutput(
        first_visit(given.counts(), batch.reward_TB.dtype),
        kl_TB.mean(),
        log_ratio_TB,
        kl_TB.detach(),
        {"adversary_kl": kl_TB.detach().mean()},
    )
