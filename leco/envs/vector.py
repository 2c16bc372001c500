"""The interface of all environments: many copies of one task, stepped together. Numpy only.

E     environments
F     episodes that ended in this step
O...  shape of one observation
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence


class Steps(NamedTuple):
    """What one action in each environment led to.

    observation_EO          uint8    [E, O...]  what the agent sees next; where an episode ended, the first observation of
                                                the next one
    reward_E                float32  [E]        the task's own reward
    done_E                  bool     [E]        the episode is over: solved, lost or out of time, which are ends alike
    success_E               bool     [E]        the task calls the episode that ended solved; false elsewhere
    terminal_observation_FO uint8    [F, O...]  the observation in which each episode really ended, in the order of the
                                                environments
    """

    observation_EO: npt.NDArray[np.uint8]
    reward_E: npt.NDArray[np.float32]
    done_E: npt.NDArray[np.bool_]
    success_E: npt.NDArray[np.bool_]
    terminal_observation_FO: npt.NDArray[np.uint8]


class VectorEnv(Protocol):
    """E environments of one task. An episode that ends is followed by the next one at once.

    Episode k of environment e depends on (seed, e, k) and its actions alone, not on what was played before, unless its family
    is not `reproducible`: then only the level does. Arrays that are returned belong to the caller: later steps never write into
    them.
    """

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """O..., the shape of one observation."""

    @property
    def num_actions(self) -> int:
        """How many actions the task has; they are 0, 1, 2, ..."""

    @property
    def num_envs(self) -> int:
        """E, how many environments there are."""

    def reset(self, seed: int | None = None) -> npt.NDArray[np.uint8]:
        """Starts every environment at its episode 0.

        Args:
            seed: replaces the seed that the environments were made with; without it, the same episodes come again.

        Returns:
            The first observations: uint8 [E, O...].
        """

    def step(self, action_E: npt.ArrayLike) -> Steps:
        """Takes one action in each environment.

        Args:
            action_E: integers [E] from 0 to `num_actions` - 1.

        Raises:
            ValueError: the actions have another shape, are no integers or out of range; nothing has been stepped.
            RuntimeError: `reset` has never been called.
        """

    def close(self) -> None:
        """Lets go of everything; the environments cannot be used any more."""


class FixedLengthEnv(VectorEnv, Protocol):
    """Environments whose episodes are all equally long, so that they would end in the same step, again and again."""

    def reset(self, seed: int | None = None, *, first_lengths: Sequence[int] | None = None) -> npt.NDArray[np.uint8]:
        """Starts every environment at its episode 0.

        Args:
            seed: As in `VectorEnv.reset`.
            first_lengths: After so many actions these first episodes are cut, as dropped ones; see `spread_lengths`.
        """


def spread_lengths(num_envs: int, max_steps: int, actor: int) -> list[int]:
    """Of the first episode of each environment, so that the ends of all later ones are spread evenly, also among actors.

    Actors take the places between those of the first one in the order of van der Corput: 1, 1/2, 3/4, 1/4, ... of a place.

    Args:
        num_envs: Environments of this actor.
        max_steps: Actions of an episode.
        actor: Its index, of 32 bits.
    """
    place = 1 - int(f"{actor:032b}"[::-1], 2) / 2**32
    return [max(round(max_steps * (e + place) / num_envs), 1) for e in range(num_envs)]


def dropped_now(env: VectorEnv) -> npt.NDArray[np.bool_]:
    """bool [E], whether the episode that ended in the last step was given up: its engine failed, or it was cut to spread ends."""
    dropped_E: npt.NDArray[np.bool_] = getattr(env, "dropped_E", np.zeros(env.num_envs, np.bool_))
    return dropped_E


def truncated_now(env: VectorEnv) -> npt.NDArray[np.bool_]:
    """bool [E], whether an environment says that a limit outside the task ended the episode that ended in the last step.

    Where all episodes have the same limit, environments need not say it: the learner goes by their length.
    """
    truncated_E: npt.NDArray[np.bool_] = getattr(env, "truncated_E", np.zeros(env.num_envs, np.bool_))
    return truncated_E


def episode_seed(seed: int, environment: int, episode: int) -> int:
    """The seed of one episode: 64 bits that depend on the three numbers alone."""
    sequence = np.random.SeedSequence(seed, spawn_key=(environment, episode))
    return int(sequence.generate_state(1, np.uint64)[0])


def checked_seed(seed: int) -> int:
    """The seed, if it is one."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"a seed must be an integer of at least 0, not {seed!r}")
    return int(seed)


def checked_num_envs(num_envs: int) -> int:
    """The number of environments, if it is one."""
    if num_envs < 1:
        raise ValueError(f"there must be at least 1 environment, not {num_envs}")
    return num_envs


def checked_actions(action_E: npt.ArrayLike, num_envs: int, num_actions: int) -> npt.NDArray[np.int64]:
    """The actions as int64 [E], or a ValueError that says what is wrong with them."""
    array = np.asarray(action_E)
    if array.shape != (num_envs,):
        raise ValueError(f"actions have shape {list(array.shape)}, expected [{num_envs}], one for each environment")
    if array.dtype.kind not in "iu":
        raise ValueError(f"actions must be integers, not {array.dtype}")
    # Seen as unsigned numbers, negative ones are too large as well: one comparison finds both.
    if (array.astype(np.uint64) >= num_actions).any():
        e = int(np.argmax((array < 0) | (array >= num_actions)))
        raise ValueError(f"action {array[e]} of environment {e} is not one of 0 to {num_actions - 1}")
    return array.astype(np.int64)
