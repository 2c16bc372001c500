"""The memory store's counts."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from services.hashcount.count_arena import Visits


def add(visits: Visits, places: list[int], times: list[int]) -> list[int]:
    before: list[int] = visits.add(np.array(places, np.uint32), np.array(times)).tolist()
    return before


def test_counts_go_on_until_they_are_released() -> None:
    visits = Visits()
    visits.grow()
    assert add(visits, [3, 7], [1, 2]) == [0, 0]
    assert add(visits, [7, 9], [5, 1]) == [2, 0]
    assert add(visits, [9, 7, 3], [0, 0, 0]) == [1, 7, 1]
    visits.release([7, 3])
    assert add(visits, [3, 7, 9], [0, 0, 0]) == [0, 0, 1]


def test_a_count_stays_at_the_largest() -> None:
    visits = Visits()
    visits.grow()
    add(visits, [3, 4], [2**32 - 3, 2**32 - 1])
    assert add(visits, [3, 4], [65_535, 1]) == [2**32 - 3, 2**32 - 1]
    assert add(visits, [3, 4], [2, 2]) == [2**32 - 1, 2**32 - 1]


def test_growing_keeps_counts_and_makes_new_places_but_never_place_0() -> None:
    visits = Visits()
    visits.grow()
    place = visits.free.pop()
    add(visits, [place], [2])
    for _ in range(5):
        visits.grow()
    assert len(visits.free) == 6 * Visits.STEP - 2 == len({*visits.free})
    assert {0, place}.isdisjoint(visits.free)
    assert add(visits, [place, max(visits.free)], [0, 0]) == [2, 0]


@pytest.mark.parametrize("grown", [1, 3, 8])
def test_places_take_no_more_memory_than_is_reckoned(grown: int) -> None:
    tracemalloc.start()
    visits = Visits()
    for _ in range(grown):
        visits.grow()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= grown * Visits.STEP * Visits.PLACE_BYTES
