"""Which mean return is a record, and how long."""

from __future__ import annotations

import pytest

from services.learner.best_return import BestReturn


def records(means: list[float], best: BestReturn | None = None, episodes: int = 100) -> list[bool]:
    """Of means that so many episodes lie between."""
    best = best or BestReturn()
    return [best.beaten(mean, episodes * (i + 1)) for i, mean in enumerate(means)]


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([0.5, 0.4, 0.5, 0.6], [True, False, True, True]),  # 0.5 was 0.4 in the hundred after it
        ([0.5, 0.7, 0.9, 0.95, 0.3, 0.89, 0.91], [True, True, True, True, False, False, True]),
        ([10.0, 0.5, 0.6], [True, False, True]),  # a lie
        ([10.0, 10.0, 0.5, 0.6], [True, False, False, False]),  # two hundreds of lies
        ([-5.0, -6.0, -5.5], [True, False, True]),
    ],
)
def test_a_record_stands_as_high_as_the_hundred_after_it(means: list[float], expected: list[bool]) -> None:
    assert records(means) == expected


def test_it_takes_a_hundred_episodes_to_disprove_a_record() -> None:
    assert records([0.9, 0.1, 0.2, 0.3, 0.4], episodes=40) == [True, False, False, False, True]


def test_a_record_goes_on_over_a_restart() -> None:
    assert records([0.8], BestReturn(0.9)) == [False]
    assert records([0.7, 0.75], BestReturn(0.9, 0.6)) == [False, True]
    assert records([0.5, 0.55], BestReturn(0.9, 0.6)) == [False, False]
