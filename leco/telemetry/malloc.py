"""How the process treats memory that it has freed."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 1 << 30
_LARGEST_MAPPED = 32 << 20  # the most that glibc takes here


def keep_freed_memory() -> None:
    """Has glibc keep freed memory for the next update instead of giving it back to the system.

    An update makes and frees the same tensors of some ten megabytes every time. Given back, each of their pages costs a fault
    and a zeroing when it comes again: a fifth of the time of a training step on a CPU. At most 1 GiB is kept, and by all threads
    together: each with an arena of its own would keep its own peak, in pieces that fit nobody else. Elsewhere than on Linux with
    glibc this does nothing. To be called before threads begin.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MAPPED)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_ARENA_MAX, 1)
