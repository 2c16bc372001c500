"""What there is to solve, and what plays it: the interface of the folders beside this file. Nothing here needs a simulator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from leco.types import ObservationLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

    from leco.envs.vector import VectorEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConfig:
    """How an environment that Gymnasium registers is made; and what it is, once leco has made one.

    kwargs     what its constructor is given beside its registration
    wrappers   from the innermost outwards, each as "module:Class" or "module:Class(argument=value)"; left out: those that are
               usual for such environments (docs/environments.md), which most have none of
    processes  whether every environment steps in a process of its own; auto: where that was measured to be faster
    success    what calls an episode solved: info (its last step's `is_success` or `success`), threshold (a return of at least
               the `reward_threshold` of its registration), reward (a last reward above 0), or none; left out: info or threshold,
               if it has one of them

    The rest is what leco finds, and a run folder keeps, so that the environment need not be imported where it is not played:

    family       what plays it
    image, numbers, masks   what its observations are (`leco.types.ObservationLayout`); masks: whether it says which actions may
                 be taken
    num_actions  how many actions it has
    max_steps    after so many actions an episode is truncated; 0 if nothing is known of that
    """

    kwargs: dict[str, Any] = field(default_factory=dict, hash=False)
    wrappers: tuple[str, ...] | None = None
    processes: Literal["auto", "always", "never"] = "auto"
    success: Literal["info", "threshold", "reward", "none"] | None = None
    family: str = ""
    image: tuple[int, int, int] | None = None
    numbers: int = 0
    masks: bool = False
    num_actions: int = 0
    max_steps: int = 0

    @property
    def layout(self) -> ObservationLayout:
        """What the bytes of an observation are."""
        return ObservationLayout(self.image, self.numbers, self.num_actions if self.masks else 0)


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
    max_steps      after this many actions an episode ends, solved or not; 0 if only its environments know when
    fixed_length   no episode ends before; its environments are a `FixedLengthEnv`
    scores         what random play and people score, where a score is only meaningful between the two
    solvable       whether it calls episodes solved; of the others there is only the return to look at
    reward_limit   the largest size of a reward, and of an episode's return; the learner refuses larger ones. Be generous: it is
                   there for what no honest actor sends
    reward_shaping what the learner makes of its rewards, where `training.reward_shaping` does not say
    action_names   for people; without them, actions are numbered
    parts          what the bytes of an observation are, where they are no image alone
    environment    how it is made, if Gymnasium registers it; None for a task that is known by name
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
    parts: ObservationLayout | None = None
    environment: EnvironmentConfig | None = None

    @property
    def layout(self) -> ObservationLayout:
        """What the bytes of an observation are."""
        return self.parts or ObservationLayout(cast("tuple[int, int, int]", self.observation_shape))


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
    other     the task of another id, as its environment is to be made, with all ids that the family knows: for what is not in
              `tasks`. None if the family does not play it
    task_of   the task of an id whose environment is known already (`EnvironmentConfig.family`)
    example   such an id
    reproducible   whether an episode depends on its seed and its actions alone; without it, no run is deterministic
    replayer  plays episodes of a task again, if levels can be made again from their seed
    paint     the same for pictures: a task, the seed of a level and the actions to uint8 [T + 1, height, width, RGB], or None if
              there are none
    max_envs  how many environments an evaluation plays side by side, where one is a process; None for one an episode
    draw      views of MiniGrid's cells as its tasks show them, where that is something else; its environments then have them as
              `view_EO`
    max_recorded   how many episodes of an evaluation are recorded, where they are large; None for all
    """

    title: str
    package: str
    tasks: tuple[Task, ...]
    make: Callable[[Task, int, int], VectorEnv]
    other: Callable[[str, EnvironmentConfig], tuple[Task | None, Iterable[str]]] | None = None
    task_of: Callable[[str, EnvironmentConfig], Task] | None = None
    example: str = ""
    reproducible: bool = True
    replayer: Callable[[Task], Replayer] | None = None
    paint: Callable[[Task, int, Sequence[int]], npt.NDArray[np.uint8] | None] | None = None
    draw: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]] | None = None
    max_envs: int | None = None
    max_recorded: int | None = None
