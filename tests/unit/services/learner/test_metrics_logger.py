"""The curves: one line after the other, also over crashes and resumes; and the means over the last episodes."""

from __future__ import annotations

import contextlib
import csv
import time
from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # type: ignore[import-untyped]

from leco.types import EpisodeSummary
from services.learner.metrics_logger import COLUMNS, EpisodeStats, MetricsLogger
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def line(updates: int) -> dict[str, float]:
    told = {"frames": 1000 * updates, "updates": updates, "seconds": 2.0 * updates, "return": updates / 3}
    return told | {"episodes": 7 * updates}


def record(folder: Path, resumed: int, updates: Sequence[int]) -> None:
    metrics_logger = MetricsLogger(folder, resumed)
    record_all(metrics_logger, updates)
    metrics_logger.close()


def record_all(metrics_logger: MetricsLogger, updates: Iterable[int]) -> None:
    for each in updates:
        metrics_logger.write(line(each))


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def told(folder: Path) -> list[int]:
    return [int(row["updates"]) for row in rows(folder)]


def test_lines_have_all_columns_and_what_is_not_known_is_empty(tmp_path: Path) -> None:
    record(tmp_path, 0, [1, 2])
    assert told(tmp_path) == [1, 2]
    assert tuple(rows(tmp_path)[0]) == COLUMNS
    assert (rows(tmp_path)[0]["return"], rows(tmp_path)[0]["r_ta"]) == ("0.333333", "")


def test_a_line_is_on_disk_when_it_is_written(tmp_path: Path) -> None:
    metrics_logger = MetricsLogger(tmp_path, 0)
    metrics_logger.write(line(1))
    assert told(tmp_path) == [1]
    metrics_logger.close()


def test_a_resumed_run_cuts_what_came_after_its_checkpoint_and_goes_on(tmp_path: Path) -> None:
    record(tmp_path, 0, [10, 20, 30, 40])
    record(tmp_path, 25, [30, 40])
    assert told(tmp_path) == [10, 20, 30, 40]
    record(tmp_path, 40, [50])
    assert told(tmp_path) == [10, 20, 30, 40, 50]
    record(tmp_path, 0, [])
    assert told(tmp_path) == []


@pytest.mark.parametrize("kept", [1, 5, 12])
def test_a_half_written_last_line_is_dropped(tmp_path: Path, kept: int) -> None:
    record(tmp_path, 0, [10, 20])
    path = tmp_path / "metrics.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:kept])
    record(tmp_path, 20, [30])
    assert told(tmp_path) == [10, 30]


def test_a_run_whose_file_has_other_columns_keeps_its_lines(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(
        "frames,updates,seconds,old_name\n1000,1,2,0.5\n2000,2,4,0.25\n3000,3,6,0.1\n"
    )
    record(tmp_path, 2, [3])
    assert told(tmp_path) == [1, 2, 3]
    assert tuple(rows(tmp_path)[0]) == (*COLUMNS, "old_name")
    assert [row["old_name"] for row in rows(tmp_path)] == ["0.5", "0.25", ""]
    assert [row["return"] for row in rows(tmp_path)] == ["", "", "1"]


def test_a_statistic_that_is_no_listed_column_becomes_one(tmp_path: Path) -> None:
    metrics_logger = MetricsLogger(tmp_path, 0)
    metrics_logger.write(line(1))
    metrics_logger.write(line(2) | {"surprise": 0.5, "doubt": 2.0})
    metrics_logger.write(line(3) | {"doubt": 3.0})
    metrics_logger.close()
    assert tuple(rows(tmp_path)[0]) == (*COLUMNS, "surprise", "doubt")
    assert [(row["updates"], row["surprise"], row["doubt"]) for row in rows(tmp_path)] == [
        ("1", "", ""),
        ("2", "0.5", "2"),
        ("3", "", "3"),
    ]
    record(tmp_path, 2, [4])
    assert [row["surprise"] for row in rows(tmp_path)] == ["", "0.5", ""]


def test_time_goes_on_where_it_stopped(tmp_path: Path) -> None:
    record(tmp_path, 0, [10, 20])
    metrics_logger = MetricsLogger(tmp_path, 10)
    assert 20 <= metrics_logger.seconds < 20 + PATIENCE
    metrics_logger.close()


def test_the_clock_is_that_of_the_command_if_it_is_given(tmp_path: Path) -> None:
    record(tmp_path, 0, [10, 20])
    for updates in (0, 10, 20):  # also after a crash that lost some of it
        zero = time.monotonic() - 70
        metrics_logger = MetricsLogger(tmp_path, updates, clock_zero=zero)
        assert 70 <= metrics_logger.seconds <= time.monotonic() - zero
        metrics_logger.close()


def test_the_last_line_is_known_also_from_before(tmp_path: Path) -> None:
    metrics_logger = MetricsLogger(tmp_path, 0)
    assert metrics_logger.last == {}
    metrics_logger.write(line(10) | {"success": 0.95})
    assert (metrics_logger.last["updates"], metrics_logger.last["success"]) == ("10", "0.95")
    metrics_logger.write(line(20))
    metrics_logger.close()
    again = MetricsLogger(tmp_path, 15)
    assert (again.last["updates"], again.last["success"]) == ("10", "0.95")
    again.close()


def test_episodes_are_counted_on_from_the_last_line_before_the_checkpoint(tmp_path: Path) -> None:
    record(tmp_path, 0, [10, 20])
    metrics_logger = MetricsLogger(tmp_path, 15)
    episodes = EpisodeStats(metrics_logger.episodes)
    episodes.add(1, [EpisodeSummary(1.0, 10, success=True)])
    assert (episodes.total, episodes.full) == (71, False)
    metrics_logger.close()


def test_after_a_resume_there_are_no_means_until_a_hundred_episodes_have_ended_again() -> None:
    episodes = EpisodeStats(70)
    episodes.add(1, [EpisodeSummary(1.0, 10, success=True)] * 99)
    assert episodes.means() == {}
    episodes.add(1, [EpisodeSummary(1.0, 10, success=True)])
    assert (episodes.means()["success"], episodes.total) == (1.0, 170)


def scalars(folder: Path) -> list[int]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [event.step for event in events.Scalars("episode/return")]


def test_tensorboard_shows_the_same_lines(tmp_path: Path) -> None:
    record(tmp_path, 0, [10, 20, 30])
    assert scalars(tmp_path) == [10_000, 20_000, 30_000]
    record(tmp_path, 20, [25, 35])
    assert scalars(tmp_path) == [10_000, 20_000, 25_000, 35_000]


def test_tensorboard_groups_what_belongs_together(tmp_path: Path) -> None:
    metrics_logger = MetricsLogger(tmp_path, 0)
    metrics_logger.write(dict.fromkeys(COLUMNS, 1.0) | {"a_statistic_of_a_method": 1.0})
    metrics_logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found: dict[str, set[str]] = {}
    for tag in events.Tags()["scalars"]:
        group, _, name = tag.partition("/")
        found.setdefault(group, set()).add(name)
    assert set(found) == {"train", "episode", "exploration"}
    assert found["episode"] == {"episodes", "return", "success", "length"}
    assert {"r_ep", "r_ta", "new_code_share", "hash_loss"} < found["exploration"]
    assert {"value_loss", "entropy", "policy_lag", "a_statistic_of_a_method"} < found["train"]


def test_tensorboard_lists_the_settings(tmp_path: Path) -> None:
    settings: dict[str, str | float] = {"method": "leco", "training.alpha": 0.005}
    MetricsLogger(tmp_path, 0, settings=settings).close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    told = HParamsPluginData.FromString(content).session_start_info.hparams
    assert told["method"].string_value == "leco"
    assert told["training.alpha"].number_value == 0.005


def test_means_are_over_the_last_hundred_episodes() -> None:
    episodes = EpisodeStats()
    assert (episodes.means(), episodes.full, episodes.total) == ({}, False, 0)
    episodes.add(1, [EpisodeSummary(1.0, 10, success=True), EpisodeSummary(0.0, 30, success=False)])
    assert episodes.means() == {"return": 0.5, "success": 0.5, "length": 20}
    assert [episodes.full] == [False]
    episodes.add(2, [EpisodeSummary(0.25, 4, success=False)] * 99)
    assert [episodes.full] == [True]
    assert episodes.means()["return"] == pytest.approx(99 * 0.25 / 100)
    episodes.add(2, [EpisodeSummary(0.25, 4, success=False)])
    assert episodes.means() == {"return": 0.25, "success": 0, "length": 4}
    assert episodes.total == 102


def test_a_task_that_calls_no_episode_solved_has_no_success() -> None:
    episodes = EpisodeStats(solvable=False)
    episodes.add(1, [EpisodeSummary(2.0, 10, success=False)])
    assert episodes.means() == {"return": 2.0, "length": 10}


BEFORE = {"seconds": 77.5, "episodes": 140, "frames": 20_000}  # what a checkpoint says


@pytest.mark.parametrize(
    "damaged", [b"\x00\xff\x01", b"no,table\n1,2\n", b"updates," + b"x" * 200_000], ids=["bytes", "text", "long"]
)
def test_a_file_that_is_no_table_is_set_aside_and_the_checkpoint_says_the_rest(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "metrics.csv").write_bytes(damaged)
    metrics_logger = MetricsLogger(tmp_path, 20, before=BEFORE)
    assert (metrics_logger.episodes, metrics_logger.last) == (140, {})
    assert 77.5 <= metrics_logger.seconds < 77.5 + PATIENCE
    metrics_logger.write(line(21))
    metrics_logger.close()
    assert told(tmp_path) == [21]
    [aside] = tmp_path.glob("metrics.csv.damaged-*")
    assert aside.read_bytes() == damaged


def test_a_lost_file_begins_with_what_the_checkpoint_says(tmp_path: Path) -> None:
    metrics_logger = MetricsLogger(tmp_path, 20, before=BEFORE)
    assert metrics_logger.episodes == 140
    assert metrics_logger.seconds >= 77.5
    metrics_logger.close()


@pytest.mark.parametrize("place", [b"20000", b"0.333333", b"140"])
def test_damaged_lines_are_taken_out_and_the_others_stay(tmp_path: Path, place: bytes) -> None:
    record(tmp_path, 0, [1, 20, 30])
    text = (tmp_path / "metrics.csv").read_bytes()
    (tmp_path / "metrics.csv").write_bytes(text.replace(place, b"\xff" + place[1:], 1))
    record(tmp_path, 30, [40])
    assert told(tmp_path) in ([1, 30, 40], [20, 30, 40])


def test_a_full_disk_is_named(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (small_disk / "tensorboard").symlink_to(tmp_path / "elsewhere")
    metrics_logger = MetricsLogger(small_disk, 0)
    with contextlib.suppress(OSError):
        (small_disk / "ballast").write_bytes(bytes(100_000))
    with pytest.raises(OSError, match=rf"No space left on device: '{small_disk / 'metrics.csv'}'"):
        record_all(metrics_logger, range(1, 1000))
    (small_disk / "ballast").unlink()
    metrics_logger.close()
