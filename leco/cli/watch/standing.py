"""How a run stands: what it is, how far it has come, how long it will take, and what it waits for."""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from leco.checkpoint.folder_lock import is_held
from leco.checkpoint.trained import frames_of_update, trained_updates
from leco.config.experiment import ConfigError, Experiment, task_of
from leco.config.toml import parse
from leco.evaluation.zoo import ZooError, absent, is_entry, read_entry
from leco.report.metrics import RECENT_EPISODES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

RECENT_LINES = 10  # over which speed is taken
QUIET_SECONDS = 90.0  # without a line, or five times as long as lines took lately: it waits for something
ABSENT_SECONDS = 10.0  # the same if no process of this machine has the folder, or twice as long as lines took
OF_THE_ZOO = "An entry of the zoo: a policy, its hash, and the curves of its training, thinned."
SUPPOSED = ("config.toml", "requested.toml")  # the second is there before the learner has begun


class Standing:
    """Follows a run by its folder and by the lines of its metrics.csv. An entry of the zoo is a run that has ended.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_LINES)  # frames and seconds
        self._experiment: Experiment | None = None
        self._text = self._trouble = ""
        self._is_entry = is_entry(folder)

    def note(self, columns: Sequence[str], values_LC: np.ndarray, *, anew: bool) -> None:
        """Takes in new lines."""
        if anew:
            self._recent.clear()
        if {"frames", "seconds"} <= set(columns):
            at = [columns.index("frames"), columns.index("seconds")]
            recent = values_LC[-RECENT_LINES:, at].tolist()
            self._recent.extend((frames, seconds) for frames, seconds in recent if math.isfinite(frames + seconds))

    def now(self, last: Mapping[str, float]) -> dict[str, Any]:
        """All of it, for the page.

        Args:
            last: The last line of metrics.csv by column, nan where nothing stands; empty before there is one.
        """
        e = self._read()
        saved = self._saved(e) if e else 0
        finished = e is not None and (self._is_entry or saved >= min(e.frames, _last_frames(e, last)))
        frames, speed = max(_whole(last.get("frames")), saved), self._speed()
        quiet = None if finished or not last else self._quiet()
        phase = "finished" if finished else "waiting" if not last else "training" if quiet is None else "quiet"
        return {
            "run": self._folder.name,
            "folder": str(self._folder),
            "task": e.task if e else None,
            "method": e.method if e else None,
            "seed": e.seed if e else None,
            "solvable": _solvable(e),
            "goal": (frames if finished else e.frames) if e else None,
            "frames": frames,
            "left": max(e.frames - frames, 0) / speed if e and speed and phase == "training" else None,
            "phase": phase,
            "quiet_since": quiet,
            "last": {name: value for name, value in last.items() if math.isfinite(value)},
            "not_finite": [name for name, value in last.items() if math.isinf(value)],
            "first_save": e.learner.checkpoint_every * frames_of_update(e) if e else None,
            "trouble": self._trouble,
            "about": " ".join([OF_THE_ZOO, absent(e)]).rstrip() if e and self._is_entry else "",
            "settings": self._text,
        }

    def _read(self) -> Experiment | None:
        """The experiment, which changes when a run is given more frames."""
        for name in SUPPOSED:
            try:
                text = (self._folder / name).read_text()
            except (OSError, UnicodeDecodeError):
                continue
            if text != self._text:
                self._text, self._trouble = text, ""
                try:
                    self._experiment = parse(text)
                except (ConfigError, ValueError) as error:
                    self._experiment, self._trouble = None, f"{name} cannot be read: {error}"
            break
        return self._experiment

    def _saved(self, experiment: Experiment) -> int:
        """After how many frames the newest checkpoint, or the policy of an entry, was saved."""
        if not self._is_entry:
            return trained_updates(self._folder) * frames_of_update(experiment)
        try:
            return read_entry(self._folder).frames
        except ZooError as error:
            self._trouble = str(error)
            return 0

    def _speed(self) -> float | None:
        """Frames a second over the last lines. Seconds are those of training, so a pause between two starts does not count."""
        if len(self._recent) < 2:
            return None
        (frames_then, then), (frames_now, now) = self._recent[0], self._recent[-1]
        return (frames_now - frames_then) / (now - then) if now > then and frames_now > frames_then else None

    def _quiet(self) -> float | None:
        """When the last line was written, if that is so long ago that nobody seems to train; in seconds since 1970."""
        try:
            written = (self._folder / "metrics.csv").stat().st_mtime
        except OSError:
            return None
        least, lines = (QUIET_SECONDS, 5) if is_held(self._folder) else (ABSENT_SECONDS, 2)
        patience = [lines * (after - before) for (_, before), (_, after) in pairwise(self._recent)]
        return written if time.time() - written > max([least, *patience]) else None


def _whole(value: float | None) -> int:
    return int(value) if value is not None and math.isfinite(value) else 0


def _last_frames(experiment: Experiment, last: Mapping[str, float]) -> float:
    """The frames after which training ends by its success rate (`until`), if the last line has it; otherwise without bounds."""
    enough = experiment.until is not None and last.get("episodes", 0.0) >= RECENT_EPISODES
    learned = enough and last.get("success", 0.0) >= (experiment.until or 1.0)
    return last["frames"] if learned else math.inf


def _solvable(experiment: Experiment | None) -> bool:
    return experiment is None or task_of(experiment).solvable
