"""What came out: a row for what is compared, aggregates over tasks, and what a setting changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from leco.report.metrics import median_reached
from leco.report.runs import score_scale
from leco.report.statistics import Estimate, mean_interval, stratified, wilson
from leco.report.style import PANEL, Panel, colour, ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leco.report.runs import Run

# The paper's comparisons (figures 3 to 6): what they are about, and which methods they show.
COMPARISONS = (
    ("LECO and its variations", ("no-int", "dsc", "ae-lsh", "vq-only", "leco-ae-lsh", "leco")),
    ("LECO and other methods", ("no-int", "agac", "noveld", "rnd", "ride", "leco")),
    ("LECO and its naive form", ("leco-naive", "lirpg", "leco-ae-lsh", "leco")),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What is compared on a task. Numbers are means over seeds.

    success, returns              at the end of training: of the last 100 episodes
    fresh_success, fresh_returns  of fresh episodes, where they were played
    frames_to_90, seconds_to_90   until 90 % of the last 100 episodes were solved: the median, where a seed that never was there
                                  is later than all others; None is never
    each                          the same six of each seed, where they are known
    """

    task: str
    label: str
    seeds: tuple[str, ...]
    frames: tuple[float, float]
    success: Estimate
    returns: Estimate
    fresh_success: Estimate
    fresh_returns: Estimate
    fresh_episodes: int
    frames_to_90: float | None
    seconds_to_90: float | None
    each: dict[str, list[float]]


def table(runs: Sequence[Run]) -> list[Row]:
    """A row for each task and label."""
    rows = []
    for task, label in dict.fromkeys((run.task, run.label) for run in runs):
        ours = [run for run in runs if (run.task, run.label) == (task, label)]
        frames = [run.last("frames") for run in ours if math.isfinite(run.last("frames"))]
        played = [run.evaluation for run in ours if run.evaluation is not None]
        reached = [run.reached() for run in ours]
        each = {
            "success": [run.last("success") for run in ours] if ours[0].solvable else [],
            "returns": [run.last("return") for run in ours],
            "fresh_success": [one.success for one in played],
            "fresh_returns": [one.mean_return for one in played],
            "frames_to_90": [float(one.frames) for one in reached if one is not None],
            "seconds_to_90": [one.seconds for one in reached if one is not None],
        }
        each = {name: [value for value in values if math.isfinite(value)] for name, values in each.items()}
        rows.append(
            Row(
                task=task,
                label=label,
                seeds=tuple("?" if run.seed is None else str(run.seed) for run in ours),
                frames=(min(frames, default=math.nan), max(frames, default=math.nan)),
                success=_share(mean_interval(each["success"])),
                returns=mean_interval(each["returns"]),
                fresh_success=_fresh(ours),
                fresh_returns=mean_interval(each["fresh_returns"]),
                fresh_episodes=sum(one.episodes for one in played),
                frames_to_90=median_reached([one and one.frames for one in reached]),
                seconds_to_90=median_reached([one and one.seconds for one in reached]),
                each=each,
            )
        )
    return rows


def _share(estimate: Estimate) -> Estimate:
    """No share is below 0 or above 1."""
    return estimate._replace(
        low=max(estimate.low, 0.0) if math.isfinite(estimate.low) else math.nan,
        high=min(estimate.high, 1.0) if math.isfinite(estimate.high) else math.nan,
    )


def _fresh(runs: Sequence[Run]) -> Estimate:
    """Over seeds; of a single one over its episodes."""
    played = [run.evaluation for run in runs if run.evaluation and math.isfinite(run.evaluation.success)]
    if len(played) == 1:
        [only] = played
        return Estimate(only.success, *wilson(round(only.success * only.episodes), only.episodes))
    return _share(mean_interval([each.success for each in played]))


def score(run: Run) -> float:
    """How good a run is, from 0 to 1: the share of fresh episodes that it solved or, if none were played, of its last 100 in
    training; of a task that calls none solved the return, between random play and people where both are known."""
    zero, one = score_scale(run.task)
    if run.solvable:
        fresh = run.evaluation.success if run.evaluation is not None else math.nan
        return fresh if math.isfinite(fresh) else run.last("success")
    value = run.evaluation.mean_return if run.evaluation is not None else run.last("return")
    return (value - zero) / (one - zero)


def aggregate(runs: Sequence[Run]) -> dict[str, Estimate]:
    """The interquartile mean of all runs of a label, over all tasks, by label."""
    found = {}
    for label in dict.fromkeys(run.label for run in runs):
        tasks = dict.fromkeys(run.task for run in runs if run.label == label)
        scores = [[score(run) for run in runs if (run.label, run.task) == (label, task)] for task in tasks]
        known = [[each for each in scores_of if math.isfinite(each)] for scores_of in scores]
        found[label] = stratified([each for each in known if each])
    return found


def draw_aggregate(runs: Sequence[Run], numbers: Mapping[str, int]) -> Panel | None:
    """The interquartile means with their intervals; None if there is nothing to compare."""
    estimates = {label: each for label, each in aggregate(runs).items() if math.isfinite(each.value)}
    if len(estimates) < 2:
        return None
    figure = Figure(figsize=(PANEL[0], 1.0 + 0.34 * len(estimates)))
    axes = figure.subplots()
    tasks = len({run.task for run in runs})
    told = []
    for row, (label, each) in enumerate(estimates.items()):
        ink = colour(numbers[label])
        if math.isfinite(each.low):
            axes.barh(row, each.high - each.low, left=each.low, height=0.6, color=ink, alpha=0.3)
        [point] = axes.plot(each.value, row, marker="D", color=ink, markersize=6, linestyle="none")
        point.set_gid(f"point-{ids([label])[label]}")
        interval = f" (95 %: {each.low:.2f} to {each.high:.2f})" if math.isfinite(each.low) else ""
        told.append(f"{label}: {each.value:.2f}{interval}.")
    axes.set_yticks(range(len(estimates)), list(estimates))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlim=(-0.03, 1.03), xlabel=f"interquartile mean of the score, {tasks} task{'s' if tasks > 1 else ''}")
    return Panel("interquartile-mean", "Interquartile mean over tasks and seeds", " ".join(told), figure)


def comparisons(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """The paper's comparisons that runs are there for, if they are not all that there is."""
    here = {run.method for run in runs}
    found = []
    for title, methods in COMPARISONS:
        ours = here & set(methods)
        if "leco" in ours and ours - {"leco", "no-int"} and len(ours) < len(here):
            found.append((title, [run for run in runs if run.method in ours]))
    return found


def draw_ablations(runs: Sequence[Run]) -> list[Panel]:
    """What a varied setting does to the score at the end: a panel for each method and setting, a line for each task."""
    panels = []
    for method in dict.fromkeys(run.method for run in runs):
        ours = [run for run in runs if run.method == method]
        for key in dict.fromkeys(key for run in ours for key in run.varied):
            panel = _ablation([run for run in ours if key in run.varied], method, key)
            if panel is not None:
                panels.append(panel)
    return panels


def _ablation(runs: Sequence[Run], method: str, key: str) -> Panel | None:
    values = sorted({run.varied[key] for run in runs}, key=_order)
    if len(values) < 2:
        return None
    figure = Figure(figsize=PANEL)
    axes = figure.subplots()
    told = []
    for index, task in enumerate(dict.fromkeys(run.task for run in runs)):
        of_value = [[score(run) for run in runs if (run.task, run.varied[key]) == (task, value)] for value in values]
        found = [_share(mean_interval(scores)) for scores in of_value]
        at = [i for i, each in enumerate(found) if math.isfinite(each.value)]
        means = np.array([found[i].value for i in at])
        ends = np.array([(found[i].low, found[i].high) for i in at]).T
        error = np.nan_to_num(np.abs(ends - means))
        axes.errorbar(at, means, error, color=colour(index), marker="o", capsize=3, label=task)
        told.append(f"{task}: " + ", ".join(f"{values[i]} gives {found[i].value:.2f}" for i in at) + ".")
    axes.set_xticks(range(len(values)), values)
    axes.set(xlabel=key, ylabel="score at the end", ylim=(-0.03, 1.03), title=method)
    figure.legend(loc="outside lower center", ncols=2)
    name = "-".join(ids([method, key]).values())
    return Panel(f"ablation-{name}", f"{method}: {key}", " ".join(told), figure)


def _order(text: str) -> tuple[float, str]:
    """Numbers by their size, lists by that of their first, and others after them."""
    try:
        return float(text.partition("+")[0]), text
    except ValueError:
        return math.inf, text
