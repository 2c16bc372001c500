"""Episodes to look at: played by a child process of low priority from the newest checkpoint, one at a time.

The child is a process because it needs torch and MiniGrid, which the page does not, and because training goes before it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
import time
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from leco.checkpoint.trained import trained_updates
from leco.cli.child import Child, last_lines
from leco.cli.watch.pictures import different_moments
from leco.evaluation.recording import Metadata, RecordingError, read_recording
from leco.evaluation.zoo import is_entry
from leco.methods.table import Modulation, find_method

if TYPE_CHECKING:
    from collections.abc import Callable

    from leco.evaluation.recording import Episode

POLL_SECONDS = 0.5
LOWEST_PRIORITY = 19
MOST_SECONDS = 900.0  # for an episode: on a busy machine thousands of pictures at the lowest priority take minutes
KEPT = 3  # episodes: a page may still show the one before
RECORDING, PICTURES = "episode.npz", "pictures.zip"


class Replays:
    """Plays when there is a new checkpoint, or when somebody wants another level; only while somebody looks.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = tempfile.TemporaryDirectory(prefix="leco-watch-")
        self._child: Child | None = None
        self._started = 0.0
        self._played: tuple[int, int] | None = None  # the checkpoint and the seed that were tried last
        self._seed = 0
        self._failure = ""
        self._pictures: OrderedDict[str, list[bytes]] = OrderedDict()
        self.newest: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()
        self._place.cleanup()

    def another(self) -> None:
        """Has another level played, unless one is being played already."""
        if self._child is None:
            self._seed += 1

    def picture(self, episode: str, number: int) -> bytes | None:
        """A picture of one of the last episodes."""
        pictures = self._pictures.get(episode, [])
        return pictures[number] if number < len(pictures) else None

    def state(self) -> dict[str, Any]:
        """What is being done, for the page."""
        if self._child is not None:
            return {"phase": "playing"}
        if self._failure:
            return {"phase": "failed", "why": self._failure}
        return {"phase": "shown" if self.newest else "waiting"}

    async def follow(self, somebody_looks: Callable[[], bool]) -> None:
        """Plays until it is cancelled."""
        while True:
            try:
                if self._child is not None:
                    self._look_after(self._child)
                elif somebody_looks():
                    self._start_if_due()
            except (OSError, RecordingError, zipfile.BadZipFile) as error:  # a full disk, say: curves go on
                self._failure = str(error)
            await asyncio.sleep(POLL_SECONDS)

    def _start_if_due(self) -> None:
        updates = trained_updates(self._folder) or int(is_entry(self._folder))  # an entry stays as it is
        if updates and self._played != (updates, self._seed):
            self._played = (updates, self._seed)
            self._start()

    def _start(self) -> None:
        out, player = self._place.name, "leco.cli.watch.player"
        command = [sys.executable, "-P", "-m", player, str(self._folder), out, f"--seed={self._seed}"]
        child = Child("player", command, Path(out, "player.log"))
        child.log.write_bytes(b"")
        child.start()
        assert child.process is not None  # noqa: S101  # it was started
        os.setpriority(os.PRIO_PROCESS, child.process.pid, LOWEST_PRIORITY)
        self._child, self._started = child, time.monotonic()

    def _look_after(self, child: Child) -> None:
        """Takes what a child that has ended left behind, and ends one that takes too long."""
        code = child.ended()
        if code is None and time.monotonic() - self._started > MOST_SECONDS:
            self._failure = f"it was not done in {MOST_SECONDS / 60:.0f} minutes"
            self._end_child()
        elif code is not None:
            self._child = None
            self._failure = ""
            if code == 0:
                self._take(Path(self._place.name))
            else:
                self._failure = last_lines(child.log, 1) or f"the player ended with code {code}"

    def _take(self, place: Path) -> None:
        recording, name = read_recording(place / RECORDING), secrets.token_hex(8)
        with zipfile.ZipFile(place / PICTURES) as archive:
            self._pictures[name] = [archive.read(each) for each in archive.namelist()]
        while len(self._pictures) > KEPT:
            self._pictures.popitem(last=False)
        self.newest = document(name, recording.metadata, recording.episodes[0])

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.stop(seconds=2)
            self._child = None


def document(name: str, metadata: Metadata, episode: Episode) -> dict[str, Any]:
    """An episode as the page wants it. What the method does not have, and what is not known of it, is left out."""
    method, moments = find_method(metadata.method), different_moments(episode)
    found: dict[str, Any] = {
        "id": name,
        "task": metadata.task,
        "frames": metadata.frames,
        "seed": metadata.seed,
        "solvable": metadata.solvable,
        "solved": episode.solved,
        "score": float(f"{episode.score:.6g}"),
        "steps": len(episode.action_T),
        "action": [metadata.actions[each] for each in episode.action_T.tolist()],
        "picture": moments.picture_T,
        "r_e": _numbers(episode.r_e_T),
    }
    if method.has_novelty and not np.isnan(episode.r_ep_T).all():
        found["r_ep"] = _numbers(episode.r_ep_T)
    if method.modulation is not Modulation.NONE and not np.isnan(episode.r_ta_T).all():
        found["r_ta"] = _numbers(episode.r_ta_T)
    if method.counts:
        texts = [bytes(each).hex() for each in episode.code_TW]
        order = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        found |= {"codes": list(order), "code": [order[text] for text in texts], "count": episode.count_T.tolist()}
        found["view"] = [len(moments.first_P) + index for index in range(len(order))]
    if (episode.scene_T >= 0).all():
        found |= {name: getattr(episode, f"{name}_T").tolist() for name in ("x", "y", "direction")}
    return found


def _numbers(values_T: np.ndarray) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values_T.tolist()]
