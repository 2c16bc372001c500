"""A few early successes after standing still make no policy that stands still for ever.

Each episode is one long corridor. Action 0 stays where it is; every other action leads to something new. In the first batches the
task happens to reward those who stood still; then it never rewards again. The modulator has learned to pay for standing still,
and nothing tells it otherwise: without rewards there is no advantage to learn from. It could pay at every step, for ever, and a
first visit is paid only once.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch
from torch.func import functional_call

from leco.learning.rewards import explained_variance, running_trust
from leco.learning.state import Batch, Networks, TrainingState, init
from leco.learning.update import update
from leco.methods.table import find_method
from leco.models.intrinsic import build_feature_module
from leco.models.kinds.minigrid import MiniGridPolicy
from leco.models.kinds.table import MINIGRID
from support.training_case import make_batch, networks, paper_config

if TYPE_CHECKING:
    from collections.abc import Mapping

T, B, A = 16, 16, 3
LUCKY, UPDATES = 8, 40
COLLAPSED = 0.05  # entropy, of log 3 = 1.1
SETTINGS = paper_config(
    gamma=0.9,
    alpha=0.2,
    entropy_cost=0.01,
    policy_learning_rate=2e-3,
    intrinsic_learning_rate=3e-3,
    epochs=2,
    minibatches=2,
    clip_range=0.2,
    normalize_advantages=True,
    max_gradient_norm=0.5,
    vtrace_lambda=0.95,
    reward_scale=10.0,
    bootstrap_on_truncation=True,
    episodic_bonus="first-visit",
)


def play(policy: MiniGridPolicy, state: TrainingState, generator: torch.Generator, *, lucky: bool) -> Batch:
    """One episode of T actions in each of B corridors; the time limit ends it."""
    place_B = torch.zeros(B, dtype=torch.int64)
    start_TB = torch.zeros(T + 1, B, dtype=torch.bool)
    start_TB[0] = start_TB[T] = True
    first = core = policy.initial_state(B)
    previous_1B = torch.full((1, B), -1)
    views, actions, rewards, logits, counts = [], [], [], [], []
    visits = torch.zeros(B, 2 * T, dtype=torch.int64)
    visits[:, 0] = 1
    for t in range(T):
        views.append(view(place_B))
        arguments = (views[-1][None], start_TB[t : t + 1], previous_1B, torch.zeros(1, B), core)
        output = functional_call(policy, state.policy, arguments)
        action_B = torch.multinomial(output.logits_TBA[0].softmax(-1), 1, generator=generator)[:, 0]
        place_B = place_B + (action_B > 0)
        visits[torch.arange(B), place_B] += 1
        counts.append(visits[torch.arange(B), place_B].clone())
        stood = (action_B == 0) & (previous_1B[0] == 0)
        rewards.append(0.5 * (stood & (torch.rand(B, generator=generator) < 0.3)).float() * lucky)
        actions.append(action_B)
        logits.append(output.logits_TBA[0])
        previous_1B, core = action_B[None], output.state
    views.append(view(torch.zeros(B, dtype=torch.int64)))
    truncated_TB = torch.zeros(T, B, dtype=torch.bool)
    truncated_TB[-1] = True
    return Batch(
        observation_TBO=torch.stack(views),
        start_TB=start_TB,
        action_TB=torch.stack(actions),
        reward_TB=torch.stack(rewards),
        behaviour_logits_TBA=torch.stack(logits),
        previous_action_B=torch.full((B,), -1),
        previous_reward_B=torch.zeros(B),
        core_state=first,
        count_TB=torch.stack(counts),
        truncated_TB=truncated_TB,
    )


def view(place_B: torch.Tensor) -> torch.Tensor:
    """A view that tells the place."""
    image_BHWC = torch.ones(B, 7, 7, 3, dtype=torch.uint8)
    image_BHWC[..., 0] += (place_B % 4)[:, None, None].to(torch.uint8)
    image_BHWC[..., 1] = (place_B % 5)[:, None, None].to(torch.uint8)
    image_BHWC[:, 3, 3, 2] = (place_B // 20 % 3).to(torch.uint8)
    return image_BHWC


def train(*, guarded: bool) -> tuple[float, float, float]:
    """The policy's entropy, the share of actions that stand still, and r_ta, over the last ten batches."""
    torch.manual_seed(1)
    policy = MiniGridPolicy(A, 32)
    networks = Networks(policy, build_feature_module(MINIGRID, A))
    state, generator = init(networks), torch.Generator().manual_seed(2)
    settings = dataclasses.replace(SETTINGS, penalty_on_revisits=guarded)
    found = []
    with torch.no_grad():
        for number in range(UPDATES):
            batch = play(policy, state, generator, lucky=number < LUCKY)
            with torch.enable_grad():
                state, stats = update(networks, state, batch, find_method("leco", "exact"), settings)
            still = (batch.action_TB == 0).float().mean().item()
            found.append((stats["entropy"], still, stats["r_ta"]))
    entropy, still, r_ta = (sum(each) / 10 for each in zip(*found[-10:], strict=True))
    return entropy, still, r_ta


def test_without_the_guard_the_policy_stands_still_for_ever() -> None:
    entropy, still, r_ta = train(guarded=False)
    assert entropy < COLLAPSED
    assert still > 0.95
    assert r_ta > 0.5, "it is paid for it"


def test_with_the_guard_it_does_not() -> None:
    entropy, still, _ = train(guarded=True)
    assert entropy > COLLAPSED
    assert still < 0.5


def flat(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def test_a_modulator_counts_as_far_as_it_is_trusted() -> None:
    nets, batch, method = networks("leco", "exact"), make_batch(), find_method("leco", "exact")
    state = init(nets)
    full, half, none = (
        update(
            nets,
            state._replace(trust=torch.tensor(trust, dtype=torch.float64)),
            batch,
            method,
            paper_config(earned_trust=True),
        )
        for trust in (1.0, 0.5, 0.0)
    )
    assert full[1]["r_ta"] != 0
    assert half[1]["r_ta"] == pytest.approx(0.5 * full[1]["r_ta"])
    assert none[1]["r_ta"] == 0
    plain, _ = update(nets, state, batch, method, paper_config())
    assert torch.equal(flat(full[0].policy), flat(plain.policy)), "trusted it is as without the setting"
    # Not trusted at all, the policy learns as if there were only the count, and the modulator has nothing to learn from.
    counted, _ = update(nets, state, batch, find_method("exact"), paper_config(alpha=0.5 * paper_config().alpha))
    torch.testing.assert_close(flat(none[0].policy), flat(counted.policy), rtol=1e-9, atol=1e-12)
    assert none[0].intrinsic_adam.exp_avg["modulator_out.weight"].abs().max() == 0


def test_trust_is_what_the_value_of_the_task_explains() -> None:
    target_TB = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.float64)
    assert explained_variance(target_TB, target_TB) == 1
    assert explained_variance(torch.zeros(2, 2), target_TB) == 0
    assert explained_variance(target_TB + 5, target_TB) == 1, "a constant error is no variance"
    # Errors 0, 0, 0, 1: variance 1/4, of targets 5/3.
    off_TB = target_TB - torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    assert explained_variance(off_TB, target_TB).item() == pytest.approx(1 - 0.25 / (5 / 3))
    nothing_TB = torch.zeros(2, 2)
    assert explained_variance(nothing_TB, nothing_TB) == 0, "before the first reward there is nothing to explain"
    before = torch.tensor(0.4, dtype=torch.float64)
    assert running_trust(before, target_TB, target_TB).item() == pytest.approx(0.95 * 0.4 + 0.05)
    assert running_trust(before, -9 * target_TB, target_TB).item() == pytest.approx(0.95 * 0.4), "never below 0"


def test_trust_begins_at_zero_and_grows_when_the_task_rewards() -> None:
    torch.manual_seed(1)
    policy = MiniGridPolicy(A, 32)
    networks_ = Networks(policy, build_feature_module(MINIGRID, A))
    state, generator = init(networks_), torch.Generator().manual_seed(2)
    settings = dataclasses.replace(SETTINGS, earned_trust=True)
    told = []
    with torch.no_grad():
        for number in range(24):
            batch = play(policy, state, generator, lucky=False)
            there_TB = batch.observation_TBO[:-1, :, 0, 0, 0] == 4  # one place in four is worth something
            batch = batch._replace(reward_TB=there_TB.float() * (number >= 4))
            with torch.enable_grad():
                state, stats = update(networks_, state, batch, find_method("leco", "exact"), settings)
            told.append(stats["trust"])
    assert told[:4] == [0, 0, 0, 0]
    assert 0 < told[-1] == state.trust.item() < 1
