"""The distinct codes of a request, found for all its batches at once.

Observations repeat: in a MiniGrid batch four of five are repeats. So a store is asked only about distinct codes, and the count of
each single code follows: visits before the batch + occurrences in the batch so far.

Shapes: N codes in the request, D of them distinct within their batch; a code is W words of 8 bytes.
"""

from __future__ import annotations

import secrets
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

WORD = 8  # bytes
MOST = np.uint64(2**32 - 1)  # where counts stay
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(29)
_KEY = np.uint64(secrets.randbits(64))  # of this process, so that nobody can choose codes whose hashes collide


class Distinct:
    """The distinct codes of each batch, and from what had been seen of them before the count of every code.

    Distinct codes are in order of first appearance, batch after batch. That order is part of what is kept in Redis: it must
    not depend on anything but the codes.

    Args:
        width: Bytes in a code.
        batches: The packed codes of each batch.

    Attributes:
        codes: [D], the distinct codes, as `bytes` of that width.
        spans: For each batch, which of `codes` are its own.
        times: [D], how often each occurs in its batch.
    """

    def __init__(self, width: int, batches: Sequence[bytes]) -> None:
        sizes = [len(batch) // width for batch in batches]
        packed = b"".join(batches)
        n = len(packed) // width
        self._words_WN = _words(packed, width)
        self._hash_N = hashed(self._words_WN)
        batch_N = np.repeat(np.arange(len(batches), dtype=np.uint64), sizes)
        # G is D in another order, that of hashes: groups of equal codes of a batch, each by position.
        self._order_N, begins_N = _grouped(self._words_WN, self._hash_N, batch_N)
        self._start_G = np.flatnonzero(begins_N)
        self._times_G = np.diff(self._start_G, append=n)
        first_G = self._order_N.take(self._start_G)
        first_N = np.zeros(n, np.bool_)
        first_N[first_G] = True
        self._first_D = np.flatnonzero(first_N)
        self._place_G = (np.cumsum(first_N) - 1).take(first_G)
        self.codes: NDArray[Any] = np.frombuffer(packed, f"V{width}")[self._first_D]
        self.times = np.empty(len(first_G), np.uint64)
        self.times[self._place_G] = self._times_G
        ends = np.searchsorted(self._first_D, list(accumulate(sizes))).tolist()
        self.spans = [slice(*each) for each in pairwise([0, *ends])]

    @cached_property
    def words_WD(self) -> NDArray[np.uint64]:  # noqa: N802  # axes
        """The distinct codes as words, [W, D]."""
        return np.stack([word_N.take(self._first_D) for word_N in self._words_WN])

    @cached_property
    def hash_D(self) -> NDArray[np.uint64]:  # noqa: N802  # axes
        """Their hashes in this process, [D]."""
        return self._hash_N.take(self._first_D)

    def counts(self, before_D: NDArray[np.uint64]) -> bytes:
        """The count of each code of the request at its moment, packed, by how often its distinct codes had been seen before.

        One that is too large for 32 bits stays at the largest, and does not begin anew.
        """
        # Within a group: before + 1, before + 2, ... The difference may be less than 0; the sum is right again.
        from_G = before_D.take(self._place_G) - self._start_G.view(np.uint64)
        grouped_N = np.repeat(from_G, self._times_G)
        grouped_N += np.arange(1, len(grouped_N) + 1, dtype=np.uint64)
        count_N = np.empty(len(grouped_N), "<u4")
        count_N[self._order_N] = np.minimum(grouped_N, MOST, out=grouped_N)
        return count_N.tobytes()


def _words(packed: bytes, width: int) -> NDArray[np.uint64]:
    """The codes as words, [W, N]: the last one ends with the code and may overlap the one before it."""
    n = len(packed) // width
    if width < WORD:
        padded = np.zeros((n, WORD), np.uint8)
        padded[:, :width] = np.frombuffer(packed, np.uint8).reshape(n, width)
        return padded.view(np.uint64).T
    begins = [*range(0, width - WORD, WORD), width - WORD]
    words_WN = np.empty((len(begins), n), np.uint64)
    for word_N, begin in zip(words_WN, begins if n else (), strict=False):
        word_N[:] = np.ndarray(n, np.uint64, packed, begin, width)
    return words_WN


def hashed(words_WN: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Equal for equal codes, in this process alone, [N]."""
    hash_N = np.full(words_WN.shape[1], _KEY)
    for word_N in words_WN:
        hash_N ^= word_N
        hash_N *= _MIX
        hash_N ^= hash_N >> _FOLD
    hash_N *= _MIX
    return hash_N


def _grouped(
    words_WN: NDArray[np.uint64], hash_N: NDArray[np.uint64], batch_N: NDArray[np.uint64]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """An order in which equal codes of a batch stand together, by position; and where in it another code begins.

    Sorting hashes, with the position in their low bits, is many times faster than sorting codes. If two codes ever collide,
    the codes themselves are sorted.
    """
    n = len(batch_N)
    low = np.uint64((1 << max(n - 1, 1).bit_length()) - 1)
    keys_N = hash_N ^ batch_N
    keys_N *= _MIX
    keys_N &= ~low
    keys_N |= np.arange(n, dtype=np.uint64)
    keys_N.sort()
    order_N = (keys_N & low).view(np.intp)
    begins_N = _differs(words_WN, batch_N, order_N)
    keys_N |= low
    if np.array_equal(begins_N[1:], keys_N[1:] != keys_N[:-1]):
        return order_N, begins_N
    order_N = np.lexsort((np.arange(n), *words_WN, batch_N))
    return order_N, _differs(words_WN, batch_N, order_N)


def _differs(words_WN: NDArray[np.uint64], batch_N: NDArray[np.uint64], order_N: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each element, in that order, is another code than the one before it, or of another batch."""
    differs_N = np.zeros(len(order_N), np.bool_)
    differs_N[:1] = True
    for word_N in (batch_N, *words_WN):
        sorted_N = word_N.take(order_N)
        differs_N[1:] |= sorted_N[1:] != sorted_N[:-1]
    return differs_N
