"""`leco sweep` with real training: interrupted, resumed by the same command, and repeated."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from typing import TYPE_CHECKING

from PIL import Image

from leco.report.statistics import wilson
from support.training_services import LECO, rows
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

FRAMES_OF_UPDATE, UPDATES = 16, 300  # many more than are made between the third and the interruption
SMALL = (
    "actors.num_envs=2",
    "actors.unroll_length=8",
    "learner.batch_size=2",
    "learner.queue_capacity=4",
    "learner.log_every=1",
)
NAMES = ("Empty-5x5-no-int-1", "Empty-5x5-vq-only-1")


def command(out: Path) -> list[str]:
    flags = ["--tasks=Empty-5x5", "--methods=no-int,vq-only", "--seeds=1", f"--frames={UPDATES * FRAMES_OF_UPDATE}"]
    flags += ["--episodes=7", f"--out={out}", *(f"--set={each}" for each in SMALL)]
    return [*LECO, "sweep", *flags, "--set=learner.checkpoint_every=1000"]


def checkpoints(run: Path) -> list[int]:
    return sorted(int(path.stem) for path in (run / "checkpoints").glob("[0-9]*.safetensors"))


def starts(out: Path) -> list[int]:
    """How often each run was trained."""
    paths = [out / name / "versions.json" for name in NAMES]
    return [len(json.loads(path.read_text())) if path.exists() else 0 for path in paths]


def running(out: Path) -> str:
    """Processes that have the sweep's folder on their command line."""
    return subprocess.run(["pgrep", "-af", str(out)], capture_output=True, text=True, check=False).stdout


def test_a_sweep_is_interrupted_goes_on_and_is_done_only_once(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    first = out / NAMES[0]
    with subprocess.Popen(command(out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweeping:
        try:
            until(lambda: len(rows(first)) >= 3)
            sweeping.send_signal(signal.SIGINT)
            output, errors = sweeping.communicate(timeout=PATIENCE)
        finally:
            sweeping.kill()
    assert (sweeping.returncode, errors) == (130, "")
    assert "stopped: what was trained is saved, the same command goes on from here" in output
    [saved] = checkpoints(first)
    assert 3 <= saved < UPDATES, "it was interrupted too late"
    assert running(out) == ""
    assert [row["status"] for row in results(out)] == ["waiting", "waiting"]
    assert starts(out) == [1, 0]

    done = subprocess.run(command(out), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{NAMES[0]}: running, {saved * FRAMES_OF_UPDATE:,} of " in done.stdout
    assert checkpoints(first) == [saved, UPDATES]
    assert [int(row["updates"]) for row in rows(first)] == list(range(1, UPDATES + 1)), "each update once"
    assert starts(out) == [2, 1]
    found = results(out)
    for name, row in zip(NAMES, found, strict=True):
        assert (row["run"], row["seed"], row["status"], row["episodes"]) == (name, "1", "done", "7")
        assert (int(row["frames"]), int(row["updates"])) == (UPDATES * FRAMES_OF_UPDATE, UPDATES)
        solved = round(7 * float(row["success"]))
        low, high = wilson(solved, 7)
        assert abs(float(row["success_low"]) - low) + abs(float(row["success_high"]) - high) < 1e-4
        assert float(row["return_low"]) <= float(row["return"]) <= float(row["return_high"])
        assert 0 < float(row["wall_seconds"]) < PATIENCE
        assert f"{name}: done" in done.stdout
    with Image.open(out / "Empty-5x5.png") as picture:
        picture.load()
        assert picture.format == "PNG"
    assert f"| no-int | 1 | {UPDATES * FRAMES_OF_UPDATE:,} |" in (out / "results.md").read_text()
    assert running(out) == ""

    evaluated = [(out / name / "evaluation.json").stat().st_mtime_ns for name in NAMES]
    again = subprocess.run(command(out), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.splitlines()[0] == f"2 of 2 runs done: {out}"
    assert starts(out) == [2, 1]
    assert [(out / name / "evaluation.json").stat().st_mtime_ns for name in NAMES] == evaluated
    assert results(out) == found


def results(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))
