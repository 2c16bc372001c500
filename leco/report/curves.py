"""Curves over training: a line for what is compared, the mean over seeds in a band of one standard deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from leco.report.runs import score_scale
from leco.report.statistics import GRID, over_seeds
from leco.report.style import PANEL, REWARD_COLOURS, Panel, colour, dash, ids, legend_below

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from leco.report.metrics import Column
    from leco.report.runs import Run

MINUTES, HOURS, DAYS = 60.0, 3600.0, 86400.0


class Measure(NamedTuple):
    """A column of metrics.csv: what it is called, what an axis of it is called, and where that axis ends."""

    column: str
    title: str
    label: str
    limits: tuple[float, float] | None = None


SUCCESS = Measure("success", "Success", "success rate, last 100 episodes", (0.0, 1.0))
RETURN = Measure("return", "Return", "return, last 100 episodes")
R_EP = Measure("r_ep", "Episodic novelty r_ep", "r_ep, mean of a batch")
R_TA = Measure("r_ta", "Modulation r_ta", "r_ta, mean of a batch")
R_I = Measure("r_i", "Intrinsic reward r_i", "r_i, mean of a batch")
NEW_CODES = Measure("new_code_share", "New codes", "share of codes new in their episode")
SPEED = Measure("frames_per_second", "Throughput", "frames per second")
LAG = Measure("policy_lag", "Policy lag", "lag, versions of the parameters")
ENTROPY = Measure("entropy", "Entropy", "entropy of the policy, nats")


def numbered(runs: Sequence[Run]) -> dict[str, int]:
    """The labels of runs, each with its number, by which it has its colour in every figure."""
    return {label: index for index, label in enumerate(dict.fromkeys(run.label for run in runs))}


def draw(
    runs: Sequence[Run], measure: Measure, *, numbers: Mapping[str, int], against: str = "frames", name: str = ""
) -> list[Panel]:
    """A panel for each task that has something to show.

    Args:
        runs: What is compared.
        measure: What is drawn.
        numbers: Which colour each label has.
        against: frames, or seconds of training.
        name: That files begin with; that of the measure, if not given.
    """
    panels = []
    tasks = list(dict.fromkeys(run.task for run in runs))
    for task, word in ids(tasks).items():
        ours = [run for run in runs if run.task == task]
        if measure is SUCCESS and not ours[0].solvable:
            continue
        figure = Figure(figsize=PANEL)
        axes = figure.subplots()
        told = plot(axes, ours, measure, numbers=numbers, against=against)
        if not told:
            continue
        axes.set_title(task)
        legend_below(figure, axes)
        title = f"{measure.title} over {'frames' if against == 'frames' else 'wall time'}"
        alt = f"{title}, {task}. {' '.join(told)}"
        panels.append(Panel(f"{name or measure.column}-{against}-{word}", title, alt, figure))
    return panels


def plot(
    axes: Axes, runs: Sequence[Run], measure: Measure, *, numbers: Mapping[str, int], against: str = "frames"
) -> list[str]:
    """The lines of one task. Returns a sentence about each, where it ends; none if there is nothing to draw."""
    told = []
    words = ids(list(numbers))
    scale, unit = _unit(runs, against)
    zero, one = score_scale(runs[0].task) if measure is RETURN and runs else (0.0, 1.0)
    for label in (label for label in numbers if any(run.label == label for run in runs)):
        curves = [run.curve(measure.column, against) for run in runs if run.label == label]
        curves = [(x / scale, (y - zero) / (one - zero)) for x, y in curves if len(x)]
        if measure in (R_EP, R_TA, R_I) and not any(y.any() for _, y in curves):
            continue  # of a method that has none
        if not curves:
            continue
        told.append(
            _line(axes, curves, label, numbers[label], words[label], limits=measure.limits or (-np.inf, np.inf))
        )
    axes.set_xlabel(unit)
    axes.set_ylabel("human-normalised return" if (zero, one) != (0.0, 1.0) else measure.label)
    if measure.limits is not None:
        axes.set_ylim(measure.limits[0] - 0.03, measure.limits[1] + 0.03)
    return told


def _line(
    axes: Axes,
    curves: Sequence[tuple[Column, Column]],
    label: str,
    index: int,
    word: str,
    *,
    limits: tuple[float, float],
) -> str:
    """The mean of seeds in its band, as far as all of them have come; and each seed, faintly. Returns a sentence about it."""
    shown = f"{label} ({len(curves)})" if len(curves) > 1 else label
    mean = over_seeds(curves)
    if len(curves) > 1:
        for number, (x, y) in enumerate(curves, 1):
            some = np.unique(np.linspace(0, len(x) - 1, GRID).astype(int))
            [seed] = axes.plot(x[some], y[some], marker=_marker(x), color=colour(index), linewidth=0.7, alpha=0.4)
            seed.set_gid(f"seed-{number}-{word}")
        axes.fill_between(
            mean.x,
            np.clip(mean.mean - mean.deviation, *limits),
            np.clip(mean.mean + mean.deviation, *limits),
            color=colour(index),
            alpha=0.18,
            linewidth=0,
        )
    [line] = axes.plot(mean.x, mean.mean, color=colour(index), linestyle=dash(index), linewidth=1.8, label=shown)
    line.set_marker(_marker(mean.x))
    line.set_gid(f"line-{word}")
    if not len(mean.x):
        return f"{label}: its {len(curves)} seeds have no frames in common yet."
    spread = f" ± {mean.deviation[-1]:.3g} over {len(curves)} seeds" if len(curves) > 1 else ""
    return f"{label} ends at {mean.mean[-1]:.3g}{spread}."


def _marker(x: Column) -> str:
    """A curve of one point is a dot: it has no line."""
    return "o" if len(x) == 1 else ""


def _unit(runs: Sequence[Run], against: str) -> tuple[float, str]:
    """What an axis is divided by, and what it is then called: numbers that people can read."""
    most = max((float(x[-1]) for run in runs if len(x := run.curve("frames", against)[0])), default=0.0)
    if against == "frames":
        steps = ((1e6, "million frames"), (1e3, "thousand frames"))
        return next((step for step in steps if most >= step[0]), (1.0, "frames"))
    for seconds, unit in ((DAYS, "days"), (HOURS, "hours"), (MINUTES, "minutes")):
        if most >= 2 * seconds:
            return seconds, f"{unit} of training"
    return 1.0, "seconds of training"


def overview(run: Run, title: str) -> Figure:
    """Success, return, intrinsic reward and entropy of one run in one picture."""
    figure = Figure(figsize=(2 * PANEL[0], 2 * PANEL[1]))
    figure.suptitle(title)
    places: list[Axes] = list(figure.subplots(2, 2).flat)
    for axes, measure in zip(places, (SUCCESS, RETURN, None, ENTROPY), strict=True):
        if measure is None:
            split(axes, run)
        else:
            plot(axes, [run], measure, numbers=numbered([run]))
    return figure


def comparison(runs: Sequence[Run], title: str) -> Figure:
    """Success and return of one task side by side, a line for what is compared: the picture of a sweep."""
    numbers = numbered(runs)
    figure = Figure(figsize=(2 * PANEL[0], 1.15 * PANEL[1]))
    figure.suptitle(title)
    places: list[Axes] = list(figure.subplots(1, 2))
    for axes, measure in zip(places, (SUCCESS, RETURN), strict=True):
        plot(axes, runs, measure, numbers=numbers)
    legend_below(figure, places[1])
    return figure


def split(axes: Axes, run: Run) -> None:
    """The intrinsic reward of one run over frames, with its two parts."""
    scale, unit = _unit([run], "frames")
    for name, ink in REWARD_COLOURS.items():
        x, y = run.curve(name)
        if len(x):
            [line] = axes.plot(x / scale, y, marker=_marker(x), color=ink, label=name, linewidth=1.8)
            line.set_gid(f"line-{name}")
    axes.set_xlabel(unit)
    axes.set_ylabel("intrinsic reward, mean of a batch")
    if axes.lines:
        axes.legend()
