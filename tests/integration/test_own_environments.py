"""Somebody's own environments through every command, train, eval --video, watch and report, outside of the repository.

The first is the guide's class of MiniGrid; the others are Gymnasium's: numbers, and an Atari game at 84 x 84 x 4.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import imageio.v3 as imageio
import pytest
from PIL import Image

from leco.report.metrics import read_table
from support.paths import ROOT
from support.waiting import PATIENCE
from support.watch_process import WatchProcess

if TYPE_CHECKING:
    from pathlib import Path

EPISODES = 3
# Two updates of two unrolls of 32 steps
SMALL = ("actors.unroll_length=32", "learner.batch_size=2", "training.epochs=1", "training.minibatches=1")
FRAMES = 128


class Case(NamedTuple):
    """A task as it is named to `leco train`, and what can be seen of it."""

    task: tuple[str, ...]
    picture: tuple[int, int]  # width and height of what is shown at each moment
    solvable: bool
    mapped: bool  # whether there is a level to draw maps of


CASES = {
    "MyRooms": Case(("--task=my_rooms:MyRooms-v0", "--env-kwargs", "size=7"), (448, 448), solvable=True, mapped=True),
    "CartPole": Case(("--task=CartPole-v1",), (300, 200), solvable=True, mapped=False),
    "Montezuma": Case(("--task=ALE/MontezumaRevenge-v5",), (160, 210), solvable=False, mapped=False),
}


class Place:
    """A folder in which somebody works, with a run of a few updates.

    Args:
        folder: Where.
        case: What is trained.
    """

    def __init__(self, folder: Path, case: Case) -> None:
        self.folder, self.case = folder, case
        guide = (ROOT / "docs/how-to/use-your-own-environment.md").read_text()
        for name, text in re.findall(r"^```python title=\"([^\"]+)\"\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL):
            (folder / name).write_text(text)
        flags = [f"--set={each}" for each in (*SMALL, "training.sequence_length=32", "learner.log_every=1")]
        self.trained = self.leco(
            "train", *case.task, f"--frames={FRAMES}", "--num-envs=2", "--threads=1", *flags, "--run-dir=run"
        )

    def leco(self, *arguments: str) -> str:
        """What a command printed."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "leco", *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=list(CASES))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("place"), CASES[request.param])


def test_it_trains(place: Place) -> None:
    [header, *lines] = [line for line in place.trained.splitlines() if "%" in line or "frames/s" in line][:3]
    assert header.split()[4] == "success"
    assert lines
    # Of a task that calls no episode solved no share is shown, and nothing is said of 90 %.
    assert ("90 % not reached" in place.trained) == place.case.solvable
    assert ",0," not in place.trained
    assert (place.folder / "run" / "metrics.csv").exists()


def test_it_is_played_filmed_and_reported(place: Place) -> None:
    told = place.leco("eval", "run", f"--episodes={EPISODES}", "--video=film.mp4")
    assert ("success rate  none" in told) != place.case.solvable
    steps = int(re.findall(r"an episode of (\d+) actions?: film.mp4", told)[0])
    film = imageio.improps(place.folder / "film.mp4", plugin="FFMPEG")
    assert film.shape[1:] == (480, 960, 3)
    assert (film.n_images or 0) >= steps
    place.leco("report", "run", "--out=report")
    page = (place.folder / "report" / "index.html").read_text()
    [row] = json.loads((place.folder / "report" / "results.json").read_text())
    assert row["fresh_episodes"] == EPISODES  # of which not all may be recorded, where they are large
    assert row["fresh_returns"][0] == pytest.approx(float(re.findall(r"mean return +(-?[\d.]+)", told)[0]), abs=6e-4)
    assert ("on a map of the level" in page) == place.case.mapped
    assert ("Where it went" in page) == place.case.mapped
    assert "observations that fell into it" in page


def test_it_is_watched(place: Place) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with WatchProcess(place.folder / "run", "--port=0", env=env, cwd=place.folder) as process:
        with process.listening() as events:
            told = {}
            for name, data, _ in events:
                told[name] = data
                assert told.get("player", {}).get("phase") != "failed", told["player"]
                if told.get("episode"):
                    break
        status, _, picture = process.ask(f"/episodes/{told['episode']['id']}/0.png")
    assert status == 200
    assert Image.open(io.BytesIO(picture)).size == place.case.picture
    assert told["episode"]["solvable"] == place.case.solvable
    assert len(told["episode"]["picture"]) == told["episode"]["steps"] + 1


def test_an_error_of_ones_own_is_in_the_log_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"actor 0 has ended and cannot run: leco actor: low >= high"):
        Place(tmp_path, CASES["MyRooms"]._replace(task=("--task=my_rooms:MyRooms-v0", "--env-kwargs", "size=3")))
    log = (tmp_path / "run" / "logs" / "actor-0.log").read_text()
    assert re.search(r'my_rooms.py", line \d+, in _gen_grid', log)
    assert log.endswith("\nleco actor: low >= high\n")


def test_what_takes_a_picture_and_a_number_is_learned(tmp_path: Path) -> None:
    """Of four actions one earns 1, by chance in 4 of an episode's 16 steps; who sees only one of both comes to 8."""
    command = [sys.executable, "-P", "-m", "leco", "train", "--task=support.own_envs:Signs-v0", "--method=no-int"]
    subprocess.run(
        [*command, "--frames=1.5e5", f"--run-dir={tmp_path / 'run'}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert max(read_table(tmp_path / "run" / "metrics.csv")["return"]) > 12
