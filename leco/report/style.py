"""How figures look: colours that colour-blind readers can tell apart, and ink that follows the page's light or dark."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib as mpl

from leco.checkpoint.atomic_file import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its black and yellow, and two that keep apart from it; then the same with other dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F6FB8")
DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
REWARD_COLOURS = {"r_ep": "#0072B2", "r_ta": "#D55E00", "r_i": "#777777"}
INK = "#1d2327"  # text and axes; in a page it becomes the colour of the text around it
PANEL = (4.8, 3.3)  # inches: as wide as a phone shows without making the letters too small
LEGEND_ROWS, LEGEND_ROW = 2, 0.2  # rows of a legend that a panel has room for; inches that each of the others adds
DPI = 150


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure, and what the page says about it.

    name     of its files
    title    above it
    alt      for those who cannot see it: what it shows, and what there is to see
    """

    name: str
    title: str
    alt: str
    figure: Figure


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Figures that are made and saved within look the same."""
    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    settings = {
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.grid": True,
        "grid.alpha": 0.18,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "figure.constrained_layout.use": True,
        "svg.fonttype": "none",  # letters stay letters: they can be searched, read aloud and take the page's ink
        **dict.fromkeys(ink, INK),
    }
    with mpl.rc_context(settings):  # type: ignore[arg-type]  # its keys are literals
        yield


def colour(index: int) -> str:
    """Of the line of this number."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str | tuple[float, tuple[float, ...]]:
    """Of the line of this number: another one for each, so that colour is not all that tells them apart."""
    return DASHES[(index + index // len(COLOURS)) % len(DASHES)]


def legend_below(figure: Figure, axes: Axes) -> None:
    """A legend under the axes, where it hides no line."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        letters = 66 * figure.get_figwidth() / PANEL[0]  # that fit in a line, and a sample of each line takes six
        columns = max(1, min(int(letters // (max(map(len, labels)) + 6)), len(labels)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        rows = -(-len(labels) // columns)
        figure.set_figheight(figure.get_figheight() + LEGEND_ROW * max(0, rows - LEGEND_ROWS))


def save_png(figure: Figure, path: Path) -> None:
    """Puts a picture in place, whole or not at all. Within `styled`."""
    atomic_write(path, _png(figure))


def _png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI, facecolor="white")
    return picture.getvalue()


def save(panel: Panel, folder: Path) -> str:
    """Writes NAME.png and NAME.svg, without waiting for the disk: there are many. Within `styled`.

    Returns:
        The SVG as a part of a page: its ink is that of the text around it, and its width that of its place.
    """
    panel.figure.draw_without_rendering()
    panel.figure.set_layout_engine(
        "none"
    )  # it is laid out now; doing it again for each file would take most of the time
    (folder / f"{panel.name}.png").write_bytes(_png(panel.figure))
    vectors = io.BytesIO()
    # Equal figures give equal files, and the ids of two figures in one page differ.
    with mpl.rc_context({"svg.hashsalt": panel.name}):
        panel.figure.savefig(vectors, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    (folder / f"{panel.name}.svg").write_bytes(vectors.getvalue())
    return _part_of_page(vectors.getvalue().decode(), panel)


def _part_of_page(svg: str, panel: Panel) -> str:
    svg = svg[svg.index("<svg") :]
    head, _, rest = svg.partition(">")
    head = re.sub(r' (width|height|xmlns:xlink|version)="[^"]*"', "", head)
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    svg = f"{head}>{rest}".replace(INK, "currentColor").replace("xlink:href", "href")
    # Ids are unique in a page. Equal pictures in a figure have the same, and nothing refers to them.
    svg = re.sub(r'(<image [^>]*?) id="[^"]*"', r"\1", svg)
    svg = re.sub(r'id="([^"]+)"', rf'id="{panel.name}.\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{panel.name}.", svg)
    return svg.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)


def ids(labels: Sequence[str]) -> dict[str, str]:
    """Words that can be part of a file's name and of an id."""
    return {label: re.sub(r"[^A-Za-z0-9._=+-]+", "-", label) for label in labels}
