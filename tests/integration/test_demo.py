"""`leco demo` from its first line to its pictures, on a task that a test can wait for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from PIL import Image

from leco.cli import demo, zoo
from leco.config.toml import parse
from support.paths import ROOT
from support.waiting import PATIENCE
from support.zoo_case import WALKS, saved_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

# The demonstration itself, but for what it trains and what it plays.
SMALL = """
import sys
from leco.cli import demo

demo.EXPERIMENT = demo.EXPERIMENT.replace("MultiRoom-N6", "Empty-5x5")
demo.OF_THE_ZOO = "Empty-5x5"
demo.main(sys.argv[1:])
"""


def run_demo(folder: Path, *flags: str, code: str = SMALL) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, f"--run-dir={folder / 'run'}", *flags]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    # A whole training, which may well take ten times a minute on a busy machine.
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=3 * PATIENCE, check=False
    )


def pictures(path: Path) -> int:
    with Image.open(path) as opened:
        assert opened.format == "GIF"
        return int(opened.n_frames)  # type: ignore[attr-defined]


def test_it_trains_multiroom_n6_by_the_laptop_preset_alone() -> None:
    experiment = parse(demo.EXPERIMENT)
    alone = parse('preset = "laptop"', {"task": "MultiRoom-N6", "frames": 1.2e6, "until": 0.98})
    assert experiment == alone
    assert (experiment.method, experiment.seed) == ("leco", 1)


def test_it_trains_until_the_task_is_solved_and_films_it_and_an_entry_of_the_zoo(tmp_path: Path) -> None:
    entry = saved_run(tmp_path / "of-the-zoo", bias=WALKS, solved=97)
    zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(entry)])
    child = run_demo(tmp_path, "--seed=3")
    assert (child.returncode, child.stderr) == (0, ""), child.stdout
    first, second, *lines = child.stdout.splitlines()
    assert first.startswith("Training until 98 % of the last 100 episodes are solved. Empty-5x5 is ")
    assert second == f"Empty-5x5, leco, seed 3: {tmp_path / 'run'}"
    assert any(re.match(r"Empty-5x5, after [\d,]+ updates: 100 fresh episodes", line) for line in lines)
    assert any(re.match(r"Empty-5x5, after 40 updates: 20 fresh episodes", line) for line in lines)
    assert sum(line.startswith("  success rate ") for line in lines) == 2
    for name in ("episode.gif", "Empty-5x5.gif"):
        assert f"one that was solved: {tmp_path / 'run' / name}" in lines
        assert pictures(tmp_path / "run" / name) > 1
    assert f"the learning curve: {tmp_path / 'run' / 'curve.png'}" in lines
    with Image.open(tmp_path / "run" / "curve.png") as curve:
        assert curve.format == "PNG"


def test_it_says_so_when_the_task_was_not_solved(tmp_path: Path) -> None:
    child = run_demo(tmp_path, "--frames=4e3")
    assert child.returncode == 1
    last = "leco demo: training ended before 90 % of 100 episodes were solved; try another --seed\n"
    assert child.stderr == last, child.stdout
    assert (tmp_path / "run" / "curve.png").exists()
    assert "fresh episodes" in child.stdout
    assert "of the zoo" not in child.stdout


def test_without_a_zoo_it_says_that_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.play_zoo(tmp_path / "film.gif", tmp_path / "zoo")
    assert f"There is no {tmp_path / 'zoo' / 'KeyCorridorS6R3'} here" in capsys.readouterr().out
    assert not (tmp_path / "film.gif").exists()
