"""Recurrent PPO, written plainly, on EnvPool's MiniGrid with the count bonus; `time_to_solve.py` runs it.

    python -m rivals.envpool_ppo METRICS --task DoorKey-8x8 --seed 1

EnvPool's environments are compiled. One that ended shows its last observation, takes no notice of the next action, and then shows
the first observation of the next episode. That step is kept, so that the value of an episode which ran out of time can be
taken from it, but nothing is learned from its action.

T  steps of a rollout     E  environments     S  sequences     L  steps of a sequence     N  observations     A  actions
F  features and units of the recurrent core, 64
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rivals.count_bonus import CountBonus
from rivals.network import WIDTH, encoder
from rivals.successes import Successes
from torch import Tensor, nn
from torch.nn import functional

GAMMA = 0.97
REWARD_SCALE = 10.0
ACTIONS = 7
CLIP, VALUE_COST, MAX_NORM = 0.2, 0.5, 5.0


class Rollout(NamedTuple):
    """What was seen and done: [T, E] of each; the observation, and the recurrent state before it, of T + 1 steps."""

    observation: Tensor
    starts: Tensor  # an episode begins with this observation
    hidden: Tensor
    cell: Tensor
    action: Tensor
    log_pi: Tensor
    value: Tensor  # T + 1 steps
    reward: Tensor
    acted: Tensor  # the action was taken
    terminated: Tensor
    done: Tensor


class Policy(nn.Module):
    """Encoder, LSTM, and heads for logits and value."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()
        self.input, self.recurrent = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, ACTIONS + 1)
        for layer, gain in ((self.input, 1.0), (self.recurrent, 1.0), (self.head, 0.01)):
            nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(self.input.bias)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, observation_LSHWC: Tensor, starts_LS: Tensor, hidden_SF: Tensor, cell_SF: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits [L, S, A], values [L, S], and the state after the last step."""
        length, sequences = starts_LS.shape
        gates_LSG = self.input(self.encoder(observation_LSHWC.flatten(0, 1))).view(length, sequences, -1)
        output_LSF, hidden_SF, cell_SF = lstm(
            gates_LSG, 1.0 - starts_LS.float().unsqueeze(-1), hidden_SF, cell_SF, self.recurrent.weight
        )
        both = self.head(output_LSF)
        return both[..., :ACTIONS], both[..., ACTIONS], hidden_SF, cell_SF


@torch.jit.script
def lstm(
    gates_LSG: Tensor, keep_LS1: Tensor, hidden_SF: Tensor, cell_SF: Tensor, weight_GF: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The loop over time; the state is zero where an episode begins."""
    outputs: list[Tensor] = []
    for gates_SG, keep_S1 in zip(gates_LSG.unbind(0), keep_LS1.unbind(0)):  # noqa: B905  # TorchScript has no strict
        hidden_SF, cell_SF = hidden_SF * keep_S1, cell_SF * keep_S1
        i, f, g, o = torch.addmm(gates_SG, hidden_SF, weight_GF.t()).chunk(4, 1)
        cell_SF = torch.sigmoid(f) * cell_SF + torch.sigmoid(i) * torch.tanh(g)
        hidden_SF = torch.sigmoid(o) * torch.tanh(cell_SF)
        outputs.append(hidden_SF)
    return torch.stack(outputs), hidden_SF, cell_SF


class Player:
    """Plays E environments of EnvPool."""

    def __init__(self, given: argparse.Namespace, successes: Successes) -> None:
        import envpool  # type: ignore[import-not-found]  # noqa: PLC0415  # only the rivals' environment has it

        self._env: Any = envpool.make_gymnasium(
            f"MiniGrid-{given.task}-v0", num_envs=given.num_envs, num_threads=given.env_threads, seed=given.seed
        )
        self._bonus = CountBonus(given.num_envs, given.alpha) if given.count == "exact" else None
        if self._bonus is None:
            from leco.rewards import EpisodicCount  # noqa: PLC0415  # otherwise nothing of leco is needed

            self._env = EpisodicCount(self._env, key="image", alpha=given.alpha)
        self._successes = successes
        self._steps, self._num_envs = given.steps, given.num_envs
        self._observation_EHWC = self._env.reset()[0]["image"].copy()
        self._starts_E = np.ones(given.num_envs, bool)
        self._ended_E = np.zeros(given.num_envs, bool)
        self._state = (torch.zeros(given.num_envs, WIDTH), torch.zeros(given.num_envs, WIDTH))
        if self._bonus is not None:
            for e, observation in enumerate(self._observation_EHWC):
                self._bonus.begin(e, observation)

    @torch.no_grad()
    def play(self, policy: Policy) -> Rollout:
        """T steps."""
        rows: list[tuple[Any, ...]] = []
        for _ in range(self._steps):
            observation, starts = torch.from_numpy(self._observation_EHWC), torch.from_numpy(self._starts_E)
            hidden, cell = self._state
            logits, value, *after = policy(observation.unsqueeze(0), starts.unsqueeze(0), hidden, cell)
            logits_EA = functional.log_softmax(logits[0], -1)
            gumbel_EA = -torch.empty_like(logits_EA).exponential_().log()
            action_E = (logits_EA + gumbel_EA).argmax(-1)
            log_pi_E = logits_EA.gather(1, action_E.unsqueeze(1)).squeeze(1)
            reward, terminated, done, acted = self._step(action_E.numpy())
            rows.append(
                (observation, starts, hidden, cell, action_E, log_pi_E, value[0], reward, acted, terminated, done)
            )
            self._state = (after[0], after[1])
        last = torch.from_numpy(self._observation_EHWC).unsqueeze(0)
        _, value, *_ = policy(last, torch.from_numpy(self._starts_E).unsqueeze(0), *self._state)
        columns = [torch.stack([torch.as_tensor(each) for each in column]) for column in zip(*rows, strict=True)]
        columns[6] = torch.cat([columns[6], value])
        return Rollout(*columns)

    def _step(self, action_E: np.ndarray) -> tuple[np.ndarray, ...]:
        """Rewards with the bonus; terminated, done, and whether the action was taken. Notes the observation."""
        shown, reward_E, terminated_E, truncated_E, info = self._env.step(action_E)
        observation_EHWC = shown["image"].copy()
        acted_E, done_E = ~self._ended_E, terminated_E | truncated_E
        for solved in info.get("extrinsic_reward", reward_E)[done_E] > 0:
            self._successes.ended(solved=bool(solved))
        bonus_E = np.zeros(self._num_envs, np.float32)  # leco's own count has added it
        if self._bonus is not None:
            for e, observation in enumerate(observation_EHWC):
                if acted_E[e]:
                    bonus_E[e] = self._bonus.add(e, observation)
                else:
                    self._bonus.begin(e, observation)
        self._observation_EHWC, self._starts_E, self._ended_E = observation_EHWC, ~acted_E, done_E
        return REWARD_SCALE * (reward_E + bonus_E), terminated_E, done_E, acted_E


def advantages(rollout: Rollout, gae_lambda: float) -> Tensor:
    """Generalised advantage estimates, [T, E]."""
    estimate_TE, later_E = torch.zeros_like(rollout.reward), torch.zeros_like(rollout.reward[0])
    for t in reversed(range(len(rollout.reward))):
        next_E = rollout.value[t + 1] * ~rollout.terminated[t]
        delta_E = rollout.reward[t] + GAMMA * next_E - rollout.value[t]
        later_E = delta_E + GAMMA * gae_lambda * later_E * ~rollout.done[t]
        estimate_TE[t] = later_E
    return estimate_TE


def update(policy: Policy, adam: torch.optim.Adam, rollout: Rollout, given: argparse.Namespace) -> None:
    """Epochs of minibatches of sequences."""
    advantage_TE = advantages(rollout, given.gae_lambda)
    target_TE = advantage_TE + rollout.value[:-1]
    valid = advantage_TE[rollout.acted]
    advantage_TE = (advantage_TE - valid.mean()) / (valid.std() + 1e-8)

    def sequences(x: Tensor) -> Tensor:  # [T, E, ...] -> [L, S, ...]
        split = x.view(-1, given.sequence, *x.shape[1:]).transpose(0, 1)
        return split.reshape(given.sequence, -1, *x.shape[2:])

    parts = [sequences(each) for each in (*rollout[:6], rollout.acted.float(), advantage_TE, target_TE)]
    for _ in range(given.epochs):
        for chosen_S in torch.randperm(parts[0].shape[1]).chunk(given.minibatches):
            observation, starts, hidden, cell, action, old, acted, advantage, target = (
                each[:, chosen_S] for each in parts
            )
            logits, value, *_ = policy(observation, starts, hidden[0], cell[0])
            log_pi = functional.log_softmax(logits, -1)
            ratio = (log_pi.gather(-1, action.unsqueeze(-1)).squeeze(-1) - old).exp()
            entropy = -(log_pi.exp() * log_pi).sum(-1)
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            each = -surrogate + VALUE_COST * (value - target).square() - given.entropy * entropy
            loss = (each * acted).sum() / acted.sum()
            adam.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), MAX_NORM)
            adam.step()


def main() -> None:
    """Trains until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", type=Path)
    parser.add_argument("--task", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--sequence", type=int, default=32, help="steps that gradients go back over")
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--entropy", type=float, default=0.02)
    parser.add_argument("--gae-lambda", type=float, default=0.9)
    parser.add_argument("--alpha", type=float, default=0.005)
    parser.add_argument(
        "--count", choices=("exact", "leco"), default="leco", help="of exact observations, or leco's own"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--env-threads", type=int, default=1, help="of EnvPool")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    successes = Successes(given.metrics)
    policy, player = Policy(), Player(given, successes)
    adam = torch.optim.Adam(policy.parameters(), given.learning_rate, eps=1e-5)
    for number in range(1, 10**9):
        rollout = player.play(policy)
        successes.write(number * given.num_envs * given.steps)
        update(policy, adam, rollout, given)


if __name__ == "__main__":
    main()
