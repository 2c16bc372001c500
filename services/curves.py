"""Learning curves as pictures: of a run, and of runs that are compared."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib import color_sequences
from matplotlib.figure import Figure

from leco.files import replace_file
from leco.report.metrics import read_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    Curve = tuple[np.ndarray, np.ndarray]  # frames, and what was measured there

PANELS = (
    ("success rate, last 100 episodes", ("success",), (0.0, 1.0)),
    ("return, last 100 episodes", ("return",), None),
    ("intrinsic reward, mean of a batch", ("r_ep", "r_ta", "r_i"), None),
    ("entropy of the policy, nats", ("entropy",), None),
)


def draw_curves(metrics: Path, picture: Path, *, title: str) -> None:
    """Draws success, return, intrinsic reward and entropy over frames, from metrics.csv. What a method has not is left out."""
    rows = read_metrics(metrics)
    figure = Figure(figsize=(9, 6), layout="constrained")
    figure.suptitle(title)
    for axes, (label, names, limits) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        for name in names:
            points = [(float(row["frames"]), float(row[name])) for row in rows if row.get(name)]
            if points:
                axes.plot(*zip(*points, strict=True), label=name)
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("frames")
        axes.grid(alpha=0.3)
        if limits is not None:
            axes.set_ylim(limits[0] - 0.02, limits[1] + 0.02)
        if len(names) > 1:
            axes.legend(fontsize=8)
    figure.savefig(picture, dpi=110)


def draw_comparison(lines: Mapping[str, Sequence[Path]], picture: Path, *, title: str) -> None:
    """Draws success and return over frames of what is compared, each the metrics.csv of its seeds.

    A thick line is the mean over seeds, as far as every one of them has come, in a band from the lowest to the highest; thin
    lines are the seeds.
    """
    figure = Figure(figsize=(11, 5), layout="constrained")
    figure.suptitle(title)
    colours = color_sequences["tab10" if len(lines) <= 10 else "tab20"]
    panels: Sequence[Axes] = figure.subplots(1, 2)
    for axes, (label, (name,), limits) in zip(panels, PANELS, strict=False):
        for index, (line, metrics) in enumerate(lines.items()):
            colour, style = colours[index % len(colours)], "-" if index < len(colours) else "--"
            curves = [curve for path in metrics if len((curve := _curve(path, name))[0])]
            if len(curves) > 1:
                for frames, values in curves:
                    axes.plot(frames, values, color=colour, linewidth=0.7, alpha=0.5)
            mean = over_seeds(curves)
            axes.plot(
                mean.frames, mean.mean, color=colour, linestyle=style, linewidth=2, label=f"{line} ({len(curves)})"
            )
            if len(curves) > 1:
                axes.fill_between(mean.frames, mean.low, mean.high, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("frames")
        axes.grid(alpha=0.3)
        if limits is not None:
            axes.set_ylim(limits[0] - 0.02, limits[1] + 0.02)
    handles, labels = panels[0].get_legend_handles_labels()
    columns = min(len(labels), 4)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9, title="(number of seeds)")
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    replace_file(picture, data.getvalue())


def _curve(metrics: Path, name: str) -> Curve:
    try:
        rows = read_metrics(metrics)
    except OSError:
        rows = []
    points = [(float(row["frames"]), float(row[name])) for row in rows if row.get(name)]
    return np.array([frames for frames, _ in points]), np.array([value for _, value in points])


class OverSeeds(NamedTuple):
    """Mean, lowest and highest value of curves at the same frames."""

    frames: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def over_seeds(curves: Sequence[Curve]) -> OverSeeds:
    """Curves in one, wherever one has a point and all have begun and not ended; between points they are straight."""
    if not curves:
        return OverSeeds(*(np.empty(0) for _ in range(4)))
    begin, end = max(frames[0] for frames, _ in curves), min(frames[-1] for frames, _ in curves)
    every = np.unique(np.concatenate([frames for frames, _ in curves]))
    grid = every[(begin <= every) & (every <= end)]
    values = np.stack([np.interp(grid, *curve) for curve in curves])
    return OverSeeds(grid, values.mean(0), values.min(0), values.max(0))
