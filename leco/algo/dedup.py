"""The distinct observations of a batch, and how often each occurs.

Observations repeat: in a MiniGrid batch four of five are repeats. What is computed from an observation alone needs to be
computed once; a sum over the batch is then a sum over distinct observations, weighted with their multiplicities.

Shapes:

    N     observations in the batch
    U     distinct observations, with padding
    W     words of 8 bytes in an observation, filled up with zeros
    O...  shape of one observation
    X...  shape of what was computed from one observation
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# The finaliser of MurmurHash3 as (shift, multiplier); the multipliers are its constants, read as signed numbers.
_ROUNDS = ((33, -0xAE502812AA7333), (33, -0x3B314601E57A13AD), (33, 1))
_ODD = -0x61C8864680B583EB  # 2^64 over the golden ratio: its multiples are spread evenly
_LEAST_STEP = 16
_IN_CACHE = 1 << 15  # words


class Distinct(NamedTuple):
    """The distinct observations of a batch, in order of first appearance, then padding.

    observation_UO   each distinct observation once; the padding repeats the first
    multiplicity_U   how often each occurs in the batch, as float32; zero for padding
    index_N          where each observation of the batch is in `observation_UO`; never in the padding
    """

    observation_UO: Tensor
    multiplicity_U: Tensor
    index_N: Tensor


def distinct(observation_NO: Tensor) -> Distinct:
    """Finds the distinct observations of a batch; which they are is exact, not a matter of hashes.

    Args:
        observation_NO: [N, O...], uint8, at least one observation.

    Returns:
        [U, O...], [U], [N]; U is one of a few sizes (see `padded`) and never more than N.
    """
    if observation_NO.dtype != torch.uint8 or observation_NO.ndim < 2 or observation_NO.numel() == 0:
        raise ValueError(
            "observations must be uint8 of shape [N, O...] and not empty, "
            f"not {observation_NO.dtype} of shape {list(observation_NO.shape)}"
        )
    n = len(observation_NO)
    group_N, first_G = _groups(as_words(observation_NO))
    order_G = torch.argsort(first_G)
    place_G = torch.empty_like(order_G)
    place_G[order_G] = torch.arange(len(order_G), device=order_G.device)
    index_N = place_G[group_N]
    size = min(padded(len(first_G)), n)
    first_U = first_G.new_zeros(size)
    first_U[: len(first_G)] = first_G[order_G]
    return Distinct(observation_NO[first_U], torch.bincount(index_N, minlength=size).float(), index_N)


def expand(value_UX: Tensor, index_N: Tensor) -> Tensor:
    """The value of every observation of the batch, from those of the distinct ones; gradients of copies add up.

    Args:
        value_UX: [U, X...], what was computed from each distinct observation.
        index_N: [N], from `distinct`.

    Returns:
        [N, X...]
    """
    if index_N.ndim != 1 or value_UX.ndim < 1:
        raise ValueError(
            "expand takes values [U, X...] and an index [N], "
            f"not shapes {list(value_UX.shape)} and {list(index_N.shape)}"
        )
    return value_UX.index_select(0, index_N)


def subset(unique: Distinct, index_N: Tensor) -> Distinct:
    """Those distinct observations that some rows of the batch show, in the order in which `unique` has them.

    Args:
        unique: All of the batch.
        index_N: [N], of which these rows are, as in `unique.index_N`.
    """
    which_U, place_N = torch.unique(index_N, return_inverse=True)
    size = min(padded(len(which_U)), len(index_N))
    padded_U = which_U.new_full((size,), int(which_U[0]))
    padded_U[: len(which_U)] = which_U
    return Distinct(unique.observation_UO[padded_U], torch.bincount(place_N, minlength=size).float(), place_N)


def padded(count: int) -> int:
    """The size to which `count` distinct observations are padded: at most an eighth more, or 15 for few of them.

    CPU libraries keep a compiled kernel for every shape that they have met. With a size of its own for every batch, that
    takes gigabytes within minutes; here there are at most eight sizes between a power of two and the next.
    """
    step = max(_LEAST_STEP, (1 << (count - 1).bit_length()) // 16)
    return -(-count // step) * step


def as_words(observation_NO: Tensor) -> Tensor:
    """The bytes of each observation as words: [N, W], int64."""
    bytes_N = observation_NO.flatten(1)
    width = bytes_N.shape[1]
    filled_N = bytes_N.new_zeros(len(bytes_N), -(-width // 8) * 8)
    filled_N[:, :width] = bytes_N
    return filled_N.view(torch.int64)


def _groups(words_NW: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers the distinct rows, in any order: the number of each row [N], and the first row of each number [G].

    Sorting hashes is many times faster than sorting rows. If two rows ever collide, the rows themselves are sorted.
    """
    numbers_G, group_N = torch.unique(hash_words(words_NW), return_inverse=True)
    first_G = _first(group_N, len(numbers_G))
    if not torch.equal(words_NW[first_G[group_N]], words_NW):
        rows_GW, group_N = torch.unique(words_NW, dim=0, return_inverse=True)
        first_G = _first(group_N, len(rows_GW))
    return group_N, first_G


def hash_words(words_NW: Tensor, salt: int = 0) -> Tensor:
    """A 64-bit hash of each row: the sum of its words, each scrambled together with its position. [N], int64.

    Hashes of different salts are independent of each other: a position's key is scrambled with the salt.
    """
    position_W = torch.arange(words_NW.shape[1], device=words_NW.device)
    key_W = _scrambled(position_W * _ODD + salt)
    # Some rows at a time, so that what is between stays in the processor's cache: pictures have a thousand words.
    rows = max(_IN_CACHE // max(words_NW.shape[1], 1), 1)
    return torch.cat([_scrambled(part_NW + key_W).sum(1) for part_NW in torch.split(words_NW, rows)])


def _scrambled(x: Tensor) -> Tensor:
    """A bijection of 64-bit integers in which each bit of the result depends on all of x."""
    for shift, multiplier in _ROUNDS:
        # The mask makes torch's arithmetic shift a logical one, which loses no information.
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * multiplier
    return x


def _first(group_N: Tensor, groups: int) -> Tensor:
    """The position at which each group occurs first: [G]."""
    n = len(group_N)
    position_N = torch.arange(n, device=group_N.device)
    return position_N.new_full((groups,), n).scatter_reduce(0, group_N, position_N, "amin")
