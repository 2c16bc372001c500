"""Numbers about few runs, with how sure one can be of them.

S  seeds
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.report.metrics import Column

Z = 1.959964  # of 95 %
RESAMPLES = 2000
FEWEST = 3  # runs for an interval: two say next to nothing
GRID = 400  # points of a mean over seeds at most; a picture shows no more


class OverSeeds(NamedTuple):
    """Mean and standard deviation of curves at the same places; the deviation of a single one is 0."""

    x: Column
    mean: Column
    deviation: Column


class Estimate(NamedTuple):
    """A number and the ends of its 95 % interval, which are nan if nothing can be said."""

    value: float
    low: float
    high: float


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: sensible also near 0 and 1."""
    share, z2 = successes / count, Z * Z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def over_seeds(curves: Sequence[tuple[Column, Column]]) -> OverSeeds:
    """Curves in one, where all have begun and not ended; between points they are straight. Those without points are left out.

    The deviation is that of a sample (divided by S - 1).
    """
    there = [curve for curve in curves if len(curve[0])]
    if not there:
        return OverSeeds(*np.empty((3, 0)))
    begin, end = max(x[0] for x, _ in there), min(x[-1] for x, _ in there)
    every = np.unique(np.concatenate([x for x, _ in there]))
    grid = every[(begin <= every) & (every <= end)]
    if len(grid) > GRID:
        grid = np.linspace(grid[0], grid[-1], GRID)
    values = np.stack([np.interp(grid, *curve) for curve in there])
    deviation = values.std(0, ddof=1) if len(there) > 1 else np.zeros(len(grid))
    return OverSeeds(grid, values.mean(0), deviation)


def interquartile_mean(scores: npt.ArrayLike, axis: int = -1) -> Any:
    """The mean of the middle half of all runs: neither a lucky nor a failed run decides it."""
    from scipy.stats import trim_mean  # noqa: PLC0415  # slow to import, and not needed by those that only want a share

    return trim_mean(scores, 0.25, axis=axis)


def stratified(tasks: Sequence[Sequence[float]]) -> Estimate:
    """The interquartile mean of the runs of several tasks, and its percentile bootstrap interval.

    Runs are drawn again within each task, so that each keeps its weight; the same draws every time. Without three runs of each
    task there is no interval.

    Args:
        tasks: Of each task, the scores of its runs.
    """
    from scipy.stats import bootstrap  # noqa: PLC0415  # see above

    samples = [np.asarray(scores, float) for scores in tasks if len(scores)]
    if not samples:
        return Estimate(math.nan, math.nan, math.nan)
    value = float(interquartile_mean(np.concatenate(samples)))
    if any(len(sample) < FEWEST for sample in samples):
        return Estimate(value, math.nan, math.nan)

    def statistic(*drawn: npt.NDArray[np.float64], axis: int) -> Any:
        return interquartile_mean(np.concatenate(drawn, axis=axis), axis=axis)

    found = bootstrap(
        samples, statistic, n_resamples=RESAMPLES, vectorized=True, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return Estimate(value, float(found.low), float(found.high))


def mean_interval(scores: Sequence[float]) -> Estimate:
    """The mean over seeds with Student's 95 % interval; of fewer than three only the mean."""
    from scipy.stats import t  # noqa: PLC0415  # see above

    values = np.asarray([each for each in scores if math.isfinite(each)], float)
    if not len(values):
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    if len(values) < FEWEST:
        return Estimate(mean, math.nan, math.nan)
    half = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half)


def human_normalised(score: float, random: float, human: float) -> float:
    """A score in per cent of the way from random play (0) to a person's (100): 100 (score - random) / (human - random).

    Args:
        score: A mean return, of the task's own rewards.
        random: The mean return of random play.
        human: The mean return of people.

    Raises:
        ValueError: random and human are the same; there is no way between them.
    """
    if random == human:
        raise ValueError(f"random play and people both score {human:g}, so nothing can be compared with them")
    return 100.0 * (score - random) / (human - random)
