"""Numbers about few runs, with how sure one can be of them."""

from __future__ import annotations

import math

Z = 1.959964  # of 95 %


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: sensible also near 0 and 1."""
    share, z2 = successes / count, Z * Z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(centre - half, 0.0), min(centre + half, 1.0)
