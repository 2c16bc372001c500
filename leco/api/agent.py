"""A trained policy that acts, in anybody's loop: `leco.load`, `leco.evaluate`.

N     environments side by side        O...  shape of one observation        A  number of actions
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
import torch

from leco.algo.sampling import sample_action
from leco.config.experiment import task_of
from leco.evaluation.rollout import evaluate as play
from leco.evaluation.trained import trained_state
from leco.evaluation.zoo import find_run
from leco.models.fused_step import make_step_fn

if TYPE_CHECKING:
    from os import PathLike

    import numpy.typing as npt

    from leco.evaluation.rollout import Result
    from leco.evaluation.trained import Trained


class Agent:
    """A policy with its memory: it remembers what it saw since `reset`.

    Args:
        trained: What was trained.
        seed: Of the actions that are drawn.
        greedy: Whether it takes the most probable action, instead of drawing one as in training.

    Attributes:
        trained: The same.
        task: What it was trained on.
        greedy: The same.
    """

    def __init__(self, trained: Trained, *, seed: int = 0, greedy: bool = False) -> None:
        self.trained, self.task, self.greedy = trained, task_of(trained.experiment), greedy
        self._random = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            self._step = make_step_fn(trained.policy)
        self._core: torch.Tensor | None = None
        self._start_N = np.ones(0, bool)
        self._action_N = np.zeros(0, np.int64)

    def reset(self, done: npt.ArrayLike | None = None) -> None:
        """Forgets what it saw: a new episode begins.

        Args:
            done: bool [N]: of several environments, in which of them an episode has ended; all, if not given.
        """
        if done is None:
            self._core = None
        elif self._core is not None:  # otherwise nothing was seen yet
            done_N = np.asarray(done, bool)
            if done_N.shape != self._start_N.shape:
                raise ValueError(f"done has shape {list(done_N.shape)}, expected {list(self._start_N.shape)}")
            self._start_N = self._start_N | done_N

    @overload
    def act(self, observation: npt.NDArray[np.uint8], reward: float = ...) -> int: ...
    @overload
    def act(self, observation: npt.NDArray[np.uint8], reward: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]: ...

    def act(self, observation: npt.NDArray[np.uint8], reward: npt.ArrayLike = 0.0) -> int | npt.NDArray[np.int64]:
        """The next action.

        Args:
            observation: uint8 [O...] of one environment, or [N, O...] of several.
            reward: What the action before earned; policies on pixels look at it, those on MiniGrid do not. [N] of several.

        Returns:
            A number from 0 to A - 1; int64 [N] of several environments.
        """
        observation_NO = np.asarray(observation)
        shape = self.task.observation_shape
        alone = observation_NO.shape == shape
        if not alone and observation_NO.shape[1:] != shape:
            raise ValueError(
                f"the observation has shape {list(observation_NO.shape)}, expected {list(shape)}, or a row of such"
            )
        observation_NO = observation_NO[None] if alone else observation_NO
        count = len(observation_NO)
        if self._core is None:
            self._core = self.trained.policy.initial_state(count)
            self._start_N = np.ones(count, bool)
            self._action_N = np.full(count, -1)
        elif count != len(self._start_N):
            raise ValueError(
                f"there are {count} observations, and were {len(self._start_N)}: call reset() between them"
            )
        reward_N = np.broadcast_to(np.asarray(reward, np.float32), count)
        first_N = self._start_N
        given = (
            observation_NO.astype(np.uint8, copy=False),
            first_N,
            np.where(first_N, -1, self._action_N),
            np.where(first_N, np.float32(0), reward_N),
        )
        with torch.inference_mode():
            logits_NA, self._core = self._step(self._core, *(torch.from_numpy(np.ascontiguousarray(x)) for x in given))
            drawn_N = logits_NA.argmax(1) if self.greedy else sample_action(logits_NA, self._random)
        self._action_N, self._start_N = drawn_N.numpy(), np.zeros(count, bool)
        return int(self._action_N[0]) if alone else self._action_N.copy()


def load(run: str | PathLike[str], checkpoint: str = "newest", *, seed: int = 0, greedy: bool = False) -> Agent:
    """What a run has learned, or an entry of the zoo, ready to act.

    Args:
        run: A run, its folder, or an entry such as zoo/KeyCorridorS4R3, which is found wherever leco is installed.
        checkpoint: newest, best, a share of the training such as 50%, or a file.
        seed: Of the actions that are drawn.
        greedy: Whether to take the most probable action instead.

    Raises:
        ConfigError: there is no such run or checkpoint.
        SavedStateError: the checkpoint cannot be used.

    Examples:
        >>> agent = load("zoo/MultiRoom-N2-S4", seed=1)
        >>> env = leco.make_env("MultiRoom-N2-S4", num_envs=1, seed=3)
        >>> observation, steps = env.reset()[0], 0
        >>> agent.reset()
        >>> while True:
        ...     step = env.step([agent.act(observation)])
        ...     observation, steps = step.observation_EO[0], steps + 1
        ...     if step.done_E[0]:
        ...         break
        >>> bool(step.success_E[0])
        True
    """
    return Agent(trained_state(find_run(Path(run)), checkpoint), seed=seed, greedy=greedy)


def evaluate(
    run: str | PathLike[str] | Agent, episodes: int = 100, *, seed: int = 0, greedy: bool | None = None
) -> Result:
    """Plays fresh episodes, on levels that training never saw.

    Args:
        run: A run, its folder, an entry of the zoo, or an agent.
        episodes: How many.
        seed: Of levels and actions.
        greedy: Whether to take the most probable action; as the agent does, if not given.

    Examples:
        >>> evaluate("zoo/MultiRoom-N2-S4", episodes=20).success_rate
        1.0
    """
    agent = run if isinstance(run, Agent) else load(run)
    greedy = agent.greedy if greedy is None else greedy
    return play(agent.trained.policy, agent.task, episodes=episodes, seed=seed, greedy=greedy)
