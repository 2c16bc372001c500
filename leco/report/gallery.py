"""Codes: which observations fell into one, how many were new, and how much of a codebook is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from leco.report.pictures import draw_observation
from leco.report.style import PANEL, Panel, colour, ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leco.evaluation.recording import Episode, Recording
    from leco.report.runs import Run

ROWS = 8  # codes in a gallery
FEWEST, PER_ROW = 3, 5  # different observations of a code
TILE = 8
GAP = 4


class Drawer(NamedTuple):
    """A code of an episode: how often it was seen, and its different observations, the most frequent first, with how often."""

    code: bytes
    times: int
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
        made.append(Drawer(code, sum(map(len, ordered)), observations))
    return sorted(made, key=lambda each: -each.times)


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
    height, width = pictures[0][0].shape[:2]
    across = max(FEWEST, *map(len, pictures))
    sheet = np.zeros((len(shown) * (height + GAP), across * (width + GAP), 4), np.uint8)
    for i, row in enumerate(pictures):
        for j, picture in enumerate(row):
            y, x = i * (height + GAP), j * (width + GAP)
            sheet[y : y + height, x : x + width, :3] = picture
            sheet[y : y + height, x : x + width, 3] = 255
    # The width is that of other figures; labels take a quarter of it.
    figure = Figure(figsize=(PANEL[0], 0.75 * PANEL[0] * sheet.shape[0] / sheet.shape[1] + 0.1))
    axes = figure.subplots()
    axes.imshow(sheet, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_axis_off()
    for i, each in enumerate(shown):
        y = i * (height + GAP)
        views = len(each.observations)
        text = f"code {i + 1}\nseen {each.times} x\n{views} view{'s' if views > 1 else ''}"
        axes.text(-GAP, y + height / 2, text, ha="right", va="center", fontsize=9)
        for j, (_, times) in enumerate(each.observations[:PER_ROW]):
            if times > 1:
                x = j * (width + GAP)
                axes.text(x + 3, y + 3, f"{times} x", ha="left", va="top", fontsize=8, color="white")
    left = f" The other {len(every) - len(shown)} codes are not shown." if len(every) > len(shown) else ""
    alt = (
        f"An episode of {len(episode.action_T)} actions, {'solved' if episode.solved else 'not solved'}: {len(every)} codes for "
        f"{sum(len(each.observations) for each in every)} different observations. "
        + " ".join(
            f"Code {i + 1}: seen {each.times} times, {len(each.observations)} views." for i, each in enumerate(shown)
        )
        + left
    )
    name = "-".join(ids([run.label, run.task]).values())
    return Panel(f"gallery-{name}", f"{run.label} on {run.task}", alt, figure)


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
