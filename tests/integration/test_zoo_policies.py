"""Every policy of the zoo still solves its task: enough fresh levels to notice that it, or how leco plays, is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from leco.cli import zoo
from leco.envs.registry import find_task
from leco.evaluation.rollout import evaluate
from leco.evaluation.trained import build_networks, read_experiment, trained_state
from leco.evaluation.zoo import ZOO, find_entries, read_entry
from support.paths import ROOT
from support.zoo_case import STANDS, WALKS, saved_run

if TYPE_CHECKING:
    from pathlib import Path

LEVELS, LEAST = 30, 0.8
MOST_BYTES = 30_000_000
ENTRIES = find_entries(ROOT / ZOO)
each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def share_solved(entry: Path, *, trained: bool = True) -> float:
    """Of fresh levels, by the entry's policy or by one of the same kind that nobody trained."""
    torch.manual_seed(0)
    policy = trained_state(entry, "newest").policy if trained else build_networks(read_experiment(entry)).policy
    task = find_task(read_experiment(entry).task)
    return float(np.mean(evaluate(policy, task, episodes=LEVELS, seed=1, greedy=False).solved_N))


@each_entry
def test_an_entry_solves_its_task(entry: Path) -> None:
    assert share_solved(entry) >= LEAST


@each_entry
def test_an_untrained_policy_would_not_pass(entry: Path) -> None:
    assert share_solved(entry, trained=False) < LEAST


@each_entry
def test_an_entry_says_what_it_is(entry: Path) -> None:
    found = read_entry(entry)
    assert found.success is not None
    assert found.success >= LEAST
    assert found.episodes >= 100
    assert found.learned is not None
    assert 0 < found.learned.frames <= found.frames


def test_the_zoo_is_small() -> None:
    assert sum(read_entry(entry).size for entry in ENTRIES) < MOST_BYTES


def test_the_check_tells_a_policy_that_works_from_one_that_does_not(tmp_path: Path) -> None:
    for name, bias in (("walks", WALKS), ("stands", STANDS)):
        run = saved_run(tmp_path / name, bias=bias, solved=97)
        zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(run), f"--name={name}"])
    stands, walks = find_entries(tmp_path / "zoo")
    assert share_solved(walks) >= LEAST
    assert share_solved(stands) < LEAST
    assert share_solved(walks, trained=False) < LEAST
