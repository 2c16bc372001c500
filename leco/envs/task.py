"""What there is to solve, and what plays it: the interface of the folders beside this file. Nothing here needs a simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

    from leco.envs.vector import VectorEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What there is to solve.

    name           how people call it
    id             its id in Gymnasium, or what its simulator calls it
    family         what plays it: the name of a folder beside this file
    description    what has to be done, in a line
    observation_shape   of what its environments give
    num_actions    of what they take
    gamma          the discount that the paper trains it with
    max_steps      after this many actions an episode ends, solved or not
    fixed_length   no episode ends before; its environments are a `FixedLengthEnv`
    scores         what random play and people score, where a score is only meaningful between the two
    solvable       whether it calls episodes solved; of the others there is only the return to look at
    reward_limit   the largest size of a reward, and of an episode's return; the learner refuses larger ones. Be generous: it is
                   there for what no honest actor sends
    reward_shaping what the learner makes of its rewards, where `training.reward_shaping` does not say
    action_names   for people; without them, actions are numbered
    """

    name: str
    id: str
    family: str
    description: str
    observation_shape: tuple[int, ...]
    num_actions: int
    gamma: float
    max_steps: int
    fixed_length: bool = False
    scores: tuple[float, float] | None = None
    solvable: bool = True
    reward_limit: float = 10_000.0
    reward_shaping: Literal["none", "soft-asymmetric"] = "none"
    action_names: tuple[str, ...] = ()


class Replayer(Protocol):
    """Plays episodes again, to see what the policy does not: where the agent was, and what the level looked like."""

    def play(self, level: int, action_T: Sequence[int]) -> tuple[npt.NDArray[np.generic], ...]:
        """x_T, y_T, direction_T, scene_T and grid_GXY of the episode with these actions in the level of this seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The environments of one simulator.

    title     for people
    package   the distribution that must be installed
    tasks     those that are known by name
    make      a task, how many environments and a seed, to environments
    other     the task of another id that the simulator knows, with all such ids: for what is not in `tasks`
    example   such an id
    reproducible   whether an episode depends on its seed and its actions alone; without it, no run is deterministic
    replayer  plays episodes of a task again, if levels can be made again from their seed
    max_envs  how many environments an evaluation plays side by side, where one is a process; None for one an episode
    draw      views of MiniGrid's cells as its tasks show them, where that is something else; its environments then have them as
              `view_EO`
    max_recorded   how many episodes of an evaluation are recorded, where they are large; None for all
    """

    title: str
    package: str
    tasks: tuple[Task, ...]
    make: Callable[[Task, int, int], VectorEnv]
    other: Callable[[str], tuple[Task | None, Iterable[str]]] | None = None
    example: str = ""
    reproducible: bool = True
    replayer: Callable[[Task], Replayer] | None = None
    draw: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]] | None = None
    max_envs: int | None = None
    max_recorded: int | None = None
