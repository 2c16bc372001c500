"""What an episode looks like: levels and views, drawn by MiniGrid itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from minigrid.core.constants import DIR_TO_VEC, OBJECT_TO_IDX
from minigrid.core.grid import Grid

from leco.models.kinds.table import find_kind

if TYPE_CHECKING:
    from leco.evaluation.recording import Episode
    from leco.types import ObservationLayout

    Picture = npt.NDArray[np.uint8]  # [height, width, RGB]

NOWHERE = (-1, -1)
MOST_BARS, BAR = 64, (31, 119, 180)
_UP = 3


def draw_moment(episode: Episode, t: int, tile: int) -> Picture:
    """The level at time t with the agent in it, and what it sees lit up; without a grid, what its environment draws, or it sees.

    Args:
        episode: What was played.
        t: From 0, before the first action, on.
        tile: Pixels of a cell.
    """
    first, grid = episode.grid(0), episode.grid(t)
    if first is None or grid is None:
        if episode.picture_T is not None:
            drawn: Picture = episode.picture_T[t]
            return drawn
        return draw_observation(episode.observation_TO[t], tile, episode.layout)
    place = int(episode.x_T[t]), int(episode.y_T[t])
    lit = _lit(grid.shape[:2], episode.observation_TO[t], place, int(episode.direction_T[t]))
    part = window(first)
    inside = place[0] - part[0].start, place[1] - part[1].start
    return _drawn(grid[part], tile, inside, int(episode.direction_T[t]), lit[part])


def draw_level(grid_XY: npt.NDArray[np.uint8], tile: int) -> Picture:
    """The part of a level that is not empty, without the agent."""
    return _drawn(grid_XY[window(grid_XY)], tile, NOWHERE, None, None)


def window(grid_XY: npt.NDArray[np.uint8]) -> tuple[slice, slice]:
    """The columns and rows of a level that are not empty: MultiRoom's rooms take a small part of theirs."""
    filled = grid_XY[..., 0] != OBJECT_TO_IDX["empty"]
    if not filled.any():
        return slice(0, grid_XY.shape[0]), slice(0, grid_XY.shape[1])
    columns, rows = np.flatnonzero(filled.any(1)), np.flatnonzero(filled.any(0))
    return slice(int(columns[0]), int(columns[-1]) + 1), slice(int(rows[0]), int(rows[-1]) + 1)


def draw_observation(
    observation_O: npt.NDArray[np.uint8], tile: int, layout: ObservationLayout | None = None
) -> Picture:
    """What the agent sees: a view of MiniGrid from its back, a picture in up to three colours, or numbers as bars.

    Args:
        observation_O: The bytes of an observation.
        tile: Pixels of a cell, or of a bar's width.
        layout: What the bytes are; an image, if it is not given.
    """
    if layout is not None and layout.image is None and layout.numbers:
        return _bars(observation_O[: 4 * layout.numbers].view("<f4"), tile)
    if layout is not None and layout.image is not None:
        observation_O = observation_O.ravel()[: layout.image_bytes].reshape(layout.image)
    if not find_kind(observation_O.shape).has_cells:
        channels = observation_O.shape[-1]
        return observation_O[..., -3:] if channels % 3 == 0 else observation_O[..., -1:].repeat(3, -1)
    size = observation_O.shape[0]
    seen = observation_O[..., 0] != OBJECT_TO_IDX["unseen"]
    return _drawn(observation_O, tile, (size // 2, size - 1), _UP, seen)


def _bars(number_F: npt.NDArray[np.float32], tile: int) -> Picture:
    """A bar for each number, upwards from the middle for 1 and downwards for -1."""
    middle = MOST_BARS // 2 * tile // 4
    picture = np.full((2 * middle + 1, min(len(number_F), MOST_BARS) * tile, 3), 255, np.uint8)
    picture[middle] = 128
    for index, number in enumerate(number_F[:MOST_BARS]):
        length = round(middle * float(np.clip(number, -1, 1)))
        rows = slice(middle - max(length, 0), middle - min(length, 0) + 1)
        picture[rows, index * tile : (index + 1) * tile - 1] = BAR
    return picture


def _drawn(
    cells_XY: npt.NDArray[np.uint8],
    tile: int,
    place: tuple[int, int],
    direction: int | None,
    lit: npt.NDArray[np.bool_] | None,
) -> Picture:
    grid, _ = Grid.decode(cells_XY)
    picture: Picture = grid.render(tile, place, direction, lit)
    return picture


def _lit(
    size: tuple[int, ...], view: npt.NDArray[np.uint8], place: tuple[int, int], direction: int
) -> npt.NDArray[np.bool_]:
    """Which cells of the level are in the agent's view."""
    lit = np.zeros(size, bool)
    if not find_kind(view.shape).has_cells:
        return lit
    forward = np.asarray(DIR_TO_VEC[direction])
    right = np.array([-forward[1], forward[0]])
    width = view.shape[0]
    corner = np.array(place) + forward * (width - 1) - right * (width // 2)
    for i, j in np.argwhere(view[..., 0] != OBJECT_TO_IDX["unseen"]):
        x, y = corner - forward * j + right * i
        if 0 <= x < size[0] and 0 <= y < size[1]:
            lit[x, y] = True
    return lit
