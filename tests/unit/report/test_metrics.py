"""When a run had learned its task, as metrics.csv tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leco.report.metrics import Reached, best_success, columns, median_reached, read_table, when_reached

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEAD = ("frames", "seconds", "episodes", "success")
LEARNS = (
    (1000, 2.5, 20, 1.0),  # of few episodes
    (2000, 5.0, 99, 0.95),
    (3000, 7.5, 150, 0.89),
    (4000, 10.0, 200, 0.9),
    (5000, 12.5, 250, 0.4),
    (6000, 15.0, 300, 0.97),
)


def written(path: Path, lines: Sequence[Sequence[object]], head: Sequence[str] = HEAD) -> Path:
    path.write_text("".join(",".join(map(str, line)) + "\n" for line in (head, *lines)))
    return path


def test_the_first_line_over_a_hundred_episodes_counts(tmp_path: Path) -> None:
    table = read_table(written(tmp_path / "metrics.csv", LEARNS))
    assert when_reached(table) == Reached(0.9, 4000, 10.0)
    assert when_reached(table, 0.91) == Reached(0.97, 6000, 15.0)
    assert when_reached(table, 0.89) == Reached(0.89, 3000, 7.5)
    assert when_reached(table, 0.98) is None


def test_how_near_it_came(tmp_path: Path) -> None:
    table = read_table(written(tmp_path / "metrics.csv", [*LEARNS[:3], (3500, 8.0, 170, ""), (3600, 9.0, 180, 0.89)]))
    assert when_reached(table) is None
    assert best_success(table) == Reached(0.89, 3000, 7.5), "the first of two"
    assert best_success(read_table(written(tmp_path / "metrics.csv", LEARNS[:2]))) is None


def test_files_that_do_not_tell(tmp_path: Path) -> None:
    assert read_table(tmp_path / "metrics.csv") == {}
    for table in ({}, columns([]), columns([{}])):
        assert (when_reached(table), best_success(table)) == (None, None)
    old = read_table(written(tmp_path / "metrics.csv", [(100, 1.0)], ("frames", "success")))
    assert when_reached(old) is None, "nobody knows of how many episodes"
    broken = [("x", 1, 100, 1.0), (100, 1, "many", 1.0), (200, 2, 100, "nan"), (300, 3, 100, "inf"), (400, 4, 100, 0.9)]
    assert when_reached(read_table(written(tmp_path / "metrics.csv", broken))) == Reached(0.9, 400, 4.0)


@pytest.mark.parametrize(
    ("values", "median"),
    [
        ([30, 10, 20], 20),
        ([10, 20], 15),
        ([10, None, 20], 20),
        ([None, 10, 20, 30], 25),
        ([10, None], None),
        ([10, None, None], None),
        ([None], None),
        ([], None),
    ],
)
def test_a_seed_that_never_got_there_is_later_than_all_others(
    values: Sequence[float | None], median: float | None
) -> None:
    assert median_reached(values) == median
