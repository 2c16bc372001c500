"""Which pictures an episode needs: one for each different moment, since an agent comes to the same place again.

T  actions of the episode    P  pictures    G  different grids    X, Y  width and height of the level
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from leco.evaluation.recording import Episode


EMPTY = 1  # MiniGrid's number of a cell with nothing in it; 0 is one that is not seen


class Moments(NamedTuple):
    """Of the T + 1 moments of an episode which of P pictures shows each, and of each picture the first moment that it shows."""

    picture_T: list[int]
    first_P: list[int]


def different_moments(episode: Episode) -> Moments:
    """Moments that look the same share a picture. Where there is no grid, none do."""
    count = len(episode.scene_T)
    numbered_T = np.where(episode.scene_T < 0, np.arange(count), -1)
    columns = (episode.scene_T, episode.x_T, episode.y_T, episode.direction_T, numbered_T)
    pictures: dict[tuple[int, ...], int] = {}
    first_P: list[int] = []
    picture_T = []
    for t, moment in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
        if moment not in pictures:
            pictures[moment] = len(first_P)
            first_P.append(t)
        picture_T.append(pictures[moment])
    return Moments(picture_T, first_P)


def first_views(episode: Episode) -> list[int]:
    """When each code was first seen, in that order."""
    first: dict[bytes, int] = {}
    for t, code in enumerate(map(bytes, episode.code_TW)):
        first.setdefault(code, t)
    return list(first.values())


def without_surroundings(episode: Episode) -> Episode:
    """The same episode in a level that ends at its outermost walls: MultiRoom's rooms fill little of their grid."""
    if not episode.grid_GXY.size:
        return episode
    there_XY = (episode.grid_GXY[..., 0] > EMPTY).any(0)
    (left, right), (top, bottom) = ((a.min(), a.max() + 1) for a in np.nonzero(there_XY))
    return episode._replace(
        grid_GXY=episode.grid_GXY[:, left:right, top:bottom],
        x_T=episode.x_T - np.int16(left),
        y_T=episode.y_T - np.int16(top),
    )
