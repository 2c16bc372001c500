"""Waiting for a condition, never for a guess at speed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds that nothing here takes on any machine that still works: to reach it is a failure. It is the patience of every wait,
# every start of a process and every call in these tests.
PATIENCE = 480.0


def until(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s"
        time.sleep(0.01)
