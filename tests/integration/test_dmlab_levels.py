"""Tests of `leco dmlab-levels`, as a real process with real engines of the stand-in for DeepMind Lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from leco.envs.dmlab.environment import DmlabEnv
from support import needs
from support.paths import DMLAB_STAND_IN, ROOT
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs.zip_program.mark
LEVEL = "contributed/dmlab30/lasertag_three_opponents_small"


class Levels:
    """Runs the command with a cache of its own, and sees which levels were compiled."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.compiled_folder = folder / "cache", folder / "compiled"
        self.compiled_folder.mkdir()
        self.experiment = folder / "experiment.toml"
        self.experiment.write_text('task = "lasertag_three_opponents_small"')
        self.variables = {
            "PYTHONPATH": f"{DMLAB_STAND_IN}:{ROOT}",
            "LECO_DMLAB_CACHE": str(self.cache),
            "LECO_DMLAB_LEVELS": "7",
            "DMLAB_STAND_IN": json.dumps({"compiled": str(self.compiled_folder)}),
        }

    def run(self, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LECO_")}
        command = [sys.executable, "-P", "-m", "leco", "dmlab-levels", *flags]
        environment = {**inherited, **self.variables, **variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)

    def compiled(self) -> list[int]:
        return sorted(int(each.name.partition("-")[0]) for each in self.compiled_folder.iterdir())


@pytest.fixture
def levels(tmp_path: Path) -> Levels:
    return Levels(tmp_path)


def test_parts_compile_all_levels_once_and_an_actor_then_compiles_none(
    levels: Levels, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(2):
        done = levels.run("--config", str(levels.experiment), "--part", str(part), "--parts", "2")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stderr.splitlines()[-1])["of"] == 4 - part
    assert levels.compiled() == list(range(7))
    assert levels.run("--config", str(levels.experiment)).returncode == 0
    assert levels.compiled() == list(range(7))  # a second time they are all there
    for name, value in levels.variables.items():
        monkeypatch.setenv(name, value)
    env = DmlabEnv(LEVEL, 3, seed=5)
    try:
        for seed in range(4):
            env.reset(seed)
    finally:
        env.close()
    assert levels.compiled() == list(range(7))


def test_a_level_that_fails_is_named_the_others_are_compiled_and_the_code_says_so(levels: Levels) -> None:
    once = levels.cache.with_name("once")
    hooks = {"compiled": str(levels.compiled_folder), "reset": {"do": "exit", "at": 2, "once": str(once)}}
    done = levels.run("--config", str(levels.experiment), DMLAB_STAND_IN=json.dumps(hooks))
    assert done.returncode == 1
    [failure] = [json.loads(line) for line in done.stderr.splitlines() if "could not" in line]
    assert failure["seed"] == 1
    assert "ended with exit code 7" in failure["reason"]
    assert levels.compiled() == [0, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        (["--config", "{}"], {"LECO_DMLAB_LEVELS": ""}, "LECO_DMLAB_LEVELS is not set"),
        (["--config", "{}"], {"LECO_DMLAB_CACHE": "off"}, "LECO_DMLAB_CACHE is off"),
        (["--config", "{}", "--part", "2", "--parts", "2"], {}, "--part is 2, expected less than --parts (2)"),
        ([], {}, "--config is missing"),
        (
            ["--config", "{}"],
            {"PYTHONPATH": str(ROOT)},
            "No module named 'deepmind_lab': docs/dmlab.md tells what to install",
        ),
        (
            ["--config", "{}"],
            {"PATH": "/nowhere"},
            "the program zip, with which it packs compiled levels, is not in PATH",
        ),
        (["--config", "{}"], {"LECO_DMLAB_PYTHON": "/nowhere/python"}, "cannot run /nowhere/python"),
    ],
)
def test_what_cannot_be_done_is_said(levels: Levels, flags: list[str], variables: dict[str, str], words: str) -> None:
    done = levels.run(*[each.format(levels.experiment) for each in flags], **variables)
    assert done.returncode in (1, 2)
    assert words in done.stderr


def test_a_task_without_levels_is_refused(levels: Levels) -> None:
    levels.experiment.write_text('task = "KeyCorridorS3R3"')
    assert "is no task of DeepMind Lab" in levels.run("--config", str(levels.experiment)).stderr
