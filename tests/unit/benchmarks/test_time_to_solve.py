"""What `benchmarks/time_to_solve.py` runs, keeps and says; not the trainings themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import time_to_solve
from time_to_solve import ENVPOOL, EXACT, FACTORY, LECO, SB3, TASKS, Job, arguments, command, jobs, keep
from time_to_solve_table import Least, Run, median, read_runs, solve_table

if TYPE_CHECKING:
    from pathlib import Path


def made(contestant: str, seed: int, seconds: float | None, *, cpu: float = 10.0, budget: float = 600.0) -> Run:
    success = 0.9 if seconds is not None else 0.25
    return Run("DoorKey-8x8", contestant, seed, budget, seconds, cpu, 100_000, success, 0.5, "2026-11-20 08:00")


def test_runs_come_back_from_the_file_as_they_were(tmp_path: Path) -> None:
    runs = [made(LECO, 1, 20.25), made(EXACT, 1, None, cpu=599.5)]
    for run in runs:
        keep(tmp_path / "runs.csv", run)
    assert read_runs(tmp_path / "runs.csv") == runs


def test_of_a_run_that_was_made_again_the_last_one_counts(tmp_path: Path) -> None:
    for run in (made(LECO, 1, None, budget=60.0), made(LECO, 1, 90.0, budget=120.0)):
        keep(tmp_path / "runs.csv", run)
    assert [run.seconds for run in read_runs(tmp_path / "runs.csv")] == [90.0]


def test_no_file_is_no_runs(tmp_path: Path) -> None:
    assert read_runs(tmp_path / "runs.csv") == []


def test_a_row_has_medians_each_seed_and_ratios_of_the_same_seed() -> None:
    runs = [
        *(made(LECO, seed, seconds, cpu=2 * seconds) for seed, seconds in ((1, 10.0), (2, 20.0), (3, 40.0))),
        *(made(SB3, seed, seconds, cpu=seconds) for seed, seconds in ((3, 120.0), (1, 100.0), (2, 80.0))),
    ]
    _, rows = solve_table(runs, LECO)
    assert rows[0][:5] == (LECO, "20 (10, 20, 40)", "1.0 (1.0 to 1.0)", "40 (20, 40, 80)", "1.0 (1.0 to 1.0)")
    assert rows[1][:5] == (SB3, "100 (100, 80, 120)", "4.0 (3.0 to 10.0)", "100 (100, 80, 120)", "2.0 (1.5 to 5.0)")
    assert rows[1][-1] == "-"


def test_who_was_not_there_by_the_end_of_the_budget_is_slower_than_that() -> None:
    runs = [made(LECO, 1, 20.0), made(LECO, 2, 20.0), made(SB3, 1, None), made(SB3, 2, 100.0)]
    _, (_, row) = solve_table(runs, LECO)
    assert row[1] == "> 350 (> 600, 100)"
    assert row[2] == "> 17.5 (5.0 to > 30.0)"
    assert row[-1] == "25% at best"


def test_without_a_run_of_leco_there_is_no_ratio() -> None:
    _, rows = solve_table([made(LECO, 1, None), made(SB3, 1, 100.0)], LECO)
    assert [row[2] for row in rows] == ["-", "-"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(1.0, True), (2.0, True), (9.0, False)], (2.0, True)),
        ([(1.0, True), (2.0, False), (9.0, True)], (2.0, False)),
        ([(1.0, False), (2.0, True), (9.0, True)], (2.0, False)),
        ([(1.0, True), (2.0, False)], (1.5, False)),
    ],
)
def test_a_median_is_exact_only_if_nothing_below_it_could_be_above(
    values: list[tuple[float, bool]], expected: tuple[float, bool]
) -> None:
    assert median([Least(*each) for each in values]) == expected


def test_seed_after_seed_runs_what_has_not_been_run() -> None:
    done = [made(LECO, 1, 20.0), made(SB3, 2, None, budget=600.0)]
    assert jobs(["DoorKey-8x8"], [LECO, SB3], 2, done, 600.0) == [
        Job("DoorKey-8x8", SB3, 1),
        Job("DoorKey-8x8", LECO, 2),
    ]


def test_who_was_not_there_runs_again_with_a_larger_budget_only() -> None:
    done = [made(LECO, 1, 20.0), made(SB3, 1, None, budget=600.0)]
    assert jobs(["DoorKey-8x8"], [LECO, SB3], 1, done, 601.0) == [Job("DoorKey-8x8", SB3, 1)]
    assert jobs(["DoorKey-8x8"], [LECO, SB3], 1, done, 599.0) == []


def test_tasks_that_are_not_the_same_are_left_out() -> None:
    left = jobs(TASKS, [ENVPOOL], 1, [], 600.0)
    assert [job.task for job in left] == ["DoorKey-8x8", "KeyCorridorS3R3"]


def test_leco_runs_as_its_user_would_start_it(tmp_path: Path) -> None:
    words = command(Job("DoorKey-8x8", LECO, 3), tmp_path)
    assert words[3:8] == ["leco", "train", "--task", "DoorKey-8x8", "--until"]
    assert "--method" not in words
    assert command(Job("DoorKey-8x8", EXACT, 3), tmp_path)[: len(words)] == words


def test_a_rival_may_be_given_flags_for_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_to_solve, "install", lambda *_: None)
    given = arguments(["--contestants", f"{ENVPOOL} --epochs 2 --alpha 0.01"])
    words = command(Job("DoorKey-8x8", given.contestants[0], 3), tmp_path)
    assert words[-8:] == ["--task", "DoorKey-8x8", "--seed", "3", "--epochs", "2", "--alpha", "0.01"]
    assert jobs(["MultiRoom-N6"], given.contestants, 1, [], 600.0) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "0"], "--seeds and --budget must be more than 0"),
        (["--budget", "-1"], "--seeds and --budget must be more than 0"),
        (["--contestants", "Sample Factory AAPO"], f"did you mean '{FACTORY}'"),
        (["--contestants", "nobody"], "there are: leco; "),
    ],
)
def test_mistakes_are_said_in_a_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
