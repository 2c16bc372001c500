"""Fresh episodes with a trained policy: how they went and, of the first ones, all that happened."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from leco.algo.sampling import sample_action
from leco.envs.registry import family_of, make
from leco.envs.vector import dropped_now, episode_seed
from leco.models.fused_step import make_step_fn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leco.envs.task import Task
    from leco.envs.vector import Steps, VectorEnv
    from leco.models.policy import Policy

FRESH = 1 << 40  # seeds from here on; training has others
PATIENCE = 10  # dropped episodes beyond as many as were asked for


class EvaluationError(Exception):
    """Nothing can be said about the policy."""


class Result(NamedTuple):
    """Of each episode: return, actions, solved or not. And how many more an engine's failure cut short, which are left out."""

    returns_N: np.ndarray
    lengths_N: np.ndarray
    solved_N: np.ndarray
    dropped: int = 0

    @property
    def success_rate(self) -> float:
        """The share of episodes that were solved."""
        return float(self.solved_N.mean())

    @property
    def mean_return(self) -> float:
        """The mean of the returns."""
        return float(self.returns_N.mean())


@dataclass
class Played:
    """An episode as it was played.

    level         the seed of its level
    observations  from the first to the true last one; one more than actions
    """

    level: int
    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    solved: bool = False


class Keeper:
    """Keeps the first episodes of an evaluation, as they are played.

    Args:
        limit: How many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[int, Played] = {}

    @property
    def episodes(self) -> list[Played]:
        """What was kept, in order."""
        return [self._kept[number] for number in sorted(self._kept)]

    def begin(self, number: int, level: int, observation_O: np.ndarray) -> None:
        """An episode begins, or begins again since its engine failed."""
        if number < self._limit:
            self._kept[number] = Played(level, [observation_O])

    def step(self, number: int, action: int, reward: float, observation_O: np.ndarray, *, solved: bool) -> None:
        """An action, and what it led to."""
        if number < self._limit:
            played = self._kept[number]
            played.actions.append(action)
            played.rewards.append(reward)
            played.observations.append(observation_O)
            played.solved = solved


def evaluate(
    policy: Policy, task: Task, *, episodes: int, seed: int, greedy: bool, keeper: Keeper | None = None
) -> Result:
    """Plays episodes, how many in which environment being settled before, so that short ones are not preferred.

    There is an environment for each, or as many as the family plays side by side; then the first episodes of each count, as many
    in all as were asked for. One that was dropped because its engine failed is not counted: its environment plays one more.

    Raises:
        EvaluationError: engines fail so often that it would never end, or end with the episodes that they can play.
        ValueError: the task cannot be played here.
    """
    keeper = keeper or Keeper(0)
    family = family_of(task)
    count = min(episodes, family.max_envs or episodes)
    returns_N, lengths_N = np.zeros(episodes), np.zeros(episodes, np.int64)
    solved_N, dropped = np.zeros(episodes, bool), 0
    with closing(make(task, count, FRESH + seed)) as env:
        now_E = np.arange(count)  # episode k of environment e is number k x count + e
        first_EO = env.reset()
        again = family.replayer is not None or family.paint is not None  # levels can be made again, from their seed

        def level(number: int) -> int:
            return episode_seed(FRESH + seed, number % count, number // count) if again else 0

        for e in range(count):
            keeper.begin(e, level(e), first_EO[e])
        random = torch.Generator().manual_seed(seed)
        for action_E, steps in playing(policy, env, first_EO, random, greedy=greedy):
            counted_E = now_E < episodes
            at = now_E[counted_E]
            returns_N[at] += steps.reward_E[counted_E]
            lengths_N[at] += 1
            solved_N[at] = steps.success_E[counted_E]
            _keep(keeper, now_E, action_E, steps)
            again_E = counted_E & dropped_now(env)
            returns_N[now_E[again_E]], lengths_N[now_E[again_E]] = 0, 0
            dropped += int(again_E.sum())
            now_E[steps.done_E & ~again_E] += count
            if (now_E >= episodes).all():
                break
            for e in np.flatnonzero(steps.done_E).tolist():
                keeper.begin(int(now_E[e]), level(int(now_E[e])), steps.observation_EO[e])
            if dropped > episodes + PATIENCE:
                raise EvaluationError(
                    f"engines failed in {dropped} episodes, more than the {episodes} to be played: the warnings say why"
                )
    return Result(returns_N, lengths_N, solved_N, dropped)


def _keep(keeper: Keeper, now_E: np.ndarray, action_E: np.ndarray, steps: Steps) -> None:
    last = iter(steps.terminal_observation_FO)
    for e, ended in enumerate(steps.done_E.tolist()):
        led_to_O = next(last) if ended else steps.observation_EO[e]
        reward, solved = float(steps.reward_E[e]), bool(steps.success_E[e])
        keeper.step(int(now_E[e]), int(action_E[e]), reward, led_to_O, solved=solved)


def playing(
    policy: Policy, env: VectorEnv, observation_EO: np.ndarray, random: torch.Generator, *, greedy: bool
) -> Iterator[tuple[np.ndarray, Steps]]:
    """The policy's actions and what they lead to, from first observations on, without end."""
    count = env.num_envs
    start_E, action_E, reward_E = np.ones(count, bool), np.full(count, -1), np.zeros(count, np.float32)
    with torch.inference_mode():
        step, core = make_step_fn(policy), policy.initial_state(count)
    while True:
        with torch.inference_mode():
            logits_EA, core = step(core, *map(torch.from_numpy, (observation_EO, start_E, action_E, reward_E)))
            action_E = (logits_EA.argmax(1) if greedy else sample_action(logits_EA, random)).numpy()
        steps = env.step(action_E)
        yield action_E, steps
        observation_EO, start_E = steps.observation_EO, steps.done_E
        action_E = np.where(start_E, -1, action_E)
        reward_E = np.where(start_E, np.float32(0), steps.reward_E)
