"""A task with a distractor that is new in every step: the modulator learns to make it worthless, counting alone cannot.

Each episode is one room. Action 0 earns a little reward and leads to the same observation again and again. Every other action
earns nothing and leads to something never seen before. The count bonus is worth more than the reward, so an agent that only
counts looks at new things for ever.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from leco.learning.state import Batch, Networks, TrainingState, init
from leco.learning.update import update
from leco.methods.table import find_method
from leco.models.intrinsic import build_hash_module
from leco.models.kinds.minigrid import MiniGridPolicy
from leco.models.kinds.table import MINIGRID
from support.training_case import paper_config

T, B, A = 8, 16, 3
REWARD = 0.3
SETTINGS = paper_config(
    gamma=0.5, alpha=1.0, lambda_=0.5, entropy_cost=0.01, policy_learning_rate=1e-3, intrinsic_learning_rate=1e-3
)


def play(policy: MiniGridPolicy, state: TrainingState, room: Tensor, generator: torch.Generator) -> Batch:
    """One episode of T actions in each of B rooms, by the policy as it is."""
    observation_1BO = room.expand(1, B, 7, 7, 3)
    start_TB = torch.zeros(T + 1, B, dtype=torch.bool)
    start_TB[0] = start_TB[T] = True
    first = core = policy.initial_state(B)
    previous_1B, reward_1B = torch.full((1, B), -1), torch.zeros(1, B)
    actions, rewards, logits, counts = [], [], [], []
    stays_B = torch.ones(B, dtype=torch.int64)  # the first observation was counted
    for t in range(T):
        arguments = (observation_1BO, start_TB[t : t + 1], previous_1B, reward_1B, core)
        output = functional_call(policy, state.policy, arguments)
        action_B = torch.multinomial(output.logits_TBA[0].softmax(-1), 1, generator=generator)[:, 0]
        stays_B = stays_B + (action_B == 0)
        counts.append(torch.where(action_B == 0, stays_B, 1))
        rewards.append(REWARD * (action_B == 0).float())
        actions.append(action_B)
        logits.append(output.logits_TBA[0])
        previous_1B, reward_1B, core = action_B[None], rewards[-1][None], output.state
    return Batch(
        observation_TBO=room.expand(T + 1, B, 7, 7, 3),
        start_TB=start_TB,
        action_TB=torch.stack(actions),
        reward_TB=torch.stack(rewards),
        behaviour_logits_TBA=torch.stack(logits),
        previous_action_B=torch.full((B,), -1),
        previous_reward_B=torch.zeros(B),
        core_state=first,
        count_TB=torch.stack(counts),
    )


def train(name: str, updates: int = 60) -> float:
    """How much of the possible reward the policy earns in the end, over the last 20 batches."""
    torch.manual_seed(1)
    policy = MiniGridPolicy(A)
    networks = Networks(policy, build_hash_module(MINIGRID, A))
    state, generator = init(networks), torch.Generator().manual_seed(2)
    room = torch.randint(3, (7, 7, 3), generator=generator).to(torch.uint8)
    shares = []
    with torch.no_grad():
        for _ in range(updates):
            batch = play(policy, state, room, generator)
            with torch.enable_grad():
                state, _ = update(networks, state, batch, find_method(name), SETTINGS)
            shares.append(batch.reward_TB.mean().item() / REWARD)
    return sum(shares[-20:]) / 20


def test_the_modulator_suppresses_the_distractor_and_counting_alone_does_not() -> None:
    assert train("vq-only") < 0.2, "the distractor is worth more than the reward"
    assert train("leco") > 0.8
