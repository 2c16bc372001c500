"""Words for people: the name that was most likely meant, and how many there are of something."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """So many of a noun: 1 run, 2 runs."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def did_you_mean(word: str, names: Iterable[str], otherwise: str) -> str:
    """A question that names the nearest, in whatever case it was typed; if none is near, what is said instead."""
    found = nearest(word, names)
    return otherwise if found is None else f"did you mean {found!r}?"


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that differs by its case or by a slip; None if none does."""
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), lower, n=1)
    return lower[near[0]] if near else None
