"""The values that flow between the parts: frozen, made of numpy arrays, and free of any transport.

Shapes use one legend:

    T     actions in an unroll
    A     number of actions of the task
    E     how many of the T actions ended an episode
    O...  shape of one observation
    C...  shape of the recurrent state of one environment

Values that hold arrays compare by identity, because "equal" has no single answer for them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class ObservationLayout:
    """What the bytes of an observation are, in this order.

    An image alone is an array of three axes; everything else is one row of bytes.

    image    height, width and channels, a byte each; None without one
    numbers  how many float32 numbers, little-endian and finite
    actions  how many bytes say, 0 or 1, which actions may be taken now, at least one of them; 0: all of them, always
    """

    image: tuple[int, int, int] | None = None
    numbers: int = 0
    actions: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """O..."""
        if self.image is not None and self.numbers == self.actions == 0:
            return self.image
        return (self.image_bytes + 4 * self.numbers + self.actions,)

    @property
    def image_bytes(self) -> int:
        """Of the image."""
        return math.prod(self.image) if self.image is not None else 0


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """An episode that ended, over its whole length, also the part before the unroll in which it ended.

    episode_return  the undiscounted sum of the task's own rewards (float32 on the wire)
    length          the number of actions, before any action repeat; at least 1
    success         whether the task calls the episode solved
    dropped         whether it was given up, because its simulator failed, or cut to spread the ends of episodes: it has no result
    truncated       whether a limit outside the task ended it, such as one of time: its value goes on
    """

    episode_return: float
    length: int
    success: bool
    dropped: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class TrajectorySpec:
    """What every trajectory of a run looks like.

    unroll_length      T
    observation_shape  O...
    action_count       A
    core_state_shape   C...
    coarse_levels      M: how many coarser codes an observation has beside its own
    reward_limit       the largest size of a reward, and of an episode's return
    numbers            how many float32 numbers an observation ends with, but for the mask; finite
    masked             whether the last A bytes of an observation say, 0 or 1, which actions may be taken
    """

    unroll_length: int
    observation_shape: tuple[int, ...]
    action_count: int
    core_state_shape: tuple[int, ...]
    coarse_levels: int = 0
    reward_limit: float = math.inf
    numbers: int = 0
    masked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpecification:
    """A run, as an actor sees it.

    run                 its name: 1 to 64 of A-Z a-z 0-9 . _ -
    task                the environment's id
    method              for example "leco"
    environments        how many one actor steps side by side
    code_width          bytes in a code, or 0 if the method counts nothing
    configuration_toml  the whole resolved configuration: what networks, hash and environments are built from
    trajectories        what every trajectory looks like
    """

    run: str
    task: str
    method: str
    environments: int
    code_width: int
    configuration_toml: str
    trajectories: TrajectorySpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One unroll of one environment: T consecutive actions and the T+1 observations around them.

    Episodes may end and begin inside it. `observation[t]` is what the policy saw when it chose `action[t]`. If
    `action[t]` ended an episode, `observation[t+1]` is the first one of the next episode, and the observation in which
    the episode really ended is a row of `terminal_observation`.

    number                1, 2, 3, ... in the order in which one incarnation of an actor made them
    parameters_version    the parameters that chose the actions and hashed the observations; at least 1
    previous_action       the action before action[0], or -1 if start[0]
    previous_reward       the reward before reward[0], or 0 if start[0] (float32 on the wire)
    observation           uint8    [T+1, O...]  the last one only bootstraps the value
    start                 bool     [T+1]        observation[t] is the first of its episode, so action[t] ended an
                                                episode exactly if start[t+1]
    terminal_observation  uint8    [E, O...]    the true last observation of each episode that ended, in order
    action                int32    [T]          0 to A-1
    reward                float32  [T]          the task's own reward for action[t]; finite, and at
                                                most the run's reward_limit in size
    behaviour_logits      float32  [T, A]       of the policy that acted, before softmax; finite
    core_state            float32  [C...]       the recurrent state before observation[0]; finite
    count                 uint32   [T]          how often the code of the observation that action[t] led to (the
                                                terminal one at an end) was seen in its episode; at least 1. None if
                                                the unroll was not counted
    coarse_count          uint32   [T, M]       the same for each of its coarser codes. None if there are none (M = 0)
    coarse_code           uint32   [T, M]       the first four bytes of each of those codes, likewise
    episodes              one for each of the E episodes that ended, in order
    traceparent           its place in a trace (docs/tracing.md); empty if it is not traced
    """

    number: int
    parameters_version: int
    previous_action: int
    previous_reward: float
    observation: npt.NDArray[np.uint8]
    start: npt.NDArray[np.bool_]
    terminal_observation: npt.NDArray[np.uint8]
    action: npt.NDArray[np.int32]
    reward: npt.NDArray[np.float32]
    behaviour_logits: npt.NDArray[np.float32]
    core_state: npt.NDArray[np.float32]
    count: npt.NDArray[np.uint32] | None
    episodes: tuple[EpisodeSummary, ...]
    coarse_count: npt.NDArray[np.uint32] | None = None
    coarse_code: npt.NDArray[np.uint32] | None = None
    traceparent: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ParameterSnapshot:
    """The parameters of all networks at one moment.

    version  1 or more; it only ever grows, also over restarts of the learner
    tensors  arrays of any shape, by name; the order of the names is part of the value
    """

    version: int
    tensors: Mapping[str, npt.NDArray[Any]]
