"""RIDE (Raileanu and Rocktaeschel, 2020): actions with a large impact on what the agent can influence.

N  actions in a batch          F  features of an observation
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.func import functional_call
from torch.nn.functional import cross_entropy

from leco.algo.exploration import ride_bonus
from leco.methods.novelty import NoveltyOutput
from leco.methods.transitions import transitions
from leco.models.exploration import Dynamics, make_embedding

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.methods.novelty import NoveltyInput
    from leco.models.exploration import DynamicsOutput
    from leco.models.kinds.table import Kind

FORWARD_WEIGHT, INVERSE_WEIGHT = 10.0, 0.1  # of the losses of the two models


def build(kind: Kind, num_actions: int, _network: NetworkConfig) -> Dynamics:
    """phi, and the forward and inverse model that shape it."""
    return Dynamics(make_embedding(kind), num_actions)


def compute(given: NoveltyInput) -> NoveltyOutput:
    """||phi(s') - phi(s)|| / sqrt(N(s'))."""
    assert given.net is not None  # noqa: S101  # `build` has made it
    batch, seen = given.batch, transitions(given.batch)
    action_N = batch.action_TB.flatten().long()
    out: DynamicsOutput = functional_call(
        given.net, given.tensors, (seen.observation_UO, seen.now_TB.flatten(), seen.next_TB.flatten(), action_N)
    )
    shape = (*batch.action_TB.shape, -1)
    r_ep_TB = ride_bonus(out.next_NF.detach().view(shape), out.now_NF.detach().view(shape), given.counts())
    forward_loss = 0.5 * (out.foreseen_NF - out.next_NF).square().sum(1).mean()
    inverse_loss = cross_entropy(out.guessed_NA, action_N)
    return NoveltyOutput(
        r_ep_TB.to(batch.reward_TB.dtype),
        FORWARD_WEIGHT * forward_loss + INVERSE_WEIGHT * inverse_loss,
        stats={"forward_loss": forward_loss.detach(), "inverse_loss": inverse_loss.detach()},
    )
