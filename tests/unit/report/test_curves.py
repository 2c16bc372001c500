"""Learning curves as pictures: what there is to see is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from leco.report.curves import RETURN, SUCCESS, comparison, overview, plot
from leco.report.runs import read_curves
from leco.report.style import REWARD_COLOURS, colour

if TYPE_CHECKING:
    from pathlib import Path

    from leco.report.runs import Run


def made(folder: Path, name: str, *lines: tuple[int, float]) -> Run:
    (folder / name).mkdir()
    rows = [f"{frames},{success},{success},100,0.5,0.25,0.75" for frames, success in lines]
    head = "frames,success,return,episodes,r_ep,r_ta,r_i"
    (folder / name / "metrics.csv").write_text("\n".join([head, *rows]) + "\n")
    return read_curves(folder / name, task="Empty-5x5", label="leco")


def inked(figure: Figure, ink: str) -> int:
    """Pixels of a colour."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3] / 255
    return int((np.abs(pixels - to_rgb(ink)) < 0.02).all(-1).sum())


def test_a_curve_of_one_point_is_seen(tmp_path: Path) -> None:
    one, none = made(tmp_path, "one", (1000, 0.5)), made(tmp_path, "none")
    for measure in (SUCCESS, RETURN):
        figure = Figure()
        assert plot(figure.subplots(), [one], measure, numbers={"leco": 0}) == ["leco ends at 0.5."]
        assert inked(figure, colour(0)) > 10
    assert inked(overview(one, ""), REWARD_COLOURS["r_i"]) > inked(overview(none, ""), REWARD_COLOURS["r_i"]) + 10


def test_the_band_of_a_success_rate_stays_within_0_and_1(tmp_path: Path) -> None:
    runs = [made(tmp_path, str(seed), *((n, success) for n in (1, 2))) for seed, success in enumerate((1.0, 1.0, 0.4))]
    success, returns = (
        np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1] for axes in comparison(runs, "").axes
    )
    assert success.min() > 0.4
    assert success.max() == 1
    assert returns.max() > 1
