"""Which mean return is a record, and how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leco.envs.registry import find_task
from services.learner.__main__ import _best
from services.learner.best_return import NONE, BestReturn
from services.learner.checkpoints import Checkpoints

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("metadata", "record", "confirmed"),
    [
        ({}, NONE, NONE),
        ({"best_return": 0.9}, 0.9, 0.9),  # from before there was more to say
        ({"best_return": 0.9, "last_version": 7}, 0.9, NONE),
        ({"best_return": 0.9, "confirmed_return": 0.5, "last_version": 7}, 0.9, 0.5),
        ({"best_return": 3e38}, NONE, NONE),  # the task cannot pay that
    ],
)
def test_a_record_is_in_the_checkpoint_and_ends_with_its_file(
    tmp_path: Path, metadata: dict[str, Any], record: float, confirmed: float
) -> None:
    checkpoints, task = Checkpoints(tmp_path, keep=1), find_task("Empty-5x5")
    checkpoints.best.touch()
    best = _best(checkpoints, metadata, task)
    assert (best.record, best.confirmed) == (record, confirmed)
    checkpoints.best.unlink()
    assert _best(checkpoints, metadata, task).record == NONE
