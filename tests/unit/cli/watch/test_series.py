"""Curves of any length: the file's own numbers while they are few, then means between their lowest and highest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leco.cli.watch.series import Series

RANDOM = np.random.default_rng(0)


def page(series: Series, told: list[tuple[int, int]], shown: dict[str, Any]) -> None:
    """Does what the page does with what is new."""
    lines, stride = told[-1] if told else (0, 0)
    new = series.since(lines, stride)
    told.append((series.lines, series.stride))
    if new["first"] == 0:
        shown.clear()
    for name, kinds in new["columns"].items():
        for kind, values in kinds.items():
            before = shown.setdefault(name, {}).get(kind, [])[: new["first"]]
            before += [None] * (new["first"] - len(before))
            shown[name][kind] = before + values


def test_few_lines_are_shown_as_they_are() -> None:
    series = Series(("frames", "return", "nothing"), most=8)
    series.add(np.array([[100, 0.123456, np.nan], [200, np.nan, np.nan], [300, np.inf, np.nan]]))
    assert series.since(0, 1) == {
        "first": 0,
        "stride": 1,
        "columns": {"frames": {"mean": [100, 200, 300]}, "return": {"mean": [0.123456, None, None]}},
    }
    assert series.last["frames"] == 300


def test_only_what_is_new_is_told() -> None:
    series = Series(("frames", "return"), most=100)
    series.add(np.array([[1.0, 0.5], [2.0, 0.5]]))
    series.add(np.array([[3.0, 0.75]]))
    assert series.since(2, 1) == {
        "first": 2,
        "stride": 1,
        "columns": {"frames": {"mean": [3]}, "return": {"mean": [0.75]}},
    }


@pytest.mark.parametrize("block", [1, 3, 64, 5000])
def test_many_lines_become_means_between_lowest_and_highest_and_the_page_ends_with_the_same(block: int) -> None:
    count, most = 5000, 32
    frames_N, noise_N = np.arange(1, count + 1) * 1536.0, RANDOM.normal(size=count)
    noise_N[RANDOM.random(count) < 0.1] = np.nan
    series = Series(("frames", "noise"), most)
    shown: dict[str, Any] = {}
    told: list[tuple[int, int]] = []
    for begin in range(0, count, block):
        series.add(np.stack([frames_N, noise_N], 1)[begin : begin + block])
        page(series, told, shown)
    stride = 256  # the smallest power of two with at most `most` points: 20
    assert series.stride == stride
    for point in range(20):
        part = slice(point * stride, (point + 1) * stride)
        assert shown["frames"]["mean"][point] == frames_N[part][-1]
        assert shown["noise"]["mean"][point] == pytest.approx(np.nanmean(noise_N[part]), rel=1e-5)
        assert shown["noise"]["low"][point] == pytest.approx(np.nanmin(noise_N[part]), rel=1e-5)
        assert shown["noise"]["high"][point] == pytest.approx(np.nanmax(noise_N[part]), rel=1e-5)
    assert len(shown["frames"]["mean"]) == len(shown["noise"]["mean"]) == 20


def test_memory_does_not_grow_and_large_frames_stay_exact() -> None:
    series = Series(("frames", "r"), most=16)
    for begin in range(0, 200_000, 1000):
        rows = np.arange(begin, begin + 1000)
        series.add(np.stack([rows * 1536.0, rows % 7], 1))
    new = series.since(0, 0)
    assert 8 <= len(new["columns"]["r"]["mean"]) <= 16
    assert new["columns"]["frames"]["mean"][-1] == 199_999 * 1536  # nine digits
    assert set(new["columns"]["r"]["low"]) == {0}
    assert set(new["columns"]["r"]["high"]) == {6}
