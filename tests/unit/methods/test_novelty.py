"""What makes each novelty itself, through the real networks and through whole training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from leco.algo.dedup import distinct
from leco.learning.policy_pass import unroll_policy
from leco.learning.state import init
from leco.learning.update import update
from leco.methods.novelty import NoveltyInput, NoveltyOutput, compute_novelty
from leco.methods.table import find_method
from leco.models.exploration import Dynamics, Rnd
from leco.models.policy import Policy
from support.training_case import A, B, T, make_batch, networks, paper_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leco.learning.state import Batch, Networks, Params


def leaves(tensors: Params) -> Params:
    return {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}


def judged(
    name: str,
    nets: Networks,
    batch: Batch,
    parameters: Params | None = None,
    running: Params | None = None,
    **settings: Any,
) -> NoveltyOutput:
    state = init(nets)
    unique = distinct(batch.observation_TBO.flatten(0, 1))
    rollout = unroll_policy(nets.policy, state.policy, batch, unique, len(batch.action_TB))
    tensors = {**(parameters or state.novelty), **(running if running is not None else state.novelty_running)}
    given = NoveltyInput(nets.novelty, tensors, batch, unique, rollout.logits_TBA, paper_config(**settings))
    return compute_novelty(given, find_method(name))


def after_each_action(batch: Batch) -> Tensor:
    """s' of every action, one at a time: the true last observation where an episode ended."""
    assert batch.terminal_observation_FO is not None
    last = iter(batch.terminal_observation_FO)
    return torch.stack(
        [
            torch.stack([next(last) if batch.start_TB[t + 1, b] else batch.observation_TBO[t + 1, b] for b in range(B)])
            for t in range(T)
        ]
    )


def gradients(loss: Tensor, parameters: Params) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {k: torch.zeros_like(p) if g is None else g for (k, p), g in zip(parameters.items(), found, strict=True)}


def test_the_case_has_ends_first_visits_and_repeats() -> None:
    batch = make_batch()
    assert batch.start_TB[1:].any()
    assert batch.count_TB is not None
    assert 0 < int((batch.count_TB == 1).sum()) < batch.count_TB.numel()


def test_noveld_is_the_formula_on_true_next_observations() -> None:
    nets, batch = networks("noveld"), make_batch()
    net = nets.novelty
    assert isinstance(net, Rnd)
    assert batch.count_TB is not None

    def far(observation_TBO: Tensor) -> Tensor:
        with torch.no_grad():
            flat = observation_TBO.flatten(0, 1)
            distance: Tensor = (net.predictor(flat) - net.target(flat)).norm(dim=1)
            return distance.view(T, B)

    n_next, n_now = far(after_each_action(batch)), far(batch.observation_TBO[:-1])
    expected = torch.where(batch.count_TB == 1, (n_next - 0.5 * n_now).clamp(min=0), 0.0)
    assert expected.any()
    torch.testing.assert_close(judged("noveld", nets, batch).r_ep_TB, expected, rtol=1e-9, atol=1e-12)


def test_noveld_pays_only_first_visits_in_an_episode() -> None:
    nets, batch = networks("noveld"), make_batch()
    again = batch._replace(count_TB=torch.full_like(batch.action_TB, 2))
    assert not judged("noveld", nets, again).r_ep_TB.any()
    first = batch._replace(count_TB=torch.ones_like(batch.action_TB))
    assert judged("noveld", nets, first).r_ep_TB.any()


@pytest.mark.parametrize("name", ["noveld", "rnd"])
def test_the_predictor_learns_the_squared_distance_at_next_observations(name: str) -> None:
    """Distinct observations and multiplicities change nothing in the gradient."""
    nets, batch = networks(name), make_batch()
    net, parameters = nets.novelty, leaves(init(nets).novelty)
    assert isinstance(net, Rnd)
    loss = judged(name, nets, batch, parameters).loss
    assert loss is not None
    found = gradients(loss, parameters)
    seen = after_each_action(batch).flatten(0, 1).double()
    if name == "rnd":
        mean, variance = seen.mean(0), seen.var(0, unbiased=False)
        share = len(seen) / (len(seen) + 1e-4)  # what the running moments began with weighs next to nothing
        variance = (1 - share) * 1.0 + share * variance + mean.square() * share * (1 - share)
        seen = ((seen - share * mean) / (variance + 1e-8).sqrt()).clamp(-5, 5)
    else:
        seen = seen.to(torch.float64)
    naive_loss = torch.stack(
        [(net.predictor(o[None]) - net.target(o[None]).detach()).square().sum() for o in seen]
    ).mean()
    naive = gradients(naive_loss, dict(net.named_parameters()))
    torch.testing.assert_close(loss, naive_loss, rtol=1e-8, atol=0)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, naive[key], rtol=1e-6, atol=1e-10, msg=key)
    assert not any(found[key].any() for key in found if key.startswith("target"))


def test_rnds_error_falls_on_repeated_states_and_stays_on_others() -> None:
    nets, batch, others = networks("rnd"), make_batch(), make_batch(seed=9)
    state, errors = init(nets), []
    for _ in range(60):
        state, stats = update(nets, state, batch, find_method("rnd"), paper_config(novelty_learning_rate=1e-3))
        errors.append(stats["rnd_error"])
    assert errors[-1] < 0.5 * errors[5]
    strange = judged("rnd", nets, others, state.novelty, {k: v.clone() for k, v in state.novelty_running.items()})
    known = judged("rnd", nets, batch, state.novelty, {k: v.clone() for k, v in state.novelty_running.items()})
    assert strange.stats["rnd_error"] > 1.5 * known.stats["rnd_error"]


def test_rnds_reward_is_the_error_in_deviations_of_its_discounted_sums() -> None:
    nets, batch = networks("rnd"), make_batch()
    running = {k: v.clone() for k, v in init(nets).novelty_running.items()}
    novel = judged("rnd", nets, batch, running=running)
    error = novel.r_ep_TB * (running["returns.variance"] + 1e-8).sqrt()
    sums = torch.zeros(T, B, dtype=torch.float64)
    for t in range(T):
        sums[t] = error[t] + (0.99 * sums[t - 1] if t else 0.0)
    torch.testing.assert_close(running["returns.variance"], sums.var(unbiased=False), rtol=1e-3, atol=0)
    assert running["seen.rows"] == pytest.approx(T * B + 1e-4)


def test_rnd_sees_nothing_farther_than_five_deviations() -> None:
    net = networks("rnd").novelty
    assert isinstance(net, Rnd)
    assert net.seen is not None
    net.seen.rows.fill_(1e9)
    net.seen.variance.fill_(0.01)
    far, farther = (torch.full((1, 7, 7, 3), number, dtype=torch.uint8) for number in (1, 9))
    assert torch.equal(net(far, torch.ones(1)), net(farther, torch.ones(1)))
    net.seen.variance.fill_(10.0)
    assert not torch.equal(net(far, torch.ones(1)), net(farther, torch.ones(1)))


def test_ride_is_the_formula_and_shrinks_with_the_count() -> None:
    nets, batch = networks("ride"), make_batch()
    net = nets.novelty
    assert isinstance(net, Dynamics)
    assert batch.count_TB is not None
    with torch.no_grad():
        before, after = (
            net.embedding(o.flatten(0, 1)).view(T, B, -1)
            for o in (batch.observation_TBO[:-1], after_each_action(batch))
        )
    expected = (after - before).norm(dim=-1) / batch.count_TB.double().sqrt()
    found = judged("ride", nets, batch).r_ep_TB
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    often = judged("ride", nets, batch._replace(count_TB=9 * batch.count_TB)).r_ep_TB
    torch.testing.assert_close(often, found / 3)


def test_rides_features_learn_from_both_models() -> None:
    nets, batch = networks("ride"), make_batch()
    net, parameters = nets.novelty, leaves(init(nets).novelty)
    assert isinstance(net, Dynamics)
    loss = judged("ride", nets, batch, parameters).loss
    assert loss is not None
    found = gradients(loss, parameters)
    forwards, backwards = [], []
    after = after_each_action(batch)
    for t, b in ((t, b) for t in range(T) for b in range(B)):
        now, then = net.embedding(batch.observation_TBO[t, b][None])[0], net.embedding(after[t, b][None])[0]
        action = batch.action_TB[t, b]
        one_hot = torch.tensor([float(action == a) for a in range(A)], dtype=torch.float64)
        forwards.append(0.5 * (net.forwards(torch.cat([now, one_hot])) - then).square().sum())
        backwards.append(cross_entropy(net.backwards(torch.cat([now, then]))[None], action[None]))
    naive_loss = 10 * torch.stack(forwards).mean() + 0.1 * torch.stack(backwards).mean()
    naive = gradients(naive_loss, dict(net.named_parameters()))
    torch.testing.assert_close(loss, naive_loss, rtol=1e-9, atol=0)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, naive[key], rtol=1e-7, atol=1e-11, msg=key)
        assert gradient.any(), key


def test_agac_rewards_first_visits_and_what_the_adversary_does_not_foresee() -> None:
    nets, batch = networks("agac"), make_batch()
    assert isinstance(nets.novelty, Policy)
    assert batch.count_TB is not None
    with torch.no_grad():  # far apart, since near each other both directions of the divergence are the same
        nets.policy.policy_head.bias.copy_(torch.linspace(-2, 2, A))
        nets.novelty.policy_head.bias.copy_(torch.linspace(3, 0, A).square())
    novel = judged("agac", nets, batch)
    assert novel.r_ep_TB.tolist() == (batch.count_TB == 1).double().tolist()
    unique = distinct(batch.observation_TBO.flatten(0, 1))
    state = init(nets)
    forgotten = batch._replace(core_state=torch.zeros_like(batch.core_state))
    log_pi = unroll_policy(nets.policy, state.policy, batch, unique, len(batch.action_TB)).logits_TBA.log_softmax(-1)
    log_adv = unroll_policy(
        nets.novelty, state.novelty, forgotten, unique, len(batch.action_TB)
    ).logits_TBA.log_softmax(-1)
    taken = batch.action_TB.unsqueeze(-1)
    assert novel.adversary_log_ratio_TB is not None
    assert novel.adversary_kl_TB is not None
    torch.testing.assert_close(novel.adversary_log_ratio_TB, (log_pi - log_adv).gather(-1, taken).squeeze(-1))
    torch.testing.assert_close(novel.adversary_kl_TB, (log_pi.exp() * (log_pi - log_adv)).sum(-1))
    assert not novel.adversary_log_ratio_TB.requires_grad
    assert not novel.adversary_kl_TB.requires_grad


def test_agacs_opposition_reaches_advantages_and_values_and_ends_with_the_run() -> None:
    nets, batch, method = networks("agac"), make_batch(), find_method("agac")

    def policy(progress: float, **settings: Any) -> Mapping[str, Tensor]:
        return update(nets, init(nets), batch, method, paper_config(**settings), progress=progress)[
            0
        ].policy_adam.exp_avg

    without, at_first, half, at_last = policy(0.0, agac_coef=0.0), policy(0.0), policy(0.5), policy(1.0)
    for head in ("policy_head.weight", "value_head.weight"):
        whole = at_first[head] - without[head]
        assert whole.any()
        torch.testing.assert_close(half[head] - without[head], whole / 2, rtol=1e-6, atol=1e-12)
        assert torch.equal(at_last[head], without[head])


def test_episodic_methods_know_nothing_of_all_this() -> None:
    for name in ("no-int", "dsc", "vq-only", "leco"):
        assert not list((networks(name).novelty or torch.nn.Module()).parameters())
        batch = make_batch()._replace(terminal_observation_FO=None)
        update(networks(name), init(networks(name)), batch, find_method(name), paper_config())


@pytest.mark.parametrize("name", ["noveld", "rnd", "ride"])
def test_last_observations_must_be_there(name: str) -> None:
    nets, batch = networks(name), make_batch()
    ends = int(batch.start_TB[1:].sum())
    with pytest.raises(ValueError, match=rf"{ends} episodes end in this batch, but it has none of their last"):
        judged(name, nets, batch._replace(terminal_observation_FO=None))
    assert batch.terminal_observation_FO is not None
    with pytest.raises(ValueError, match=rf"but it has {ends - 1} of their last observations"):
        judged(name, nets, batch._replace(terminal_observation_FO=batch.terminal_observation_FO[1:]))


@pytest.mark.parametrize("name", ["noveld", "ride", "agac", "vq-only"])
def test_counts_must_be_there(name: str) -> None:
    with pytest.raises(ValueError, match=f"method '{name}' needs counts, and this batch has none"):
        judged(name, networks(name), make_batch()._replace(count_TB=None))


def test_shaped_rewards_teach_and_raw_ones_are_reported() -> None:
    nets, method = networks("no-int"), find_method("no-int")
    batch = make_batch()
    batch = batch._replace(reward_TB=10 * (batch.reward_TB - 0.5), previous_reward_B=batch.previous_reward_B * 0)
    shaped, stats = update(nets, init(nets), batch, method, paper_config(reward_shaping="soft-asymmetric"))
    by_hand = 5 * torch.tanh(batch.reward_TB / 5)
    by_hand = torch.where(batch.reward_TB < 0, 0.3 * by_hand, by_hand)
    expected, _ = update(nets, init(nets), batch._replace(reward_TB=by_hand), method, paper_config())
    assert stats["r_e"] == pytest.approx(batch.reward_TB.mean().item())
    for key, value in expected.policy.items():
        torch.testing.assert_close(shaped.policy[key], value, rtol=0, atol=0)
