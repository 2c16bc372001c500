"""Numbers about few runs: by hand, against naive ones, and at their limits."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from leco.report.statistics import GRID, interquartile_mean, mean_interval, over_seeds, stratified, wilson


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    assert interquartile_mean([9, 1, 2, 3]) == 2.5
    assert interquartile_mean([0, 0, 1, 2, 3, 4, 100, 1000]) == 2.5
    scores = np.random.default_rng(0).normal(size=40)
    assert interquartile_mean(scores) == pytest.approx(statistics.fmean(sorted(scores)[10:30]))


def test_the_stratified_interval_against_a_naive_bootstrap() -> None:
    random = np.random.default_rng(3)
    tasks = [random.uniform(0, 0.4, 5).tolist(), random.uniform(0.5, 1, 8).tolist()]
    found = stratified(tasks)
    assert found == stratified(tasks), "the same draws every time"
    means = []
    for _ in range(4000):
        drawn = sorted(x for task in tasks for x in random.choice(task, len(task)))
        cut = len(drawn) // 4
        means.append(statistics.fmean(drawn[cut : len(drawn) - cut]))
    assert found.value == pytest.approx(interquartile_mean(tasks[0] + tasks[1]))
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(means, (2.5, 97.5))), abs=0.03)
    assert found.low < found.value < found.high


def test_few_runs_of_a_task_have_no_interval() -> None:
    found = stratified([[0.2], [0.4, 0.9]])
    assert found.value == pytest.approx(0.5)  # a quarter of three is none
    assert math.isnan(found.low)
    assert math.isnan(stratified([]).value)


def test_students_interval_of_three_seeds() -> None:
    found = mean_interval([1.0, 2.0, 4.0])
    half = 4.302653 * statistics.stdev([1, 2, 4]) / math.sqrt(3)
    assert (found.value, found.low, found.high) == pytest.approx((7 / 3, 7 / 3 - half, 7 / 3 + half), rel=1e-6)
    assert mean_interval([1.0, 3.0, math.nan])[0] == 2.0
    assert math.isnan(mean_interval([1.0, 3.0]).low), "two seeds say next to nothing"
    assert math.isnan(mean_interval([]).value)


def test_long_curves_are_thinned_and_stay_where_they_were() -> None:
    x = np.arange(10_000, dtype=float)
    line = over_seeds([(x, x / 2), (x, x / 2 + 2)])
    assert len(line.x) == GRID
    assert (line.x[0], line.x[-1]) == (0, 9999)
    np.testing.assert_allclose(line.mean, line.x / 2 + 1)
    np.testing.assert_allclose(line.deviation, math.sqrt(2))


def test_curves_that_do_not_overlap_have_no_mean() -> None:
    line = over_seeds(
        [(np.array([1.0, 2.0]), np.zeros(2)), (np.array([3.0, 4.0]), np.zeros(2)), (np.empty(0), np.empty(0))]
    )
    assert len(line.x) == 0


def test_wilson_against_known_values() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)
