"""The page's template, and how it words numbers."""

from __future__ import annotations

import math
import re
from importlib import resources
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from leco.telemetry.timing import clock

if TYPE_CHECKING:
    from leco.report.results import Row
    from leco.report.statistics import Estimate


def page_template() -> Template:
    """The page, to be filled in; what is filled in is escaped."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {"percent": _percent, "number": _number, "count": _count, "gigabytes": _gigabytes}
    environment.filters |= {"duration": _duration, "rate": _rate, "code": _code, "median": _median}
    return environment.from_string(resources.files("leco.report").joinpath("page.html").read_text())


def _code(text: str) -> Markup:
    """Words between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704  # escaped


def _percent(row: Row, name: str) -> str:
    return _told(row, name, 100, 1, " %")


def _number(row: Row, name: str) -> str:
    return _told(row, name, 1, 3, "")


def _told(row: Row, name: str, scale: float, digits: int, unit: str) -> str:
    """The mean, and its interval; of two seeds, both."""
    estimate: Estimate = getattr(row, name)
    if not math.isfinite(estimate.value):
        return "-"

    def digit(value: float) -> str:
        return f"{scale * value:.{digits}f}"

    text = f"{digit(estimate.value)}{unit}"
    if math.isfinite(estimate.low):
        return f"{text} ({digit(estimate.low)} to {digit(estimate.high)})"
    return f"{text} ({' and '.join(map(digit, row.each[name]))})" if len(row.each[name]) == 2 else text


def _median(row: Row, name: str) -> str:
    """When 90 % was reached, and by how many of the seeds if not by all."""
    value: float | None = getattr(row, name)
    text = "-"
    if value is not None:
        text = _duration(value) if name == "seconds_to_90" else f"{value:,.0f}"
    some = len(row.each[name])
    return f"{text} ({some} of {len(row.seeds)})" if 0 < some < len(row.seeds) else text


def _count(ends: tuple[float, float]) -> str:
    if not math.isfinite(ends[0]):
        return "-"
    return " to ".join(f"{each:,.0f}" for each in sorted(set(ends)))


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:.0f} GB"


def _duration(seconds: float) -> str:
    return clock(seconds) if math.isfinite(seconds) else "-"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "-"
