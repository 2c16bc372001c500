"""What the page is made of."""

from __future__ import annotations

import hashlib
import re

from leco.cli.watch.server import FILES
from support.paths import ROOT

PAGE = ROOT / "leco" / "cli" / "watch" / "page"
UPLOT = {  # of uplot-1.6.32.tgz of the npm registry
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def test_uplot_is_as_its_authors_published_it() -> None:
    assert {name: hashlib.sha256((PAGE / "uplot" / name).read_bytes()).hexdigest() for name in UPLOT} == UPLOT


def test_everything_is_served_that_is_there_and_nothing_is_from_elsewhere() -> None:
    there = {str(path.relative_to(PAGE)) for path in PAGE.rglob("*") if path.is_file()}
    assert {name for name, _ in FILES.values()} == there - {"uplot/LICENSE", "uplot/README.md"}
    for name in there - {f"uplot/{each}" for each in UPLOT} - {"uplot/README.md"}:
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", (PAGE / name).read_text())
        assert set(found) <= {"http://www.w3.org"}, name  # the name of a namespace, which nobody asks for
