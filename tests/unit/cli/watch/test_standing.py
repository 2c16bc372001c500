"""How a run stands, from nothing but its folder."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from leco.checkpoint.folder_lock import locked
from leco.cli.watch.standing import Standing
from leco.config.toml import parse, to_toml

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ("frames", "seconds", "return", "loss")
FRAMES_OF_UPDATE = 16 * 96


def settings(**changed: Any) -> str:
    return to_toml(parse("", {"task": "Empty-5x5", "method": "leco", "seed": 7, "frames": 100_000, **changed}))


def lines(folder: Path, *rows: tuple[float, float]) -> tuple[np.ndarray, dict[str, float]]:
    (folder / "metrics.csv").write_text("")
    values = np.array([(*row, 0.5, np.nan) for row in rows])
    return values, dict(zip(COLUMNS, values[-1].tolist(), strict=True))


def saved(folder: Path, updates: int) -> None:
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / f"{updates:09d}.safetensors").write_bytes(b"")


def test_a_run_from_before_it_begins_to_its_end(tmp_path: Path) -> None:
    standing = Standing(tmp_path)
    now = standing.now({})
    assert (now["phase"], now["task"], now["goal"], now["frames"]) == ("waiting", None, None, 0)
    (tmp_path / "requested.toml").write_text(settings())
    now = standing.now({})
    assert (now["phase"], now["task"], now["method"], now["seed"], now["goal"]) == (
        *("waiting", "Empty-5x5", "leco", 7),
        100_000,
    )
    (tmp_path / "config.toml").write_text(settings())
    values, last = lines(tmp_path, (20_000, 10), (40_000, 20))
    standing.note(COLUMNS, values, anew=True)
    now = standing.now(last)
    assert (now["phase"], now["frames"]) == ("training", 40_000)
    assert now["left"] == pytest.approx(30.0)  # 60,000 at 2,000 a second
    assert now["last"] == {"frames": 40_000, "seconds": 20, "return": 0.5}
    saved(tmp_path, 66)  # 101,376 frames: lines come every few updates, so the last one may tell of less
    now = standing.now(last)
    assert (now["phase"], now["frames"], now["left"]) == ("finished", 66 * FRAMES_OF_UPDATE, None)
    (tmp_path / "config.toml").write_text(settings(frames=1_000_000))
    now = standing.now(last)
    assert (now["phase"], now["goal"]) == ("training", 1_000_000)


def test_a_run_that_ended_by_its_success_rate_has_ended(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings(until=0.9))
    (tmp_path / "metrics.csv").write_text("")
    standing = Standing(tmp_path)
    learned = {"frames": 10.0 * FRAMES_OF_UPDATE, "success": 0.92, "episodes": 400.0}
    assert standing.now(learned)["phase"] == "training"  # it has not saved yet
    saved(tmp_path, 10)
    now = standing.now(learned)
    assert (now["phase"], now["frames"], now["goal"]) == ("finished", 10 * FRAMES_OF_UPDATE, 10 * FRAMES_OF_UPDATE)
    for changed in ({"success": 0.89}, {"success": np.nan}, {"episodes": 99.0}):
        now = standing.now(learned | changed)
        assert (now["phase"], now["goal"]) == ("training", 100_000)


def test_time_left_is_by_the_last_lines_and_begins_anew_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings(frames=1_000_000))
    standing = Standing(tmp_path)
    values, last = lines(
        tmp_path, *((100 * n, n) for n in range(1, 50)), *((4900 + 1000 * n, 49 + n) for n in range(20))
    )
    standing.note(COLUMNS, values, anew=False)
    assert standing.now(last)["left"] == pytest.approx((1_000_000 - last["frames"]) / 1000)
    values, last = lines(tmp_path, (1000, 1))
    standing.note(COLUMNS, values, anew=True)
    assert standing.now(last)["left"] is None  # one line is no speed


def test_numbers_that_are_none_do_not_spoil_the_time_left(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings())
    standing = Standing(tmp_path)
    values, last = lines(tmp_path, (20_000, 10), (40_000, 20), (np.inf, np.inf), (60_000, np.nan))
    standing.note(COLUMNS, values, anew=True)
    assert standing.now(last)["left"] == pytest.approx(20.0)  # 40,000 at 2,000 a second


def test_a_run_without_news_says_since_when(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings())
    standing = Standing(tmp_path)
    values, last = lines(tmp_path, (1000, 10), (2000, 20))
    standing.note(COLUMNS, values, anew=False)
    some_seconds_ago = time.time() - 30
    os.utime(tmp_path / "metrics.csv", (some_seconds_ago, some_seconds_ago))
    with locked(tmp_path):
        assert standing.now(last)["phase"] == "training"
    assert standing.now(last)["phase"] == "quiet", "nobody trains here"
    an_hour_ago = time.time() - 3600
    os.utime(tmp_path / "metrics.csv", (an_hour_ago, an_hour_ago))
    now = standing.now(last)
    assert (now["phase"], now["left"]) == ("quiet", None)
    assert now["quiet_since"] == pytest.approx(an_hour_ago)
    slow, last = lines(tmp_path, (1000, 1000), (2000, 2000))  # a line every 1000 s: an hour without one is nothing
    standing.note(COLUMNS, slow, anew=True)
    os.utime(tmp_path / "metrics.csv", (an_hour_ago, an_hour_ago))
    with locked(tmp_path):
        assert standing.now(last)["phase"] == "training"


def test_what_is_no_finite_number_is_named_and_a_configuration_that_cannot_be_read_too(tmp_path: Path) -> None:
    standing = Standing(tmp_path)
    (tmp_path / "config.toml").write_text("task = 'no such task'")
    now = standing.now({"frames": 10.0, "loss": np.inf, "return": np.nan})
    assert (now["not_finite"], now["last"]) == (["loss"], {"frames": 10})
    assert now["trouble"].startswith("config.toml cannot be read: ")
    assert "no such task" in now["trouble"]
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    standing.now({})
    (tmp_path / "config.toml").write_text(settings())
    assert standing.now({})["trouble"] == ""


def test_a_task_that_calls_no_episode_solved_has_no_success(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(parse("", {"task": "lasertag_three_opponents_small"})))
    assert not Standing(tmp_path).now({})["solvable"]
