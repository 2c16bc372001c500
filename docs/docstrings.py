# ruff: noqa: INP001 # an extension of griffe for the site, no package
"""Docstrings on the site: columns of names and meanings, as leco's docstrings have them, become lists.

rho_TB   the clipped importance weight, which ...      ->      - `rho_TB`: the clipped importance weight, which ...
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"(?P<name>[^\s|`-](?:\S| (?! ))*) {2,}(?P<meaning>\S.*)")


class Columns(griffe.Extension):
    """Rewrites each paragraph that begins with a name, two spaces or more, and a meaning."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object once it is loaded."""
        if obj.docstring:
            paragraphs = re.split(r"\n{2,}", obj.docstring.value)
            obj.docstring.value = "\n\n".join(map(_as_list, paragraphs))


def _as_list(paragraph: str) -> str:
    """A list, if the paragraph is columns at the margin; otherwise what it was."""
    items: list[str] = []
    for line in paragraph.split("\n"):
        entry = _ENTRY.fullmatch(line)
        if entry:
            items.append(f"- `{entry['name']}`: {entry['meaning']}")
        elif items and line.startswith(" "):
            items[-1] += f" {line.strip()}"
        else:
            return paragraph
    return "\n".join(re.sub(r" {2,}", " ", item) for item in items)
