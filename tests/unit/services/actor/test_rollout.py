"""An unroll is what really happened: replayed in other environments of the same seed, and by one call of the policy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from leco.models.policy import Policy
from services.actor.rollout import RolloutWorker, Unroll
from support.uncompiled import make_uncompiled

ENVIRONMENTS, STEPS, UNROLLS, SEED = 5, 23, 6, 11
TASK = "MultiRoom-N2-S4"  # 40 actions at most


def small_policy(seed: int = 0) -> Policy:
    """Tiny, and unlike MiniGrid's it also sees the previous action and reward, so that a wrong one changes its logits."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(7 * 7 * 3, 8))
    policy = Policy(7, encoder, image=(7, 7, 3), width=16, layers=2, use_last_action_reward=True)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2.0)  # so that what it saw matters
        policy.policy_head.bias.copy_(
            torch.tensor([0.0, 0.0, 2.0, -2.0, -2.0, 1.0, -2.0])
        )  # goes ahead and opens doors
    return policy


def played(policy: Policy, *, unrolls: int = UNROLLS, seed: int = SEED, steps: int = STEPS) -> list[Unroll]:
    env = make_uncompiled(TASK, ENVIRONMENTS, SEED)
    player = RolloutWorker(env, policy, seed, env.reset())
    return [player.play(steps) for _ in range(unrolls)]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return small_policy()


@pytest.fixture(scope="module")
def unrolls(policy: Policy) -> list[Unroll]:
    return played(policy)


def test_an_unroll_is_what_the_environments_did(unrolls: list[Unroll]) -> None:
    twin = make_uncompiled(TASK, ENVIRONMENTS, SEED)
    observation_EO, start_E = twin.reset(), np.ones(ENVIRONMENTS, bool)
    return_E, length_E = np.zeros(ENVIRONMENTS), np.zeros(ENVIRONMENTS, int)
    ended = solved = 0
    for unroll in unrolls:
        endings = [iter(each) for each in unroll.endings]
        for t in range(STEPS):
            assert (unroll.observation_TEO[t] == observation_EO).all()
            assert (unroll.start_TE[t] == start_E).all()
            steps = twin.step(unroll.action_TE[t])
            assert (unroll.reward_TE[t] == steps.reward_E).all()
            return_E, length_E = return_E + steps.reward_E, length_E + 1
            for terminal_O, e in zip(steps.terminal_observation_FO, np.flatnonzero(steps.done_E), strict=True):
                ending = next(endings[e])
                assert ending.step == t
                assert (ending.observation_O == terminal_O).all()
                assert ending.summary.episode_return == pytest.approx(return_E[e])
                assert (ending.summary.length, ending.summary.success) == (length_E[e], bool(steps.success_E[e]))
                return_E[e], length_E[e], ended = 0, 0, ended + 1
                solved += ending.summary.success
            observation_EO, start_E = steps.observation_EO, steps.done_E
        assert (unroll.observation_TEO[STEPS] == observation_EO).all()
        assert (unroll.start_TE[STEPS] == start_E).all()
        assert all(next(rest, None) is None for rest in endings)
    assert ended > 10
    assert 0 < solved < ended


def test_lengths_and_returns_are_of_whole_episodes_not_of_their_last_unroll(unrolls: list[Unroll]) -> None:
    lengths = [ending.summary.length for unroll in unrolls for each in unroll.endings for ending in each]
    assert max(lengths) == 40 > STEPS


def test_an_unroll_begins_where_the_one_before_ended(unrolls: list[Unroll]) -> None:
    for one, following in pairwise(unrolls):
        assert (following.observation_TEO[0] == one.observation_TEO[-1]).all()
        assert (following.start_TE[0] == one.start_TE[-1]).all()
        over_E = one.start_TE[-1]
        assert (following.previous_action_E == np.where(over_E, -1, one.action_TE[-1])).all()
        assert (following.previous_reward_E == np.where(over_E, 0, one.reward_TE[-1])).all()
    first = unrolls[0]
    assert first.start_TE[0].all()
    assert (first.previous_action_E == -1).all()
    assert (first.previous_reward_E == 0).all()
    assert (first.core_LCEH == 0).all()
    assert any(unroll.start_TE[-1].any() for unroll in unrolls) or any(
        unroll.start_TE[1:-1].any() for unroll in unrolls
    )


def test_one_call_of_the_policy_over_an_unroll_gives_the_logits_that_acted(
    policy: Policy, unrolls: list[Unroll]
) -> None:
    for unroll in unrolls:
        start_TE = unroll.start_TE[:-1]
        action_TE = np.concatenate([unroll.previous_action_E[None], unroll.action_TE[:-1]])
        reward_TE = np.concatenate([unroll.previous_reward_E[None], unroll.reward_TE[:-1]])
        with torch.no_grad():
            output = policy(
                torch.from_numpy(unroll.observation_TEO[:-1]),
                torch.from_numpy(start_TE),
                torch.from_numpy(np.where(start_TE, -1, action_TE)),
                torch.from_numpy(np.where(start_TE, 0, reward_TE).astype(np.float32)),
                torch.from_numpy(unroll.core_LCEH),
            )
        np.testing.assert_allclose(output.logits_TBA.numpy(), unroll.logits_TEA, atol=1e-5)
    assert np.abs(unrolls[1].core_LCEH).max() > 0.01


def test_nothing_of_an_unroll_changes_when_playing_goes_on(policy: Policy) -> None:
    env = make_uncompiled(TASK, ENVIRONMENTS, SEED)
    player = RolloutWorker(env, policy, SEED, env.reset())
    unroll = player.play(STEPS)
    before = [np.array(array) for array in unroll[:-1]]
    player.play(2 * STEPS)
    for array, kept in zip(unroll[:-1], before, strict=True):
        assert (np.asarray(array) == kept).all()


def equal(one: Unroll, other: Unroll) -> bool:
    return all((np.asarray(x) == np.asarray(y)).all() for x, y in zip(one[:-1], other[:-1], strict=True))


def test_the_seed_decides_what_is_played(policy: Policy, unrolls: list[Unroll]) -> None:
    again = played(policy, unrolls=2)
    assert equal(again[0], unrolls[0])
    assert equal(again[1], unrolls[1])
    other = played(policy, unrolls=1, seed=SEED + 1)[0]
    assert (other.action_TE != unrolls[0].action_TE).any()


def test_a_restart_forgets_everything(policy: Policy, unrolls: list[Unroll]) -> None:
    env = make_uncompiled(TASK, ENVIRONMENTS, SEED + 7)
    player = RolloutWorker(env, policy, SEED + 7, env.reset())
    player.play(STEPS + 5)
    player.restart(SEED, env.reset(SEED))
    for unroll in unrolls:
        again = player.play(STEPS)
        assert equal(again, unroll)
        assert [[ending.summary for ending in each] for each in again.endings] == [
            [ending.summary for ending in each] for each in unroll.endings
        ]


def test_actions_have_the_probabilities_of_the_policy() -> None:
    policy = small_policy()
    probability_A = torch.tensor([0.3, 0.02, 0.08, 0.25, 0.15, 0.05, 0.15])
    with torch.no_grad():
        policy.policy_head.weight.zero_()
        policy.policy_head.bias.copy_(probability_A.log() + 3.0)  # logits need not be normalised
    env = make_uncompiled("Empty-5x5", 8, 1)
    action_TE = RolloutWorker(env, policy, 3, env.reset()).play(500).action_TE
    expected_A = probability_A.numpy() * action_TE.size
    observed_A = np.bincount(action_TE.ravel(), minlength=7)
    assert ((observed_A - expected_A) ** 2 / expected_A).sum() < 22.46  # chi-square, 6 degrees of freedom, 0.1 %
    # And one environment's do not depend on another's: equal with the probability of a coincidence.
    coincidence = float((probability_A**2).sum())
    assert abs((action_TE[:, 0] == action_TE[:, 1]).mean() - coincidence) < 0.08
    assert abs((action_TE[1:] == action_TE[:-1]).mean() - coincidence) < 0.03


def test_an_episode_that_was_given_up_says_so(policy: Policy) -> None:
    env = make_uncompiled(TASK, ENVIRONMENTS, SEED)
    env.dropped_E = np.arange(ENVIRONMENTS) == 1  # type: ignore[attr-defined]  # as environments with engines have it
    unroll = RolloutWorker(env, policy, SEED, env.reset()).play(45)
    said = [{ending.summary.dropped for ending in each} for each in unroll.endings]
    assert said == [{False}, {True}, {False}, {False}, {False}]


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_observations_that_are_no_bytes_are_refused(policy: Policy, dtype: type) -> None:
    env = make_uncompiled(TASK, 2, SEED)
    with pytest.raises(ValueError, match=r"observations are (float32|int64), expected uint8: scale them to 0 to 255"):
        RolloutWorker(env, policy, 0, env.reset().astype(dtype))
