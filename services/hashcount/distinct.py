"""The distinct codes of a request, found for all its batches at once.

Observations repeat: in a MiniGrid batch four of five are repeats. So a store is asked only about distinct codes, and the count of
each single code follows: visits before the batch + occurrences in the batch so far.

Shapes: N codes in the request, D of them distinct within their batch; a code is W words of 8 bytes.
"""

from __future__ import annotations

import secrets
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MOST = np.uint64(2**32 - 1)  # where counts stay
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(29)
_KEY = np.uint64(secrets.randbits(64))  # of this process, so that nobody can choose codes whose hashes collide


class Distinct:
    """Where each code of a request is among the distinct codes of its batch.

    Distinct codes are in order of first appearance, batch after batch. That order is part of what is kept in Redis: it must
    not depend on anything but the codes.

    Args:
        width: Bytes in a code.
        batches: The packed codes of each batch.

    Attributes:
        codes: [D], the distinct codes, as `bytes` of that width.
        words_WD: [W, D], the same as words.
        hash_D: [D], their hashes in this process.
        spans: For each batch, which of `codes` are its own.
        times: [D], how often each occurs in its batch.
        place_of: [N], the index of each code of the request in `codes`.
        occurrence: [N], which occurrence in its batch it is: 1, 2, ...
    """

    def __init__(self, width: int, batches: Sequence[bytes]) -> None:
        sizes = [len(batch) // width for batch in batches]
        codes_N = np.frombuffer(b"".join(batches), f"V{width}")
        batch_N = np.repeat(np.arange(len(batches), dtype=np.uint64), sizes)
        words_WN = _words(codes_N, width)
        hash_N = hashed(words_WN)
        order_N, begins_N = _grouped(words_WN, hash_N, batch_N)
        starts_D = np.flatnonzero(begins_N)
        first_D = order_N[starts_D]  # the position of each group's first code, since a group is in order of position
        rank_D = np.argsort(first_D)
        place_D = np.empty_like(rank_D)
        place_D[rank_D] = np.arange(len(rank_D))
        group_N = np.cumsum(begins_N) - 1
        self.place_of = np.empty(len(codes_N), np.intp)
        self.place_of[order_N] = place_D[group_N]
        self.occurrence = np.empty(len(codes_N), np.uint64)
        self.occurrence[order_N] = (np.arange(1, len(codes_N) + 1) - starts_D[group_N]).view(np.uint64)
        first_D = first_D[rank_D]
        self.codes: NDArray[Any] = codes_N[first_D]
        self.words_WD, self.hash_D = words_WN[:, first_D], hash_N[first_D]
        self.times = np.bincount(self.place_of, minlength=len(first_D)).view(np.uint64)
        numbers = np.bincount(batch_N[first_D].astype(np.intp), minlength=len(batches))
        self.spans = [slice(*ends) for ends in pairwise([0, *accumulate(numbers.tolist())])]

    def counts(self, before_D: NDArray[np.uint64]) -> bytes:
        """The count of each code of the request at its moment, packed, by how often its distinct codes had been seen before.

        One that is too large for 32 bits stays at the largest, and does not begin anew.
        """
        count_N = np.minimum(before_D[self.place_of] + self.occurrence, MOST)
        return bytes(count_N.astype("<u4").data)


def _words(codes_N: NDArray[Any], width: int) -> NDArray[np.uint64]:
    """The codes as words, filled up with zeros."""
    padded = np.zeros((len(codes_N), -(-width // 8) * 8), np.uint8)
    padded[:, :width] = codes_N.view(np.uint8).reshape(-1, width)
    return np.ascontiguousarray(padded.view(np.uint64).T)


def hashed(words_WN: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Equal for equal codes, in this process alone, [N]."""
    hash_N = np.full(words_WN.shape[1], _KEY)
    for word_N in words_WN:
        hash_N = (hash_N ^ word_N) * _MIX
        hash_N ^= hash_N >> _FOLD
    return hash_N * _MIX


def _grouped(
    words_WN: NDArray[np.uint64], hash_N: NDArray[np.uint64], batch_N: NDArray[np.uint64]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """An order in which equal codes of a batch stand together, by position; and where in it another code begins.

    Sorting hashes, with the position in their low bits, is many times faster than sorting codes. If two codes ever collide,
    the codes themselves are sorted.
    """
    n = len(batch_N)
    bits = np.uint64(max(n - 1, 1).bit_length())
    hash_N = (hash_N ^ batch_N) * _MIX
    hash_N ^= hash_N >> _FOLD
    keys_N = (hash_N >> bits << bits) | np.arange(n, dtype=np.uint64)
    keys_N.sort()
    order_N = (keys_N & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.intp)
    begins_N = _differs(words_WN, batch_N, order_N)
    hashes_N = keys_N >> bits
    if np.array_equal(begins_N[1:], hashes_N[1:] != hashes_N[:-1]):
        return order_N, begins_N
    order_N = np.lexsort((np.arange(n), *words_WN, batch_N))
    return order_N, _differs(words_WN, batch_N, order_N)


def _differs(words_WN: NDArray[np.uint64], batch_N: NDArray[np.uint64], order_N: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each element, in that order, is another code than the one before it, or of another batch."""
    differs_N = np.zeros(len(order_N), np.bool_)
    differs_N[:1] = True
    for word_N in (batch_N, *words_WN):
        sorted_N = word_N[order_N]
        differs_N[1:] |= sorted_N[1:] != sorted_N[:-1]
    return differs_N
