"""Actions of any finite space as the numbers 0, 1, 2, ..., and which of them may be taken.

A     number of actions
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

MOST = 512  # more, and most would never be tried


class Actions:
    """The actions of a space, in order.

    Args:
        space: Of the actions.

    Raises:
        ValueError: there are too many, or infinitely many of them.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._sizes: tuple[int, ...]
        self._first: npt.NDArray[Any]
        if isinstance(space, spaces.Discrete):
            self._sizes, self._first = (int(space.n),), np.array([int(space.start)])
        elif isinstance(space, spaces.MultiDiscrete):
            self._sizes, self._first = tuple(int(n) for n in space.nvec.ravel()), space.start.ravel()
        elif isinstance(space, spaces.MultiBinary):
            size = int(np.prod(space.shape))
            self._sizes, self._first = (2,) * size, np.zeros(size, np.int64)
        else:
            raise ValueError(  # noqa: TRY004  # of an environment, not of a program
                f"its actions are {_kind(space)}, and leco learns to choose one of finitely many: put a wrapper around it that "
                "has a Discrete action space"
            )
        self.count = math.prod(self._sizes)
        if self.count > MOST:
            raise ValueError(
                f"it has {self.count} actions ({' x '.join(map(str, self._sizes))}), and at most {MOST} can be learned: put a "
                "wrapper around it that leaves the useful ones"
            )
        self._space = space

    def decode(self, action: int) -> Any:
        """The action of a number, as the environment takes it."""
        if isinstance(self._space, spaces.Discrete):
            return action + int(self._first[0])
        parts = np.array(np.unravel_index(action, self._sizes)) + self._first
        return parts.reshape(self._space.shape).astype(self._space.dtype)

    def mask(self, given: Any) -> npt.NDArray[np.bool_]:
        """Which actions may be taken, [A], from one bit for each, or from one for each choice of each part of an action.

        Raises:
            ValueError: it has another length, or forbids everything.
        """
        bits = np.asarray(given).astype(bool).ravel()
        if len(bits) != self.count and len(bits) == sum(self._sizes) and len(self._sizes) > 1:
            parts = np.split(bits, np.cumsum(self._sizes)[:-1])
            bits = np.logical_and.reduce(np.meshgrid(*parts, indexing="ij")).ravel()
        if len(bits) != self.count:
            raise ValueError(f"its action mask has {len(bits)} elements, expected {self.count}, one for each action")
        if not bits.any():
            raise ValueError("its action mask forbids every action: an episode in which nothing can be done must end")
        return bits


def _kind(space: spaces.Space[Any]) -> str:
    return "continuous" if isinstance(space, spaces.Box) else f"of the space {type(space).__name__}"
