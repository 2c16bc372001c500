"""A run's curves, for people: metrics.csv and TensorBoard, one line every few updates."""

from __future__ import annotations

import csv
import io
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import SummaryWriter

from leco.checkpoint.atomic_file import atomic_write, naming, set_aside
from leco.report.metrics import RECENT_EPISODES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leco.checkpoint.state_file import MetadataValue
    from leco.types import EpisodeSummary

log = structlog.get_logger("leco.learner")

# In this order; a method's own statistics come after them, as they are first written.
COLUMNS = (
    *("frames", "updates", "seconds", "frames_per_second", "episodes", "return", "success", "length"),
    *("r_e", "r_ep", "r_ta", "r_i", "new_code_share", "distinct_share"),
    *("policy_gradient_loss", "value_loss", "entropy", "extrinsic_value_loss", "hash_loss", "gradient_norm"),
    *("explained_variance", "rho", "trust"),
    *("novelty_loss", "rnd_error", "forward_loss", "inverse_loss", "adversary_kl"),
    *("policy_lag", "queue", "waiting_share", "updating_share", "publishing_share"),
)

# Where TensorBoard shows a column; the rest is in train/.
GROUPS = {
    "episode": ("episodes", "return", "success", "length"),
    "exploration": (
        *("r_e", "r_ep", "r_ta", "r_i", "new_code_share", "distinct_share", "trust"),
        *("rnd_error", "forward_loss", "inverse_loss", "novelty_loss", "hash_loss", "adversary_kl"),
    ),
}
COMPARED = ("episode/success", "episode/return")  # what TensorBoard compares runs by
_GROUP = {name: group for group, names in GROUPS.items() for name in names}


class EpisodeStats:
    """The last 100 episodes, as actors report them; written by the event loop and read by the trainer.

    Args:
        before: How many there were before a run was resumed.
        solvable: Whether the task calls episodes solved; otherwise there is no success to speak of.
    """

    def __init__(self, before: int = 0, *, solvable: bool = True) -> None:
        self._solvable = solvable
        self._lock = threading.Lock()
        self._recent: deque[EpisodeSummary] = deque(maxlen=RECENT_EPISODES)
        self.total = before

    def add(self, _version: int, episodes: Sequence[EpisodeSummary]) -> None:
        """Notes episodes that ended."""
        with self._lock:
            self._recent.extend(episodes)
            self.total += len(episodes)

    def means(self) -> dict[str, float]:
        """Mean return, success and length of the last ones; nothing before the first.

        After a resume there is nothing until a hundred have ended again: the few since then would be taken for the last hundred.
        """
        with self._lock:
            recent, expected = list(self._recent), min(self.total, RECENT_EPISODES)
        if not recent or len(recent) < expected:
            return {}
        count = len(recent)
        found = {"return": sum(each.episode_return for each in recent) / count}
        if self._solvable:
            found["success"] = sum(each.success for each in recent) / count
        return {**found, "length": sum(each.length for each in recent) / count}

    @property
    def full(self) -> bool:
        """Whether the means are over as many episodes as they should."""
        return len(self._recent) == RECENT_EPISODES


class MetricsLogger:
    """Writes lines. A run that is resumed goes on in the same files; lines after its checkpoint are taken out first.

    Args:
        folder: The run's.
        updates: How many updates the state has that training goes on from.
        before: What its checkpoint says of `seconds` and `episodes`, for a file that was lost.
        clock_zero: When the run's clock stood at zero, as time.monotonic() counts; without it, the clock begins now, at what
            the last line from before has.
        settings: Of the experiment, by name; TensorBoard lists them beside the curves (HPARAMS), so that runs can be compared.

    Attributes:
        episodes: How many had ended by the last line from before.
        last: The last line, as it is in the file; empty before the first.
    """

    def __init__(
        self,
        folder: Path,
        updates: int,
        *,
        before: Mapping[str, MetadataValue] | None = None,
        clock_zero: float | None = None,
        settings: Mapping[str, bool | str | float] | None = None,
    ) -> None:
        self._path = folder / "metrics.csv"
        kept = [row for row in _read(self._path) if int(row["updates"]) <= updates]
        self._columns = list(dict.fromkeys((*COLUMNS, *(kept[0] if kept else ()))))
        self.last: Mapping[str, str] = kept[-1] if kept else {}
        known = self.last or before or {}
        seconds = float(known.get("seconds") or 0)
        self._clock_zero = time.monotonic() - seconds if clock_zero is None else clock_zero
        self.episodes = int(known.get("episodes") or 0)
        self._begin(kept)
        self._board = SummaryWriter(
            str(folder / "tensorboard"), purge_step=int(known.get("frames") or 0) + 1 if known else 0
        )
        if settings:
            for summary in hparams(dict(settings), dict.fromkeys(COMPARED, 0.0)):  # type: ignore[no-untyped-call]
                self._board.file_writer.add_summary(summary)  # type: ignore[attr-defined]

    @property
    def seconds(self) -> float:
        """How long this run has been trained, over all its starts."""
        return time.monotonic() - self._clock_zero

    def _begin(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Writes the file anew, with these lines, and opens it for more."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        atomic_write(self._path, text.getvalue().encode())
        self._file = self._path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, self._columns)

    def _add_columns(self, names: Sequence[str]) -> None:
        """For a statistic that was never written before; earlier lines are empty there."""
        self._file.close()
        with self._path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        self._columns += names
        self._begin(rows)

    def write(self, line: Mapping[str, float]) -> None:
        """Adds a line; what is not known in it stays empty."""
        told = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in line.items()}
        if new := [name for name in told if name not in self._columns]:
            self._add_columns(new)
        with naming(self._path):
            self._writer.writerow(told)
            self._file.flush()
        self.last = told
        with naming(Path(self._board.log_dir)):
            for name, value in line.items():
                if name not in ("frames", "updates"):
                    self._board.add_scalar(f"{_GROUP.get(name, 'train')}/{name}", value, int(line["frames"]))
            self._board.flush()

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        self._board.close()


def _read(path: Path) -> list[dict[str, str]]:
    """The whole lines of a file; what is no table is set aside, and the curves begin anew."""
    if not path.exists():
        return []
    try:
        rows = csv.DictReader(io.StringIO(path.read_bytes().decode(errors="replace"), newline=""))
        if rows.fieldnames is None or "updates" in rows.fieldnames:
            return [row for row in rows if _whole(row)]
    except csv.Error:
        pass
    log.error("metrics.csv is damaged: the curves begin anew", path=str(path), set_aside=str(set_aside(path)))
    return []


def _whole(row: Mapping[str, str | None]) -> bool:
    """Not cut off by a crash, or damaged. It may have other columns than ours: an earlier version wrote it, or another method."""
    return (
        None not in row
        and all(map(_is_number, row.values()))
        and all((row.get(name) or "0").isdecimal() for name in ("frames", "episodes"))
        and (row.get("updates") or "").isdecimal()
    )


def _is_number(text: str | None) -> bool:
    """What a line has in a place: a number, or nothing."""
    if not text:
        return text is not None
    try:
        float(text)
    except ValueError:
        return False
    return True
