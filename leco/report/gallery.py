"""Codes: where the agent saw one, which observations fell into it, how many were new, and how much of a codebook is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from leco.report.pictures import draw_level, draw_observation, window
from leco.report.style import PANEL, Panel, colour, ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leco.evaluation.recording import Episode, Recording
    from leco.report.pictures import Picture
    from leco.report.runs import Run

ROWS = 8  # codes in a gallery
FEWEST, PER_ROW = 3, 5  # different observations of a code
TILE = 16
GAP = 8
MARK = (230, 159, 0)  # of the cells in which a code was seen


class Drawer(NamedTuple):
    """A code of an episode: when it was seen, and its different observations, the most frequent first, with how often."""

    code: bytes
    when: list[int]
    observations: list[tuple[npt.NDArray[np.uint8], int]]


def drawers(episode: Episode) -> list[Drawer]:
    """The codes of an episode, the most frequent first; of equal ones the earliest."""
    found: dict[bytes, dict[bytes, list[int]]] = {}
    for t, (code, seen) in enumerate(zip(episode.code_TW, episode.observation_TO, strict=True)):
        found.setdefault(code.tobytes(), {}).setdefault(seen.tobytes(), []).append(t)
    made = []
    for code, views in found.items():
        ordered = sorted(views.values(), key=len, reverse=True)
        observations = [(episode.observation_TO[times[0]], len(times)) for times in ordered]
        made.append(Drawer(code, sorted(t for times in ordered for t in times), observations))
    return sorted(made, key=lambda each: -len(each.when))


def draw_places(episode: Episode, when: Sequence[int], side: int) -> Picture | None:
    """The level at the start of an episode, with the cells marked in which the agent was at some times; None without a grid.

    Args:
        episode: What was played.
        when: From 0, before the first action, on.
        side: Pixels of the picture, which is a square.
    """
    grid_XY = episode.grid(0)
    if grid_XY is None:
        return None
    columns, rows = window(grid_XY)
    tile = max(side // max(columns.stop - columns.start, rows.stop - rows.start), 1)
    level = draw_level(grid_XY, tile)
    for x, y in {(int(episode.x_T[t]), int(episode.y_T[t])) for t in when}:
        top, left = (y - rows.start) * tile, (x - columns.start) * tile
        cell = level[top : top + tile, left : left + tile]
        cell[:] = (cell + 2.0 * np.array(MARK)) / 3
    height, width = (min(each, side) for each in level.shape[:2])
    picture = np.zeros((side, side, 3), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    picture[top : top + height, left : left + width] = level[:height, :width]
    return picture


def draw_gallery(run: Run, recording: Recording) -> Panel | None:
    """The codes of an episode that was solved, or of the first; None if nothing is counted."""
    episode = next((each for each in recording.episodes if each.solved), recording.episodes[0])
    if not episode.code_TW.shape[1]:
        return None
    every = drawers(episode)
    shown = every[:ROWS]
    pictures = [
        [draw_observation(seen, TILE, episode.layout) for seen, _ in each.observations[:PER_ROW]] for each in shown
    ]
    height = pictures[0][0].shape[0]
    places = [draw_places(episode, each.when, height) for each in shown]
    rows = [row if place is None else [place, *row] for place, row in zip(places, pictures, strict=True)]
    sheet = _sheet(rows)
    # The width is that of other figures; labels take a quarter of it.
    figure = Figure(figsize=(PANEL[0], 0.75 * PANEL[0] * sheet.shape[0] / sheet.shape[1] + 0.1))
    axes = figure.subplots()
    axes.imshow(sheet, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_axis_off()
    for i, (each, place, row) in enumerate(zip(shown, places, pictures, strict=True)):
        y = i * (height + GAP)
        views = len(each.observations)
        text = f"code {i + 1}\nseen {len(each.when)} x\n{views} view{'s' if views > 1 else ''}"
        axes.text(-GAP, y + height / 2, text, ha="right", va="center", fontsize=9)
        x = 0 if place is None else place.shape[1] + GAP
        for picture, (_, times) in zip(row, each.observations, strict=False):
            if times > 1:
                axes.text(x + 6, y + 6, f"{times} x", ha="left", va="top", fontsize=8, color="white")
            x += picture.shape[1] + GAP
    name = "-".join(ids([run.label, run.task]).values())
    return Panel(f"gallery-{name}", f"{run.label} on {run.task}", _told(episode, every, len(shown)), figure)


def _sheet(rows: Sequence[Sequence[Picture]]) -> npt.NDArray[np.uint8]:
    """Rows of pictures of one height on one sheet, which is transparent between them: [height, width, RGBA]."""
    height = rows[0][0].shape[0]
    fewest = FEWEST * (rows[0][-1].shape[1] + GAP)
    across = max(fewest, *(sum(picture.shape[1] + GAP for picture in row) for row in rows))
    sheet = np.zeros((len(rows) * (height + GAP), across, 4), np.uint8)
    for i, row in enumerate(rows):
        y, x = i * (height + GAP), 0
        for picture in row:
            sheet[y : y + height, x : x + picture.shape[1], :3] = picture
            sheet[y : y + height, x : x + picture.shape[1], 3] = 255
            x += picture.shape[1] + GAP
    return sheet


def _told(episode: Episode, every: Sequence[Drawer], shown: int) -> str:
    """A gallery in words."""
    left = f" The other {len(every) - shown} codes are not shown." if len(every) > shown else ""
    return (
        f"An episode of {len(episode.action_T)} actions, {'solved' if episode.solved else 'not solved'}: {len(every)} codes for "
        f"{sum(len(each.observations) for each in every)} different observations. "
        + " ".join(
            f"Code {i + 1}: seen {len(each.when)} times, {len(each.observations)} views."
            for i, each in enumerate(every[:shown])
        )
        + left
    )


def new_code_rate(episode: Episode) -> float:
    """The share of observations after the first whose code was new in the episode."""
    return float((episode.count_T[1:] == 1).mean())


class Use(NamedTuple):
    """How a recording uses its codes.

    new         the mean share of codes that were new in their episode
    distinct    the mean number of different codes of an episode
    index_K     how often each index of the codebook was used, as a share; empty for hashes without codebook
    perplexity  how many indices, used equally often, would be as various
    """

    new: float
    distinct: float
    index_K: npt.NDArray[np.float64]
    perplexity: float


def use_of(recording: Recording, codebook: int | None) -> Use | None:
    """How codes are used in a recording; None if nothing is counted.

    Args:
        recording: What was played.
        codebook: K; None for a hash without one.
    """
    if not recording.episodes[0].code_TW.shape[1]:
        return None
    new = float(np.mean([new_code_rate(each) for each in recording.episodes]))
    distinct = float(np.mean([len(np.unique(each.code_TW, axis=0)) for each in recording.episodes]))
    if codebook is None:
        return Use(new, distinct, np.empty(0), float("nan"))
    every = np.concatenate([each.code_TW.ravel() for each in recording.episodes])
    index_K = np.bincount(every, minlength=codebook) / len(every)
    used = index_K[index_K > 0]
    return Use(new, distinct, index_K, float(np.exp(-(used * np.log(used)).sum())))


def draw_use(uses: Mapping[str, Use], numbers: Mapping[str, int], *, task: str) -> list[Panel]:
    """New-hash rate of each label, and how often each index of the codebook is used."""
    word = ids([task])[task]
    figure = Figure(figsize=(PANEL[0], 1.1 + 0.32 * len(uses)))
    axes = figure.subplots()
    names = list(uses)
    bars = axes.barh(names, [100 * uses[name].new for name in names], color=[colour(numbers[name]) for name in names])
    axes.bar_label(bars, fmt="%.0f %%", padding=3, fontsize=8.5)
    axes.set(xlim=(0, 112), xlabel="codes that were new in their episode, %", title=task)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    told = " ".join(
        f"{name}: {100 * use.new:.0f} %, {use.distinct:.1f} codes an episode." for name, use in uses.items()
    )
    panels = [Panel(f"new-codes-{word}", task, f"New-hash rate on {task}. {told}", figure)]
    books = {name: use for name, use in uses.items() if len(use.index_K)}
    if books:
        panels.append(_draw_books(books, numbers, task, word))
    return panels


def _draw_books(books: Mapping[str, Use], numbers: Mapping[str, int], task: str, word: str) -> Panel:
    figure = Figure(figsize=PANEL)
    axes = figure.subplots()
    width = 0.8 / len(books)
    for i, (name, use) in enumerate(books.items()):
        x = np.arange(len(use.index_K)) + (i - (len(books) - 1) / 2) * width
        label = f"{name}: as {use.perplexity:.1f} of {len(use.index_K)}"
        axes.bar(x, 100 * use.index_K, width, color=colour(numbers[name]), label=label)
    axes.set(xlabel="index of the codebook", ylabel="share of all places in codes, %", title=task)
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside lower center", ncols=2 if len(books) > 1 else 1)
    told = " ".join(
        f"{name}: {(use.index_K > 0).sum()} of {len(use.index_K)} used, perplexity {use.perplexity:.1f}."
        for name, use in books.items()
    )
    return Panel(f"codebook-{word}", task, f"Use of the codebook on {task}. {told}", figure)


def first_recorded(runs: Sequence[Run]) -> dict[tuple[str, str], Run]:
    """Of each task and label the first run that has recordings."""
    found: dict[tuple[str, str], Run] = {}
    for run in runs:
        if run.recordings:
            found.setdefault((run.task, run.label), run)
    return found
