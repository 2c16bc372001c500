"""How much memory something takes at its peak."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def peak_bytes(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        result = action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        del result
