"""The policy over a batch, sequence by sequence, says what one pass over whole unrolls says."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from leco.algo.dedup import Distinct, distinct
from leco.learning.policy_pass import (
    Rollout,
    Sequences,
    cut,
    cut_batch,
    join,
    previous_action,
    run_policy,
    run_some,
    unroll_policy,
)
from leco.models.kinds.minigrid import MiniGridPolicy
from leco.models.policy import Policy, PolicyOutput
from support.training_case import A, B, T, make_batch

if TYPE_CHECKING:
    from leco.learning.state import Batch, Params

LENGTHS = [1, 2, 3, 6]


class Case(NamedTuple):
    """A policy whose every part shows, and a batch with episodes that start inside sequences and between them."""

    network: Policy
    parameters: Params
    batch: Batch
    unique: Distinct

    def rollout(self, length: int) -> Rollout:
        return unroll_policy(self.network, self.parameters, self.batch, self.unique, length)

    def sequences(self, length: int) -> Sequences:
        return cut_batch(self.batch, self.unique, self.rollout(length), length)


def one_layer() -> Policy:
    return MiniGridPolicy(A, 8)


def two_layers_fed_back() -> Policy:
    """As the policy for pixels has it: the core also sees the last action and reward."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(147, 8), nn.ReLU())
    return Policy(A, encoder, image=(7, 7, 3), width=8 + A + 1, layers=2, use_last_action_reward=True)


@pytest.fixture(params=[one_layer, two_layers_fed_back])
def case(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(4)
    network: Policy = request.param().double()
    parameters = {
        name: (p + 0.1 * torch.randn_like(p)).detach().requires_grad_() for name, p in network.named_parameters()
    }
    batch = make_batch(3)
    batch = batch._replace(core_state=torch.randn_like(network.initial_state(B)))
    assert batch.start_TB[1:-1].any()
    assert not batch.start_TB[1:-1].all()
    return Case(network, parameters, batch, distinct(batch.observation_TBO.flatten(0, 1)))


def inputs(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the policy is shown, one step of one unroll at a time; observations as they are, each as often as it occurs."""
    action, reward = torch.full((T + 1, B), -1), torch.zeros(T + 1, B, dtype=torch.float64)
    for t in range(T + 1):
        for b in range(B):
            if not batch.start_TB[t, b]:
                action[t, b] = batch.action_TB[t - 1, b] if t else batch.previous_action_B[b]
                reward[t, b] = batch.reward_TB[t - 1, b] if t else batch.previous_reward_B[b]
    return batch.observation_TBO, batch.start_TB, action, reward


def in_one_pass(case: Case, steps: int = T + 1) -> PolicyOutput:
    given = (each[:steps] for each in inputs(case.batch))
    output: PolicyOutput = torch.func.functional_call(case.network, case.parameters, (*given, case.batch.core_state))
    return output


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", LENGTHS)
def test_sequences_are_cut_in_the_documented_order(length: int) -> None:
    """The first sequences of all unrolls, then the second ones of all unrolls."""
    x_TB2 = torch.arange(T * B * 2).view(T, B, 2)
    x_SC2 = cut(x_TB2, length)
    assert x_SC2.shape == (length, T // length * B, 2)
    for c in range(x_SC2.shape[1]):
        for s in range(length):
            assert torch.equal(x_SC2[s, c], x_TB2[c // B * length + s, c % B])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_what_is_cut_is_joined_to_what_it_was(length: int, shape: tuple[int, ...]) -> None:
    x_TB = torch.randn(T, B, *shape)
    assert torch.equal(join(cut(x_TB, length), B), x_TB)
    x_SC = torch.randn(length, T // length * B, *shape)
    assert torch.equal(cut(join(x_SC, B), length), x_SC)


def test_cutting_and_joining_by_hand() -> None:
    x_TB = torch.tensor([[0, 10], [1, 11], [2, 12], [3, 13]])
    assert cut(x_TB, 2).tolist() == [[0, 10, 2, 12], [1, 11, 3, 13]]
    assert cut(x_TB, 1).tolist() == [[0, 10, 1, 11, 2, 12, 3, 13]]
    assert join(torch.tensor([[0, 10, 2, 12], [1, 11, 3, 13]]), 2).tolist() == x_TB.tolist()


@pytest.mark.parametrize("length", LENGTHS)
def test_a_batch_in_sequences_is_one_pass_over_it(case: Case, length: int) -> None:
    """Logits of the actions, values of all observations, and their gradients; episodes start inside."""
    rollout, whole = case.rollout(length), in_one_pass(case)
    assert rollout.logits_TBA.shape == (T, B, A)
    assert rollout.value_TB.shape == (T + 1, B)
    close(rollout.logits_TBA, whole.logits_TBA[:-1])
    close(rollout.value_TB, whole.value_TB)
    upstream = torch.randn(T, B, A, dtype=torch.float64), torch.randn(T + 1, B, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((logits, value), list(case.parameters.values()), upstream)
        for logits, value in ((rollout.logits_TBA, rollout.value_TB), (whole.logits_TBA[:-1], whole.value_TB))
    ]
    for found, expected in zip(*gradients, strict=True):
        close(found, expected)
        assert expected.any()


@pytest.mark.parametrize("length", LENGTHS)
def test_each_sequence_begins_with_the_state_that_one_pass_has_there(case: Case, length: int) -> None:
    state, sequences = case.rollout(length).core_state, case.sequences(length)
    for c in range(T // length * B):
        before = c // B * length
        expected = in_one_pass(case, before).state if before else case.batch.core_state
        close(state[:, :, c], expected[:, :, c % B])
    assert torch.equal(sequences.core_state, state)
    assert not sequences.core_state.requires_grad, "no gradient goes back beyond a sequence"


@pytest.mark.parametrize("length", LENGTHS)
def test_the_sequences_of_a_batch_show_what_its_unrolls_show(case: Case, length: int) -> None:
    sequences = case.sequences(length)
    observation, start, action, reward = (each[:-1] for each in inputs(case.batch))
    assert torch.equal(case.unique.observation_UO[sequences.index_SC], cut(observation, length))
    assert torch.equal(sequences.start_SC, cut(start, length))
    assert torch.equal(sequences.previous_action_SC, cut(action, length))
    assert torch.equal(sequences.previous_reward_SC, cut(reward, length))
    assert torch.equal(previous_action(case.batch), inputs(case.batch)[2])


@pytest.mark.parametrize("length", LENGTHS)
def test_running_the_sequences_again_says_the_same_with_the_same_hidden_states(case: Case, length: int) -> None:
    rollout = case.rollout(length)
    again = run_policy(case.network, case.parameters, case.sequences(length), case.unique)
    close(join(again.logits_TBA, B), rollout.logits_TBA)
    close(join(again.value_TB, B), rollout.value_TB[:-1])
    assert len(again.hidden) == len(rollout.hidden) == case.network.core.layers
    for found, expected in zip(rollout.hidden, again.hidden, strict=True):
        close(found, expected)


def test_gradients_of_a_sequence_stay_in_it(case: Case) -> None:
    """What a sequence says depends on the parameters through its own steps, and not through those that led to its state."""
    own = run_policy(case.network, case.parameters, case.sequences(3), case.unique)
    second = (each[3:T] for each in inputs(case.batch))
    given = (*second, in_one_pass(case, 3).state.detach())
    alone: PolicyOutput = torch.func.functional_call(case.network, case.parameters, given)
    gradients = [
        torch.autograd.grad(logits.square().sum() + value.sum(), list(case.parameters.values()))
        for logits, value in ((own.logits_TBA[:, B:], own.value_TB[:, B:]), (alone.logits_TBA, alone.value_TB))
    ]
    for found, expected in zip(*gradients, strict=True):
        close(found, expected)


@pytest.mark.parametrize("which", [[0], [4, 1], [5, 2, 0, 1, 4, 3], [3, 3]])
def test_running_some_sequences_is_running_them_among_all(case: Case, which: list[int]) -> None:
    """Values, states and gradients, of which nothing depends on what else is there."""
    length, index = 3, torch.tensor(which)
    sequences = case.sequences(length)
    every = run_policy(case.network, case.parameters, sequences, case.unique)
    some = run_some(case.network, case.parameters, sequences.pick(index), case.unique)
    expected = (every.logits_TBA[:, index], every.value_TB[:, index], every.state[:, :, index])
    gradients = []
    for outputs in (some[:3], expected):
        generator = torch.Generator().manual_seed(1)
        loss = torch.stack(
            [(each * torch.randn(each.shape, dtype=torch.float64, generator=generator)).sum() for each in outputs]
        ).sum()
        gradients.append(torch.autograd.grad(loss, list(case.parameters.values()), retain_graph=True))
    for found, wanted in zip((*some[:3], *gradients[0]), (*expected, *gradients[1]), strict=True):
        close(found, wanted)


def test_picked_sequences_are_those_that_were_picked(case: Case) -> None:
    sequences, which = case.sequences(2), torch.tensor([8, 0, 3])
    picked = sequences.pick(which)
    for place, c in enumerate(which.tolist()):
        for found, whole in zip(picked[:-1], sequences[:-1], strict=True):
            assert torch.equal(found[:, place], whole[:, c])
        assert torch.equal(picked.core_state[:, :, place], sequences.core_state[:, :, c])


def test_only_the_observations_of_some_sequences_are_encoded(case: Case) -> None:
    seen: list[int] = []
    hook = case.network.encoder.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    sequences = case.sequences(3)
    seen.clear()
    run_some(case.network, case.parameters, sequences.pick(torch.tensor([1])), case.unique)
    hook.remove()
    assert seen == [3], "no more than the sequence has steps, though the batch has more distinct observations"
    assert len(case.unique.observation_UO) > 3
