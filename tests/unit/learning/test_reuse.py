"""A batch that is learned from more than once: whole updates with epochs of minibatches of sequences."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch

from leco.algo.dedup import distinct
from leco.config.training import NetworkConfig
from leco.learning.policy_pass import Sequences, cut, previous_action
from leco.learning.policy_step import PolicyBatch, Targets
from leco.learning.state import init
from leco.learning.update import update
from leco.methods.table import find_method
from leco.models.build import build
from support.plain_ppo import plain_steps
from support.reference import losses_numpy, vtrace_numpy
from support.training_case import A, B, T, make_batch, networks, paper_config

if TYPE_CHECKING:
    from leco.config.training import TrainingConfig
    from leco.learning.state import Batch, Networks, Params, TrainingState

REUSE = paper_config(
    alpha=0.1,
    entropy_cost=0.05,
    vtrace_lambda=0.9,
    reward_scale=10.0,
    bootstrap_on_truncation=True,
    policy_learning_rate=0.01,
    eps=1e-4,
    max_gradient_norm=0.5,
    epochs=2,
    minibatches=3,
    sequence_length=3,
    clip_range=0.2,
    normalize_advantages=True,
    episodic_bonus="first-visit",
    center_bonus=True,
)


def narrow(method: str = "exact", hash_kind: str | None = None) -> Networks:
    """With a policy of few units, and none of them as small as they begin."""
    torch.manual_seed(4)
    nets = build(find_method(method, hash_kind), (7, 7, 3), A, network=NetworkConfig(width=8))
    with torch.no_grad():
        for parameter in nets.policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    nets.policy.double()
    return nets if nets.intrinsic is None else nets._replace(intrinsic=nets.intrinsic.double())


def narrow_batch(seed: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    batch = make_batch(seed)
    truncated_TB = batch.start_TB[1:].clone()
    truncated_TB[:, 0] = False
    assert truncated_TB.any()
    return batch._replace(
        core_state=torch.randn(1, 2, B, 8, generator=generator, dtype=torch.float64), truncated_TB=truncated_TB
    )


def stepped(
    nets: Networks, batch: Batch, settings: TrainingConfig, state: TrainingState | None = None
) -> TrainingState:
    return update(nets, state or init(nets), batch, find_method("exact"), settings)[0]


def same(one: TrainingState, other: TrainingState, tolerance: float = 0.0) -> bool:
    return all(
        torch.allclose(one.policy[name], tensor, rtol=tolerance, atol=tolerance)
        for name, tensor in other.policy.items()
    )


def test_an_update_is_ppo_on_vtrace_step_by_step() -> None:
    """Rewards, V-trace, advantages and steps, each from its naive reference, with the states of one pass over the batch."""
    nets, batch, state = narrow(), narrow_batch(), init(narrow())
    assert batch.count_TB is not None
    assert batch.truncated_TB is not None
    index, unused = torch.arange((T + 1) * B).view(T + 1, B), torch.zeros(T + 1, B, dtype=torch.float64)
    with torch.no_grad():
        action_TB = previous_action(batch)
        whole = nets.policy(batch.observation_TBO, batch.start_TB, action_TB, unused, batch.core_state)
        middle = nets.policy(
            *(each[:3] for each in (batch.observation_TBO, batch.start_TB, action_TB, unused)), batch.core_state
        ).state
    new = (batch.count_TB == 1).double()
    reward = 10 * (batch.reward_TB + 0.1 * (new - new.mean()))
    log_pi, log_mu = (
        torch.from_numpy(losses_numpy.log_prob(logits.numpy(), batch.action_TB.numpy()))
        for logits in (whole.logits_TBA[:-1], batch.behaviour_logits_TBA)
    )
    target, advantage, rho = vtrace_numpy.vtrace(
        log_rho=(log_pi - log_mu).numpy(),
        reward=torch.where(batch.truncated_TB, whole.value_TB[:-1], reward).numpy(),
        discount=(0.99 * (~batch.start_TB[1:]).double()).numpy(),
        value=whole.value_TB[:-1].numpy(),
        bootstrap=whole.value_TB[-1].numpy(),
        rho_bar=1.0,
        c_bar=1.0,
        decay=0.9,
    )
    arrays = (losses_numpy.standardize(advantage), target, rho)
    learned = (batch.action_TB, log_pi, log_mu, *(torch.from_numpy(each) for each in arrays))
    shown = cut(index[:-1], 3), cut(batch.start_TB[:-1], 3), cut(action_TB[:-1], 3), cut(unused[:-1], 3)
    data = PolicyBatch(
        Sequences(*shown, torch.cat([batch.core_state, middle], 2)),
        Targets(*(cut(each, 3) for each in learned)),
        distinct(torch.zeros(1, 1, dtype=torch.uint8))._replace(observation_UO=batch.observation_TBO.flatten(0, 1)),
    )
    expected, norms = plain_steps(nets.policy, state.policy, data, REUSE, seed=0)
    found = stepped(nets, batch, REUSE)
    for name, tensor in expected.items():
        torch.testing.assert_close(found.policy[name], tensor, rtol=1e-6, atol=1e-8, msg=name)
        assert not torch.allclose(tensor, state.policy[name], rtol=0, atol=1e-4), name
    assert found.policy_adam.steps == len(norms) == 6


def test_an_update_depends_on_its_inputs_and_its_number_alone() -> None:
    nets, batch = narrow(), narrow_batch()
    first = stepped(nets, batch, REUSE)
    torch.manual_seed(99)
    assert same(stepped(nets, batch, REUSE), first)
    settings = dataclasses.replace(REUSE, center_bonus=False)  # whose mean depends on the number too
    later = init(nets)._replace(updates=1)
    assert not same(stepped(nets, batch, settings, later), stepped(nets, batch, settings)), "it draws other minibatches"


@pytest.mark.parametrize("normalize", [False, True])
def test_a_single_pass_in_sequences_is_the_papers_step_where_episodes_begin_with_them(*, normalize: bool) -> None:
    """No gradient passes the start of an episode, so nothing is lost by cutting there; elsewhere something is."""
    once = dataclasses.replace(
        REUSE, epochs=1, minibatches=1, sequence_length=None, clip_range=None, normalize_advantages=normalize
    )
    pieces, nets = dataclasses.replace(once, sequence_length=3), narrow()
    batch = narrow_batch()
    batch.start_TB[3] = True
    assert same(stepped(nets, batch, pieces), stepped(nets, batch, once), 1e-9)
    batch.start_TB[1:] = False
    assert not same(stepped(nets, batch, pieces), stepped(nets, batch, once), 1e-6)


def test_a_sequence_that_is_longer_than_the_unroll_is_the_unroll() -> None:
    nets, batch = narrow(), narrow_batch()
    for settings in (REUSE, paper_config()):
        whole, longer = (dataclasses.replace(settings, sequence_length=length) for length in (None, 1000))
        assert same(stepped(nets, batch, longer), stepped(nets, batch, whole))


def test_on_policy_a_single_pass_with_a_clip_is_the_papers_step() -> None:
    nets, batch = narrow(), narrow_batch()
    with torch.no_grad():
        unused = torch.zeros(T + 1, B, dtype=torch.float64)
        output = nets.policy(batch.observation_TBO, batch.start_TB, previous_action(batch), unused, batch.core_state)
    settings = dataclasses.replace(
        REUSE, epochs=1, minibatches=1, sequence_length=None, clip_range=None, normalize_advantages=False
    )
    clipped = dataclasses.replace(settings, clip_range=0.2)
    on_policy = batch._replace(behaviour_logits_TBA=output.logits_TBA[:-1])
    assert same(stepped(nets, on_policy, clipped), stepped(nets, on_policy, settings), 1e-9)
    assert not same(stepped(nets, batch, clipped), stepped(nets, batch, settings), 1e-6)


def test_standardized_advantages_have_no_scale_and_no_offset() -> None:
    """Without values, which would be learned in another scale: rewards ten times as large are the same advantages."""
    nets, batch = narrow(), narrow_batch()
    with torch.no_grad():
        for parameter in nets.policy.value_head.parameters():
            parameter.zero_()
    batch = batch._replace(truncated_TB=None)

    def policy_head(scale: float, *, normalize: bool) -> torch.Tensor:
        settings = dataclasses.replace(
            REUSE, epochs=1, minibatches=1, reward_scale=scale, normalize_advantages=normalize, max_gradient_norm=None
        )
        return stepped(nets, batch, settings).policy_adam.exp_avg["policy_head.weight"]

    torch.testing.assert_close(
        policy_head(1.0, normalize=True), policy_head(10.0, normalize=True), rtol=1e-6, atol=1e-12
    )
    assert not torch.allclose(policy_head(1.0, normalize=False), policy_head(10.0, normalize=False), rtol=1e-2)


@pytest.mark.parametrize(
    ("method", "kind"), [("leco", "exact"), ("leco", None), ("leco-naive", "objects"), ("rnd", None)]
)
def test_actors_are_told_of_the_policy_before_the_rest_is_done(method: str, kind: str | None) -> None:
    """Once, with the parameters that the state has in the end."""
    nets = networks(method, kind)
    told: list[Params] = []
    settings = dataclasses.replace(REUSE, earned_trust=True, penalty_on_revisits=True)
    after, _ = update(nets, init(nets), make_batch(), find_method(method, kind), settings, on_policy=told.append)
    [parameters] = told
    assert parameters.keys() == after.policy.keys()
    assert all(torch.equal(parameters[name], tensor) for name, tensor in after.policy.items())


def test_a_modulator_that_has_earned_no_trust_changes_nothing_and_learns_nothing() -> None:
    nets, batch, method = networks("leco", "exact"), make_batch(), find_method("leco", "exact")
    settings = dataclasses.replace(REUSE, earned_trust=True)
    state = init(nets)
    after, stats = update(nets, state, batch, method, settings)
    assert stats["r_ta"] == 0
    still = {name for name, tensor in after.intrinsic.items() if torch.equal(tensor, state.intrinsic[name])}
    assert still == {name for name in state.intrinsic if name.startswith("modulator_")}
    trusted, stats = update(nets, state._replace(trust=torch.tensor(0.5).double()), batch, method, settings)
    assert stats["r_ta"] != 0
    assert not any(torch.equal(tensor, state.intrinsic[name]) for name, tensor in trusted.intrinsic.items())
