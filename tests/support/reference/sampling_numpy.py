"""Systematic sampling, mark by mark."""

from __future__ import annotations


def hits(weights: list[float], size: int, offset: float) -> list[int]:
    """How often each row is hit."""
    found = [0] * len(weights)
    total = sum(weights)
    for k in range(size):
        mark, passed = (k + offset) * total / size, 0.0
        for row, weight in enumerate(weights):
            passed += weight
            if mark < passed:
                found[row] += 1
                break
    return found
