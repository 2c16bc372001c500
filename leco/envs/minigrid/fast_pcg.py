"""Random integers one at a time, the same ones as numpy's generator gives, several times faster.

MiniGrid makes a level with up to 500 calls of `Generator.integers(low, high)`. Numpy takes microseconds for each, most of it to
prepare for arrays and types that a single integer does not have, and returns numpy scalars, with which Python calculates slowly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = 64  # words of 64 bits drawn at once
_MASK = 0xFFFFFFFF


class Integers:
    """Stands in for `np.random.Generator(np.random.PCG64(seed))` where only `integers(low, high)` is asked of it.

    Every other use is an AttributeError or a TypeError, not another number.
    """

    def __init__(self, seed: int) -> None:
        self._word = _words(np.random.PCG64(seed)).__next__

    def integers(self, low: int, high: int) -> int:
        """An integer from `low` to `high` - 1, each equally likely.

        This is Lemire's method as numpy applies it to spans below 2^32: the high half of span x (32 random bits), drawn again in
        the few cases that would favour some integers. A span of one takes no random bits.
        """
        span = high - low
        if span == 1:
            return low
        if not 1 < span <= _MASK:
            raise TypeError(f"integers from {low} to below {high} are none that this stands in for")
        product = self._word() * span
        if product & _MASK < span:
            refuse = (_MASK + 1 - span) % span
            while product & _MASK < refuse:
                product = self._word() * span
        return low + (product >> 32)


def _words(bits: np.random.PCG64) -> Iterator[int]:
    """32 random bits at a time; PCG64 gives out the low half of its 64 bits first."""
    while True:
        yield from bits.random_raw(_BLOCK).astype("<u8").view("<u4").tolist()
