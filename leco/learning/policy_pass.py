"""The policy over a batch: once as it was before the update, then again and again on sequences of it.

T  actions in an unroll          B  unrolls in a batch
S  actions in a sequence         C  sequences in a batch: T / S of each unroll, the first of all unrolls before the second

Each rank (`leco.algo.ranks`) runs the policy over its own unrolls, and over its own part of each minibatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from leco.algo.dedup import Distinct, subset
from leco.algo.ranks import part, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leco.config.training import TrainingConfig
    from leco.learning.state import Batch
    from leco.models.policy import Policy, PolicyOutput


class Reuse(NamedTuple):
    """How a batch is learned from.

    sequence_length  S
    single_pass      once and whole, as the paper has it
    """

    sequence_length: int
    single_pass: bool


def reuse_of(config: TrainingConfig, unroll_length: int) -> Reuse:
    """How a batch of unrolls of that length is learned from."""
    length = min(config.sequence_length or unroll_length, unroll_length)
    return Reuse(length, config.epochs * config.minibatches == 1 and length == unroll_length)


class Rollout(NamedTuple):
    """What the policy says of a batch.

    logits_TBA  of the T actions
    value_TB    [T+1, B], V^{e+i} of all observations
    core_state  [L, 2, C, H], before each sequence, by the present parameters
    hidden      h of each layer of the recurrent core in this rank's sequences [S, C', H], for a call that asks for tangents
    """

    logits_TBA: Tensor
    value_TB: Tensor
    core_state: Tensor
    hidden: tuple[Tensor, ...]


class Sequences(NamedTuple):
    """What the policy sees in C sequences of S actions.

    index_SC  which of the distinct observations each step saw; the others are as in `Batch`
    """

    index_SC: Tensor
    start_SC: Tensor
    previous_action_SC: Tensor
    previous_reward_SC: Tensor
    core_state: Tensor

    def pick(self, which: Tensor) -> Sequences:
        """Some of them."""
        index, start, action, reward = (each[:, which] for each in self[:-1])
        return Sequences(index, start, action, reward, self.core_state[:, :, which])

    def of_this_rank(self, unrolls: int) -> Sequences:
        """Those of this rank's unrolls, of so many."""
        index, start, action, reward = (_own(each, 1, unrolls) for each in self[:-1])
        return Sequences(index, start, action, reward, _own(self.core_state, 2, unrolls))


def unroll_policy(
    network: Policy, parameters: Mapping[str, Tensor], batch: Batch, unique: Distinct, sequence_length: int
) -> Rollout:
    """Runs the policy over a batch, one sequence after the other, each from the state that the one before led to.

    The first state is the actor's, of slightly older parameters; the others are computed anew, which costs nothing: the pass is
    needed for the values.
    """
    steps, unrolls = batch.action_TB.shape
    state, states, outputs = batch.core_state[:, :, part()], [], []
    seen = [each[:, part()] for each in _inputs(batch, unique)]
    for begin in range(0, steps + 1, sequence_length):  # the last piece is one observation, which only bootstraps
        states.append(state)
        index, start, action, reward = (each[begin : begin + sequence_length] for each in seen)
        piece = Sequences(index, start, action, reward, state)
        outputs.append(run_some(network, parameters, piece, unique))
        state = outputs[-1].state
    logits_TBA = torch.cat([each.logits_TBA for each in outputs])
    value_TB = torch.cat([each.value_TB for each in outputs])
    return Rollout(
        logits_TBA=of_all_unrolls(logits_TBA, 1, unrolls)[:-1],
        value_TB=of_all_unrolls(value_TB, 1, unrolls),
        core_state=of_all_unrolls(torch.stack(states[:-1], 2), 3, unrolls).flatten(2, 3),
        hidden=tuple(torch.cat(layer, 1) for layer in zip(*(each.hidden for each in outputs[:-1]), strict=True)),
    )


def cut_batch(batch: Batch, unique: Distinct, rollout: Rollout, sequence_length: int) -> Sequences:
    """The batch as sequences, each with its state from the pass before."""
    index, start, action, reward = (cut(each[:-1], sequence_length) for each in _inputs(batch, unique))
    return Sequences(index, start, action, reward, rollout.core_state.detach())


def run_policy(
    network: Policy,
    parameters: Mapping[str, Tensor],
    sequences: Sequences,
    unique: Distinct,
    hidden: tuple[Tensor, ...] | None = None,
) -> PolicyOutput:
    """What the policy with these parameters says of sequences.

    hidden: of an earlier call with the same parameters, to compute only tangents.
    """
    output: PolicyOutput = functional_call(
        network,
        dict(parameters),
        (unique.observation_UO, *sequences[1:]),
        {"index_TB": sequences.index_SC, "hidden": hidden},
    )
    return output


def run_some(network: Policy, parameters: Mapping[str, Tensor], sequences: Sequences, unique: Distinct) -> PolicyOutput:
    """The same of a few sequences, for which only the observations in them are encoded."""
    return run_policy(network, parameters, *with_few(sequences, unique))


def with_few(sequences: Sequences, unique: Distinct) -> tuple[Sequences, Distinct]:
    """Sequences with only those of the distinct observations that are in them."""
    few = subset(unique, sequences.index_SC.flatten())
    return sequences._replace(index_SC=few.index_N.view(sequences.index_SC.shape)), few


def cut(x_TB: Tensor, sequence_length: int) -> Tensor:
    """[T, B, ...] as sequences, [S, C, ...]."""
    x_KSB = x_TB.reshape(-1, sequence_length, *x_TB.shape[1:])
    return x_KSB.transpose(0, 1).flatten(1, 2)


def join(x_SC: Tensor, unrolls: int) -> Tensor:
    """What `cut` made, as it was: [T, B, ...]."""
    x_SKB = x_SC.reshape(len(x_SC), -1, unrolls, *x_SC.shape[2:])
    return x_SKB.transpose(0, 1).flatten(0, 1)


def of_all_unrolls(x: Tensor, axis: int, unrolls: int) -> Tensor:
    """What all ranks have of their unrolls, which are along one axis, together."""
    shape = (*x.shape[:axis], unrolls, *x.shape[axis + 1 :])
    return whole(x, (*(slice(None),) * axis, part()), shape)


def of_all_sequences(x_SC: Tensor, unrolls: int) -> Tensor:
    """What all ranks have of their sequences, [S, C', ...], together: [S, C, ...]."""
    x_SKB = x_SC.reshape(len(x_SC), -1, len(range(unrolls)[part()]), *x_SC.shape[2:])
    return of_all_unrolls(x_SKB, 2, unrolls).flatten(1, 2)


def _own(x: Tensor, axis: int, unrolls: int) -> Tensor:
    """This rank's of all sequences, which are along one axis."""
    x = x.reshape(*x.shape[:axis], -1, unrolls, *x.shape[axis + 1 :])
    own: Tensor = x[(*(slice(None),) * (axis + 1), part())]
    return own.flatten(axis, axis + 1)


def previous_action(batch: Batch) -> Tensor:
    """a[t-1] before each of the T+1 observations; -1 at the first of an episode."""
    action_TB = torch.cat([batch.previous_action_B.long().unsqueeze(0), batch.action_TB.long()])
    return action_TB.masked_fill(batch.start_TB, -1)


def _inputs(batch: Batch, unique: Distinct) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of all T+1 observations: which it is, whether it starts an episode, the action and the reward before it."""
    reward_TB = torch.cat([batch.previous_reward_B.unsqueeze(0), batch.reward_TB]).masked_fill(batch.start_TB, 0.0)
    return unique.index_N.view(batch.start_TB.shape), batch.start_TB, previous_action(batch), reward_TB
