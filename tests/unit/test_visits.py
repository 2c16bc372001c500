"""Counting for a whole request at once, against counting one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.hashcount.visits import Visits, occurrence

PLACES = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 5), max_size=60)


def naive_occurrence(values: list[int]) -> list[int]:
    return [values[: i + 1].count(value) for i, value in enumerate(values)]


def test_occurrence_by_hand() -> None:
    assert occurrence(np.array([7, 3, 7, 7, 3], np.uint32)).tolist() == [1, 1, 2, 3, 2]


@given(PLACES)
def test_occurrence_equals_counting_one_by_one(values: list[int]) -> None:
    assert occurrence(np.array(values, np.uint32)).tolist() == naive_occurrence(values)


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=5))
def test_visits_go_on_over_requests_until_they_are_released(requests: list[list[int]]) -> None:
    visits = Visits()
    visits.grow()
    seen: list[int] = []
    for request in requests:
        seen += request
        expected = naive_occurrence(seen)[len(seen) - len(request) :]
        assert visits.count(np.array(request, np.uint32)).tolist() == expected
    visits.release(set(seen))
    assert visits.count(np.array(seen, np.uint32)).tolist() == naive_occurrence(seen)


def test_growing_keeps_counts_and_makes_new_places() -> None:
    visits = Visits()
    visits.grow()
    place = visits.free.pop()
    visits.count(np.array([place, place], np.uint32))
    for _ in range(5):
        visits.grow()
    assert len(visits.free) == 6 * Visits.STEP - 1 == len({*visits.free})
    assert place not in visits.free
    assert visits.count(np.array([place, max(visits.free)], np.uint32)).tolist() == [3, 1]


@pytest.mark.parametrize("grown", [1, 3, 8])
def test_places_take_no_more_memory_than_is_reckoned(grown: int) -> None:
    import tracemalloc

    tracemalloc.start()
    visits = Visits()
    for _ in range(grown):
        visits.grow()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= grown * Visits.STEP * Visits.PLACE_BYTES
