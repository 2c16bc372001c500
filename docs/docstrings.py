# ruff: noqa: INP001 # an extension of griffe for the site, no package
"""Docstrings on the site: columns of names and meanings, as leco's docstrings have them, become lists.

rho_TB   the clipped importance weight, which ...      ->      - `rho_TB`: the clipped importance weight, which ...
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"(?P<name>[^\s|`-](?:\S| (?! ))*) {2,}(?P<meaning>\S.*)")
_AXIS = re.compile(
    r" {3,}(?=[A-Z](?:\.{3})?(?:, [A-Z])* {2,}\S)"
)  # the next entry, where several are on a line: T ...   B ...
_RETURNS = re.compile(r"(?<=^Returns:\n    )(?=\S* [^:\n]*:)", re.MULTILINE)


class Columns(griffe.Extension):
    """Rewrites each paragraph that begins with a name, two spaces or more, and a meaning."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object once it is loaded."""
        if not obj.docstring:
            return
        text = "\n\n".join(map(_as_list, re.split(r"\n{2,}", obj.docstring.value)))
        if isinstance(obj, griffe.Function):  # what is before a colon would be taken for the type
            text = _RETURNS.sub(lambda _: f"{obj.returns}: ", text)
        obj.docstring.value = text


def _as_list(paragraph: str) -> str:
    """A list, if the paragraph is columns at the margin; otherwise what it was."""
    items: list[str] = []
    for line in paragraph.split("\n"):
        entries = [_ENTRY.fullmatch(each) for each in _AXIS.split(line)]
        if all(entries):
            items += [f"- `{entry['name']}`: {entry['meaning']}" for entry in entries if entry]
        elif items and line.startswith(" "):
            items[-1] += f" {line.strip()}"
        else:
            return paragraph
    return "\n".join(re.sub(r" {2,}", " ", item) for item in items)
