"""The policy in its environments: unrolls of T actions in E environments at once.

T     actions in an unroll
E     environments
A     number of actions
O...  shape of one observation
L, H  layers and width of the policy's recurrent core
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from leco.algo.sampling import sample_action
from leco.envs.vector import dropped_now, truncated_now
from leco.models.fused_step import make_step_fn
from leco.types import EpisodeSummary

if TYPE_CHECKING:
    import numpy.typing as npt

    from leco.envs.vector import VectorEnv
    from leco.models.fused_step import Step
    from leco.models.policy import Policy


class Ending(NamedTuple):
    """An episode that ended in an unroll: in which step, its true last observation, and what became of it."""

    step: int
    observation_O: npt.NDArray[np.uint8]
    summary: EpisodeSummary


class Unroll(NamedTuple):
    """What happened in E environments, time first.

    observation_TEO   uint8 [T+1, E, O...]
    start_TE          bool [T+1, E], the observation is the first of its episode
    action_TE         int32 [T, E]
    reward_TE         float32 [T, E]
    logits_TEA        float32 [T, E, A]
    previous_action_E, previous_reward_E   before the first action; -1 and 0 at the start of an episode
    core_LCEH         float32 [L, 2, E, H], the policy's state before the first observation
    endings           of each environment, in order
    """

    observation_TEO: npt.NDArray[np.uint8]
    start_TE: npt.NDArray[np.bool_]
    action_TE: npt.NDArray[np.int32]
    reward_TE: npt.NDArray[np.float32]
    logits_TEA: npt.NDArray[np.float32]
    previous_action_E: npt.NDArray[np.int32]
    previous_reward_E: npt.NDArray[np.float32]
    core_LCEH: npt.NDArray[np.float32]
    endings: list[list[Ending]]


class RolloutWorker:
    """Plays without pause: an unroll begins where the one before ended.

    Args:
        env: The environments.
        policy: Chooses the actions; its parameters may be changed between unrolls.
        seed: Of the actions.
        observation_EO: What the environments showed when they were reset.
    """

    def __init__(self, env: VectorEnv, policy: Policy, seed: int, observation_EO: npt.NDArray[np.uint8]) -> None:
        self._env = env
        self._policy = policy
        self._random = torch.Generator()
        self.restart(seed, observation_EO)

    def restart(self, seed: int, observation_EO: npt.NDArray[np.uint8]) -> None:
        """Forgets everything; the next unroll begins with these first observations, and actions are drawn anew.

        Raises:
            ValueError: the environments show something else than bytes, which would be cut to whole numbers unseen.
        """
        if observation_EO.dtype != np.uint8:
            raise ValueError(
                f"observations are {observation_EO.dtype}, expected uint8: scale them to 0 to 255 in the environment"
            )
        self._random.manual_seed(seed)
        count = self._env.num_envs
        self._observation_EO = observation_EO
        self._start_E = np.ones(count, bool)
        self._action_E = np.full(count, -1, np.int32)
        self._reward_E = np.zeros(count, np.float32)
        self._core = self._policy.initial_state(count)
        self._return_E = np.zeros(count)
        self._length_E = np.zeros(count, np.int64)

    @torch.inference_mode()
    def play(self, steps: int) -> Unroll:
        """The next T actions in every environment."""
        count, actions = self._env.num_envs, self._env.num_actions
        unroll = Unroll(
            observation_TEO=np.empty((steps + 1, count, *self._env.observation_shape), np.uint8),
            start_TE=np.empty((steps + 1, count), bool),
            action_TE=np.empty((steps, count), np.int32),
            reward_TE=np.empty((steps, count), np.float32),
            logits_TEA=np.empty((steps, count, actions), np.float32),
            previous_action_E=self._action_E,
            previous_reward_E=self._reward_E,
            core_LCEH=self._core.numpy().copy(),
            endings=[[] for _ in range(count)],
        )
        step = make_step_fn(self._policy)
        for t in range(steps):
            unroll.observation_TEO[t], unroll.start_TE[t] = self._observation_EO, self._start_E
            unroll.logits_TEA[t], unroll.action_TE[t] = self._choose(step)
            self._step(unroll, t)
            unroll.reward_TE[t] = self._reward_of_step_E
        unroll.observation_TEO[steps], unroll.start_TE[steps] = self._observation_EO, self._start_E
        return unroll

    def _choose(self, step: Step) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        seen = (self._observation_EO, self._start_E, self._action_E, self._reward_E)
        logits_EA, self._core = step(self._core, *map(torch.from_numpy, seen))
        return logits_EA.numpy(), sample_action(logits_EA, self._random).numpy()

    def _step(self, unroll: Unroll, t: int) -> None:
        steps = self._env.step(unroll.action_TE[t])
        self._reward_of_step_E = steps.reward_E
        self._return_E += steps.reward_E
        self._length_E += 1
        dropped_E, truncated_E = dropped_now(self._env), truncated_now(self._env)
        for observation_O, e in zip(steps.terminal_observation_FO, np.flatnonzero(steps.done_E), strict=True):
            summary = EpisodeSummary(
                episode_return=float(self._return_E[e]),
                length=int(self._length_E[e]),
                success=bool(steps.success_E[e]),
                dropped=bool(dropped_E[e]),
                truncated=bool(truncated_E[e]),
            )
            unroll.endings[e].append(Ending(t, observation_O, summary))
        self._return_E[steps.done_E] = 0
        self._length_E[steps.done_E] = 0
        self._observation_EO, self._start_E = steps.observation_EO, steps.done_E
        self._action_E = np.where(steps.done_E, -1, unroll.action_TE[t]).astype(np.int32)
        self._reward_E = np.where(steps.done_E, 0, steps.reward_E).astype(np.float32)
