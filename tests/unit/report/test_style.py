"""How figures look."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from leco.report.style import PANEL, legend_below, styled


@pytest.mark.parametrize("methods", [1, 3, 11, 20])
def test_a_legend_of_many_rows_leaves_room_for_the_axes(methods: int) -> None:
    with styled():
        figure = Figure(figsize=PANEL)
        axes = figure.add_subplot()
        for number in range(methods):
            axes.plot([0, 1], [0, number], label=f"leco-method {number} (3)")
        axes.set_ylabel("success rate, last 100 episodes")
        legend_below(figure, axes)
        figure.draw_without_rendering()
    label, page = axes.yaxis.label.get_window_extent(), figure.bbox
    assert page.y0 <= label.y0 < label.y1 <= page.y1
    assert axes.get_window_extent().height > page.width / 4
