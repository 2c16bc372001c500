"""Unrolls, cut where episodes start, so that an LSTM that cannot begin anew runs them.

The pieces do not depend on each other: those of about one length are the rows of one call.

Axes: T time, B batch, N = T x B, S steps of a call, R its rows, P pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

_SHORTEST = 4  # steps of a call
_CALL = 256  # steps of rows that cost about what a call does, at a width of 64
_ROW_STEP = 4  # rows of a call are a multiple: CPU libraries keep something for every shape that they have met


class Call(NamedTuple):
    """Episodes, or what an unroll has of them, as rows of one call of PyTorch's LSTM.

    source_SR  which of the N steps each one is; N where a row has none
    column_R   the unroll that it is from
    first_R    whether it is the first of its unroll, and so goes on from the state; the others begin with zeros
    """

    source_SR: Tensor
    column_R: Tensor
    first_R: Tensor


class Cuts(NamedTuple):
    """Unrolls, cut where episodes start.

    calls    that run them; none if no episode starts after the first step
    place_N  of each step, among all steps of all calls
    last_B   of each unroll's last piece, among all rows of all calls
    """

    calls: tuple[Call, ...]
    place_N: Tensor
    last_B: Tensor


def cut_unrolls(start_TB: Tensor) -> Cuts:
    """Cuts unrolls where episodes start.

    The first piece of an unroll is at the beginning of its row, since it goes on from a state. All others are at the end, so that
    the state after the last piece is that after its row.
    """
    steps, batch = start_TB.shape
    start_BT = start_TB.t().cpu().numpy().copy()
    start_BT[:, 0] = False
    none = torch.empty(0, dtype=torch.int64)
    if not start_BT.any():
        return Cuts((), none, none)
    start_BT[:, 0] = True
    begin_P = np.flatnonzero(start_BT)  # of each piece, with the steps of an unroll one after the other
    length_P = np.diff(begin_P, append=steps * batch)
    column_P, begin_P = np.divmod(begin_P, steps)
    size_P = _sizes(length_P, steps)
    place_TB, last_B = np.empty((steps, batch), np.int64), np.empty(batch, np.int64)
    calls, first_step, first_row = [], 0, 0
    for size in np.unique(size_P):
        which = np.flatnonzero(size_P == size)
        rows = -(-len(which) // _ROW_STEP) * _ROW_STEP
        column_R, begin_R, length_R = column_P[which], begin_P[which], length_P[which]
        time_SR = np.arange(size)[:, None] - np.where(begin_R == 0, 0, size - length_R)
        step_S, row_R = np.nonzero((time_SR >= 0) & (time_SR < length_R))
        time, column = begin_R[row_R] + time_SR[step_S, row_R], column_R[row_R]
        source_SR = np.full((size, rows), steps * batch)
        source_SR[step_S, row_R] = time * batch + column
        place_TB[time, column] = first_step + step_S * rows + row_R
        ends_R = begin_R + length_R == steps
        last_B[column_R[ends_R]] = first_row + np.flatnonzero(ends_R)
        more = (0, rows - len(which))
        calls.append(_on(start_TB.device, source_SR, np.pad(column_R, more), np.pad(begin_R == 0, more)))
        first_step, first_row = first_step + size * rows, first_row + rows
    return Cuts(tuple(calls), *(torch.from_numpy(each).to(start_TB.device) for each in (place_TB.ravel(), last_B)))


def _sizes(length_P: npt.NDArray[np.int64], steps: int) -> npt.NDArray[np.int64]:
    """How many steps the call has in which each piece is: T, a half, a quarter, and so on, where that saves enough of them."""
    size_P, half = np.full(len(length_P), steps), steps
    while half > _SHORTEST:
        half = -(-half // 2)
        short_P = length_P <= half
        if (size_P - half)[short_P].sum() > _CALL:
            size_P[short_P] = half
    return size_P


def _on(device: torch.device, *arrays: npt.NDArray[np.generic]) -> Call:
    return Call(*(torch.from_numpy(each).to(device) for each in arrays))
