"""The learning curve of a run as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from services.progress import read_metrics

if TYPE_CHECKING:
    from pathlib import Path

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
