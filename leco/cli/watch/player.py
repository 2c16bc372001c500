"""Plays one episode with a run's newest checkpoint and leaves a recording of it, with pictures: a child of `leco watch`."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image

from leco.checkpoint.state_file import SavedStateError
from leco.cli.watch.pictures import different_moments, first_views, without_surroundings
from leco.cli.watch.replays import PICTURES, RECORDING
from leco.config.experiment import ConfigError, task_of
from leco.evaluation.record import make_recording
from leco.evaluation.recording import write_recording
from leco.evaluation.rollout import EvaluationError, Keeper, evaluate
from leco.evaluation.trained import trained_state
from leco.report.pictures import draw_moment, draw_observation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.evaluation.recording import Episode
    from leco.evaluation.trained import Trained

TRIES = 5
PIXELS = 640  # of the longer side of a level, if its cells are then neither too small to see nor larger than need be
SMALLEST_TILE, LARGEST_TILE, VIEW_TILE = 12, 64, 12


def main(arguments: Sequence[str] | None = None) -> None:
    """Plays, records, draws."""
    parser = argparse.ArgumentParser("leco.cli.watch.player", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        trained = newest(given.run)
        task, keeper, how = task_of(trained.experiment), Keeper(1), {"seed": given.seed, "greedy": False}
        evaluate(trained.policy, task, episodes=1, keeper=keeper, **how)
    except (ConfigError, SavedStateError, EvaluationError, OSError, ValueError) as error:  # the last: no simulator
        sys.exit(str(error))
    recording = make_recording(trained, keeper.episodes, run=given.run.name, checkpoint="newest", **how)
    draw(recording.episodes[0], given.out / PICTURES)
    write_recording(given.out / RECORDING, recording)


def newest(run: Path) -> Trained:
    """The newest checkpoint. It may be removed between being found and being read: then there is a newer one."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(FileNotFoundError, ConfigError):
            return trained_state(run, "newest")
    return trained_state(run, "newest")


def draw(episode: Episode, path: Path) -> None:
    """All pictures, as PNG in one archive, in the order in which the page counts them: moments, then first views of codes."""
    inner = without_surroundings(episode)
    tile = min(max(PIXELS // max(*inner.grid_GXY.shape[1:3], 1), SMALLEST_TILE), LARGEST_TILE)
    pictures = [draw_moment(inner, t, tile) for t in different_moments(episode).first_P]
    if episode.code_TW.size:
        pictures += [
            draw_observation(episode.observation_TO[t], VIEW_TILE, episode.layout) for t in first_views(episode)
        ]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number, picture in enumerate(pictures):
            data = io.BytesIO()
            Image.fromarray(picture).save(data, "png")
            archive.writestr(f"{number}.png", data.getvalue())


if __name__ == "__main__":
    main()
