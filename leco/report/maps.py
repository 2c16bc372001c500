"""Where the agent went, what it did there and what it was rewarded for, drawn on the level that MiniGrid drew.

X, Y  width and height of the level
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Colormap, LogNorm, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from minigrid.core.actions import Actions
from minigrid.core.constants import OBJECT_TO_IDX

from leco.report.pictures import draw_level, window
from leco.report.style import PANEL, Panel, ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from leco.evaluation.recording import Episode, Recording
    from leco.report.runs import Run

TILE = 16
COLUMNS = 2
INSIDE = 0.68  # of a cell, what a mark takes
TICKS = tuple(each * 10.0**power for power in range(-2, 5) for each in (1, 2, 5))
LEVELS = 2  # that are shown on their own
# Of the actions that change a level: name, symbol, colour, and where in the cell it is drawn.
ACTIONS = (
    ("pickup", "^", "#E69F00", (0.0, -0.24)),
    ("drop", "v", "#56B4E9", (-0.25, 0.2)),
    ("toggle", "s", "#CC79A7", (0.25, 0.2)),
)


class Place(NamedTuple):
    """A level, or all levels of one plan: what it is called, its picture, and the episodes played in it by checkpoint."""

    name: str
    grid_XY: npt.NDArray[np.uint8]
    episodes: dict[str, list[Episode]]


def places(recordings: Sequence[Recording]) -> list[Place]:
    """The levels that every checkpoint played, the first ones; and all together, if rooms and doors are where they are in all."""
    played = {_moment(each): [e for e in each.episodes if e.grid(0) is not None] for each in recordings}
    played = {moment: episodes for moment, episodes in played.items() if episodes}
    if not played:
        return []
    found = []
    first, *_ = played.values()
    plans = {_plan(episode).tobytes() for episodes in played.values() for episode in episodes}
    if len(plans) == 1 and len(first) > 1:
        found.append(Place(f"all {len(first)} episodes", _start(first[0]), played))
    everywhere = [e for e in first if all(any(e.level == o.level for o in each) for each in played.values())]
    for number, episode in enumerate(everywhere[:LEVELS], 1):
        here = {moment: [o for o in each if o.level == episode.level] for moment, each in played.items()}
        found.append(Place(f"level {number}", _start(episode), here))
    return found


def comparable(run: Run) -> list[Recording]:
    """The recordings of a run that were played in the same way: with drawn actions, and the seed that most of them have."""
    every = [each for each in run.recorded() if not each.metadata.greedy and each.episodes[0].grid(0) is not None]
    if not every:
        return []
    seeds = [each.metadata.seed for each in every]
    usual = max(sorted(set(seeds)), key=seeds.count)
    return [each for each in every if each.metadata.seed == usual]


def draw(run: Run, place: Place) -> list[Panel]:
    """Visits, actions, r_ep and r_ta of a run in one place, each with a map for every checkpoint."""
    word = "-".join(ids([run.label, run.task, place.name]).values())
    title = f"{run.label} on {run.task}"
    every = [episode for episodes in place.episodes.values() for episode in episodes]
    panels = []
    visits = {moment: _mean(episodes, "visits") for moment, episodes in place.episodes.items()}
    most = max(float(np.nanmax(each)) for each in visits.values())
    figure, told = _heat(place, visits, LogNorm(min(1.0, most / 2), most), mpl.colormaps["plasma"], "visits an episode")
    panels.append(Panel(f"visits-{word}", f"{title}: visits", f"Visits of each cell, {place.name}. {told}", figure))
    figure, told = _actions(place)
    panels.append(Panel(f"actions-{word}", f"{title}: actions", f"Where it used objects, {place.name}. {told}", figure))
    if any(each.r_ep_T.any() for each in every):
        heat = {moment: _mean(episodes, "r_ep") for moment, episodes in place.episodes.items()}
        high = max(float(np.nanmax(each)) for each in heat.values())
        figure, told = _heat(place, heat, Normalize(0, high or 1), mpl.colormaps["viridis"], "mean r_ep")
        panels.append(Panel(f"r_ep-{word}", f"{title}: r_ep", f"Mean r_ep of each cell, {place.name}. {told}", figure))
    if any(each.r_ta_T.any() for each in every):
        heat = {moment: _mean(episodes, "r_ta") for moment, episodes in place.episodes.items()}
        high = max(float(np.nanmax(np.abs(each))) for each in heat.values()) or 1.0
        figure, told = _heat(place, heat, TwoSlopeNorm(0, -high, high), mpl.colormaps["PuOr_r"], "mean r_ta")
        panels.append(Panel(f"r_ta-{word}", f"{title}: r_ta", f"Mean r_ta of each cell, {place.name}. {told}", figure))
    return panels


def cell_sums(episode: Episode, what: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """[X, Y] twice: how often the agent was in each cell, and the sum of a reward for what led it there (or the visits)."""
    size = _start(episode).shape[:2]
    visits, total = np.zeros(size), np.zeros(size)
    x_T, y_T = episode.x_T, episode.y_T
    if what == "visits":
        np.add.at(visits, (x_T, y_T), 1)
        return visits, visits
    np.add.at(visits, (x_T[1:], y_T[1:]), 1)
    np.add.at(total, (x_T[1:], y_T[1:]), episode.r_ep_T if what == "r_ep" else episode.r_ta_T)
    return visits, total


def _mean(episodes: Sequence[Episode], what: str) -> npt.NDArray[np.float64]:
    """[X, Y], nan where nobody was. Visits are a mean over episodes, rewards over visits."""
    sums = [cell_sums(each, what) for each in episodes]
    visits, total = sum(each[0] for each in sums), sum(each[1] for each in sums)
    divided = total / len(episodes) if what == "visits" else total / np.maximum(visits, 1)
    return np.where(np.asarray(visits) > 0, divided, np.nan)


def action_counts(episodes: Sequence[Episode], action: int, size: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """[X, Y]: how often the agent took this action while it was in each cell."""
    counts = np.zeros(size, np.int64)
    for each in episodes:
        did = each.action_T == action
        np.add.at(counts, (each.x_T[:-1][did], each.y_T[:-1][did]), 1)
    return counts


def _heat(
    place: Place, heat: dict[str, npt.NDArray[np.float64]], norm: Normalize, colours: Colormap, label: str
) -> tuple[Figure, str]:
    figure, axes = _figure(list(heat), place)
    told = []
    for ax, (moment, cells_XY) in zip(axes, heat.items(), strict=False):
        where = np.argwhere(np.isfinite(cells_XY))
        # Smaller than a cell, so that what lies in it stays visible around them.
        squares = [Rectangle((x - INSIDE / 2, y - INSIDE / 2), INSIDE, INSIDE) for x, y in where]
        marks = PatchCollection(squares, cmap=colours, norm=norm, edgecolor="white", linewidth=0.4)
        marks.set_array(cells_XY[where[:, 0], where[:, 1]])
        ax.add_collection(marks)
        x, y = np.unravel_index(np.nanargmax(cells_XY), cells_XY.shape)
        told.append(f"{moment}: most, {np.nanmax(cells_XY):.2g}, in column {x}, row {y}.")
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, location="bottom", shrink=0.7, aspect=40, label=label)
    if isinstance(norm, LogNorm):
        ticks = [tick for tick in TICKS if (norm.vmin or 0) <= tick <= (norm.vmax or 0)]
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        bar.minorticks_off()
    return figure, " ".join(told)


def _actions(place: Place) -> tuple[Figure, str]:
    figure, axes = _figure(list(place.episodes), place)
    told = []
    size = place.grid_XY.shape[:2]
    for ax, (moment, episodes) in zip(axes, place.episodes.items(), strict=False):
        sums = []
        for name, marker, ink, (dx, dy) in ACTIONS:
            counts = action_counts(episodes, int(Actions[name]), size)
            sums.append(f"{counts.sum()} x {name}")
            x, y = np.nonzero(counts)
            times = counts[x, y] / len(episodes)
            ax.scatter(
                x + dx, y + dy, s=14 + 22 * np.sqrt(times), marker=marker, color=ink, edgecolors="white", linewidths=0.5
            )
        told.append(f"{moment}: {', '.join(sums)}.")
    handles = [axes[0].scatter([], [], marker=marker, color=ink, label=name) for name, marker, ink, _ in ACTIONS]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, title="larger: more often in an episode")
    return figure, " ".join(told)


def _figure(moments: Sequence[str], place: Place) -> tuple[Figure, list[Axes]]:
    """A map of the level for each moment, and room for a legend."""
    columns = min(COLUMNS, len(moments))
    rows = -(-len(moments) // columns)
    part = window(place.grid_XY)
    width, height = (each.stop - each.start for each in part)
    tall = min(max(height / width, 0.45), 1.8)
    side = PANEL[0] / max(columns, COLUMNS)
    figure = Figure(figsize=(PANEL[0], (side * tall + 0.25) * rows + 0.75))
    axes: list[Axes] = list(np.atleast_1d(figure.subplots(rows, columns)).flat)
    picture = draw_level(place.grid_XY, TILE)
    for ax in axes:
        ax.set(xticks=[], yticks=[])
        ax.set_axis_off()
    for ax, moment in zip(axes, moments, strict=False):
        ax.imshow(picture, extent=_extent(part), interpolation="nearest")
        ax.set_title(moment, fontsize=9)
    return figure, axes[: len(moments)]


def _extent(part: tuple[slice, slice]) -> tuple[float, float, float, float]:
    """So that a cell's middle is at its column and row."""
    columns, rows = part
    return columns.start - 0.5, columns.stop - 0.5, rows.stop - 0.5, rows.start - 0.5


def _moment(recording: Recording) -> str:
    frames = recording.metadata.frames
    if frames >= 1e6:
        return f"after {frames / 1e6:.2g} M frames"
    return f"after {frames / 1e3:.3g} k frames" if frames else f"after {recording.metadata.updates:,} updates"


def _start(episode: Episode) -> npt.NDArray[np.uint8]:
    grid = episode.grid(0)
    assert grid is not None  # noqa: S101  # only such episodes come here
    return grid


def _plan(episode: Episode) -> npt.NDArray[np.bool_]:
    """Where walls and doors are."""
    kind = _start(episode)[..., 0]
    return np.isin(kind, [OBJECT_TO_IDX["wall"], OBJECT_TO_IDX["door"]])
