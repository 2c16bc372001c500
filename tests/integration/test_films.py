"""Films of episodes, as pictures that change and as a video."""

from __future__ import annotations

from typing import TYPE_CHECKING

import imageio_ffmpeg
import pytest
from PIL import Image

from leco.cli import evaluate
from leco.envs.registry import find_task
from leco.evaluation.record import make_recording
from leco.evaluation.rollout import Keeper
from leco.evaluation.rollout import evaluate as play
from leco.evaluation.trained import trained_state
from leco.evaluation.video import FRAMES_PER_SECOND, LAST_FRAMES, film
from support.zoo_case import TASK, WALKS, saved_run

if TYPE_CHECKING:
    from pathlib import Path


def test_leco_eval_films_an_episode_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, picture = saved_run(tmp_path / "run", bias=WALKS, method="no-int"), tmp_path / "film.gif"
    evaluate.main([str(run), "--episodes=3", f"--video={picture}", "--seed=2"])
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("an episode of ")
    assert str(picture) in said
    with Image.open(picture) as opened:
        assert opened.format == "GIF"


@pytest.mark.parametrize(("ending", "greedy"), [("gif", False), ("mp4", True)])
def test_a_film_shows_an_episode_from_its_first_to_its_last_picture(tmp_path: Path, ending: str, greedy: bool) -> None:
    run, keeper = saved_run(tmp_path / "run", bias=WALKS, method="no-int"), Keeper(1)
    trained = trained_state(run, "newest")
    result = play(trained.policy, find_task(TASK), episodes=2, seed=3, greedy=greedy, keeper=keeper)
    recording = make_recording(trained, keeper.episodes, run="run", checkpoint="newest", seed=3, greedy=greedy)
    path = tmp_path / f"film.{ending}"
    film(recording, path)
    actions = int(result.lengths_N[0])
    milliseconds = 1000 // FRAMES_PER_SECOND
    if ending == "mp4":
        pictures, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
        assert pictures == actions + LAST_FRAMES
        assert seconds == pytest.approx(pictures / FRAMES_PER_SECOND, abs=0.05)
        return
    with Image.open(path) as picture:
        assert (picture.format, picture.size) == ("GIF", (960, 480))
        durations = []
        for frame in range(picture.n_frames):  # type: ignore[attr-defined]
            picture.seek(frame)
            durations.append(picture.info["duration"])
    # Pillow shows a picture that does not change for longer, instead of twice.
    assert sum(durations) == (actions + LAST_FRAMES) * milliseconds
