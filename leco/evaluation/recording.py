"""Episodes on disk: where the agent was, what it did and saw, and how it was rewarded. `leco eval` writes them.

A recording is one compressed .npz file, RUN/recordings/UPDATES-seedSEED.npz, of one checkpoint. It is read without pickle, so it
can hold numbers and text, but never code. The episodes lie one after the other:

    metadata          uint8    JSON: what was played, by what; see `Metadata`
    steps          int64    [M]           T, the actions of each episode
    level          uint64   [M]           the seed that MiniGrid made its level from; 0 elsewhere
    solved         bool     [M]
    action         int16    [N]           N = sum of T
    r_e            float32  [N]           the task's own reward
    r_ep           float32  [N]           what was new in what the action led to; 0 if the method has no novelty
    r_ta           float32  [N]           the modulator's part; 0 without one, and for the first action
    r_i            float32  [N]           both together, as the policy is rewarded with them (before alpha)
    observation    uint8    [N + M, O...] one more than actions: from the first to the true last one
    code           uint8    [N + M, W]    of each observation; W = 0 if the method counts nothing
    count          uint32   [N + M]       how often this code was seen in the episode so far, this time included; 0: not counted
    x, y           int16    [N + M]       where the agent was; -1 where there is no grid
    direction      int8     [N + M]       0 to 3: right, down, left, up; -1 where there is no grid
    scene          int32    [N + M]       which of the grids shows the level at this moment; -1 where there is none
    picture        uint8    [N + M, height, width, 3]  what people see, if the environment draws itself; else it is not there
    grid           uint8    [G, X, Y, 3]  levels as MiniGrid encodes them: column, row, (object, colour, state)

Index t of an observation is before action t; what action t led to is at t + 1. `read_recording` gives the episodes one by one.

T  actions of an episode    M  episodes    N  actions of all    W  bytes of a code
O...  shape of one observation    G  different grids    X, Y  width and height of the level
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from leco.checkpoint.atomic_file import atomic_write
from leco.types import ObservationLayout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT = 2
FOLDER = "recordings"  # in a run's
MAX_BYTES = 2**31  # of all arrays of a file together

_OF_ACTIONS = {"action": np.int16, "r_e": np.float32, "r_ep": np.float32, "r_ta": np.float32, "r_i": np.float32}
_OF_OBSERVATIONS = {
    "observation": np.uint8,
    "code": np.uint8,
    "count": np.uint32,
    "x": np.int16,
    "y": np.int16,
    "direction": np.int8,
    "scene": np.int32,
}
_OF_EPISODES = {"steps": np.int64, "level": np.uint64, "solved": np.bool_}


class RecordingError(ValueError):
    """A file that is no recording, or a damaged one. The text says which, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What was played, and by what.

    run         the name of the run's folder
    task, method   by name
    actions     what the actions are called
    updates, frames   how long the policy had been trained
    checkpoint  newest, best, a share such as 50%, or a file
    seed, greedy   as `leco eval` was told
    alpha, lambda_   of the run: the policy was rewarded with r_e + alpha r_i
    leco        the version that recorded it
    solvable    whether the task calls episodes solved
    image, numbers, masked   what the bytes of an observation are (`leco.types.ObservationLayout`)
    played, success, mean_return   of all episodes of the evaluation, of which the first are recorded; 0 and None if not known
    """

    run: str
    task: str
    method: str
    actions: tuple[str, ...]
    updates: int
    frames: int
    checkpoint: str
    seed: int
    greedy: bool
    alpha: float
    lambda_: float
    leco: str
    solvable: bool = True
    image: tuple[int, int, int] | None = None
    numbers: int = 0
    masked: bool = False
    played: int = 0
    success: float | None = None
    mean_return: float | None = None

    @property
    def layout(self) -> ObservationLayout:
        """What the bytes of an observation are."""
        return ObservationLayout(self.image, self.numbers, len(self.actions) if self.masked else 0)


class Episode(NamedTuple):
    """One episode; arrays as above, but T for N and T + 1 for N + M. `grid_GXY` are all of the recording's."""

    level: int
    solved: bool
    action_T: npt.NDArray[np.int16]
    r_e_T: npt.NDArray[np.float32]
    r_ep_T: npt.NDArray[np.float32]
    r_ta_T: npt.NDArray[np.float32]
    r_i_T: npt.NDArray[np.float32]
    observation_TO: npt.NDArray[np.uint8]
    code_TW: npt.NDArray[np.uint8]
    count_T: npt.NDArray[np.uint32]
    x_T: npt.NDArray[np.int16]
    y_T: npt.NDArray[np.int16]
    direction_T: npt.NDArray[np.int8]
    scene_T: npt.NDArray[np.int32]
    grid_GXY: npt.NDArray[np.uint8]
    picture_T: npt.NDArray[np.uint8] | None = None
    layout: ObservationLayout | None = None

    @property
    def score(self) -> float:
        """The return."""
        return float(self.r_e_T.sum())

    def grid(self, t: int) -> npt.NDArray[np.uint8] | None:
        """The level at time t, [X, Y, 3]; None where there is none."""
        return self.grid_GXY[self.scene_T[t]] if self.scene_T[t] >= 0 else None


@dataclass(frozen=True, slots=True)
class Recording:
    """All episodes of a file."""

    metadata: Metadata
    episodes: tuple[Episode, ...]


def recording_name(metadata: Metadata) -> str:
    """The name of the file within the folder `recordings` of a run."""
    return f"{metadata.updates:09d}-seed{metadata.seed}{'-greedy' if metadata.greedy else ''}.npz"


def write_recording(path: Path, recording: Recording) -> None:
    """Puts a recording in place, whole or not at all. All episodes must share one `grid_GXY`, or each have its own."""
    episodes = recording.episodes
    if not episodes:
        raise ValueError("a recording needs at least one episode")
    grids, first = _together(episodes)
    arrays: dict[str, npt.NDArray[Any]] = {
        "facts": np.frombuffer(_to_json(recording.metadata), np.uint8),
        "steps": np.array([len(each.action_T) for each in episodes], np.int64),
        "level": np.array([each.level for each in episodes], np.uint64),
        "solved": np.array([each.solved for each in episodes], np.bool_),
        "grid": grids,
    }
    columns = {"observation": "observation_TO", "code": "code_TW"}
    for name, kind in {**_OF_ACTIONS, **_OF_OBSERVATIONS}.items():
        parts = [getattr(each, columns.get(name, f"{name}_T")) for each in episodes]
        if name == "scene":
            parts = [np.where(part < 0, -1, part + begin) for part, begin in zip(parts, first, strict=True)]
        arrays[name] = np.concatenate(parts).astype(kind)
    pictures = [each.picture_T for each in episodes if each.picture_T is not None]
    if len(pictures) == len(episodes):
        arrays["picture"] = np.concatenate(pictures)
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, data.getvalue())


def _together(episodes: Sequence[Episode]) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """The grids of all episodes in one array, each array once; and where those of each episode begin in it."""
    begins: dict[int, int] = {}
    parts: list[npt.NDArray[np.uint8]] = []
    first = []
    for each in episodes:
        if id(each.grid_GXY) not in begins:
            begins[id(each.grid_GXY)] = sum(map(len, parts))
            parts.append(each.grid_GXY)
        first.append(begins[id(each.grid_GXY)])
    return np.concatenate(parts).astype(np.uint8), first


def read_recording(path: Path) -> Recording:
    """A recording.

    Raises:
        RecordingError: the file is none, or is damaged, or claims more than MAX_BYTES.
        OSError: it cannot be read at all.
    """
    try:
        arrays = _arrays(path)
        metadata = _from_json(arrays["facts"].tobytes())
        _check(arrays, len(metadata.actions))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError) as error:
        raise RecordingError(f"{path} is no recording of leco, or is damaged: {error}") from None
    ends = np.cumsum(arrays["steps"])
    episodes = []
    for m, (end, steps) in enumerate(zip(ends.tolist(), arrays["steps"].tolist(), strict=True)):
        actions, seen = slice(end - steps, end), slice(end - steps + m, end + m + 1)
        parts: list[Any] = [arrays["level"][m].item(), arrays["solved"][m].item()]
        parts += [arrays[name][actions] for name in _OF_ACTIONS]
        parts += [arrays[name][seen] for name in _OF_OBSERVATIONS]
        drawn = arrays["picture"][seen] if "picture" in arrays else None
        episodes.append(Episode._make([*parts, arrays["grid"], drawn, metadata.layout]))
    return Recording(metadata, tuple(episodes))


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise TypeError("it is a single array")
        assert archive.zip is not None  # noqa: S101  # it is open
        claimed = sum(each.file_size for each in archive.zip.infolist())
        if claimed > MAX_BYTES:
            raise ValueError(f"its arrays take {claimed:,} bytes, expected at most {MAX_BYTES:,}")
        return {name: archive[name] for name in archive.files}


def _check(arrays: dict[str, npt.NDArray[Any]], actions: int) -> None:
    """That everything is there, of the right type and length, and that indices point at something."""
    for name, kind in {**_OF_EPISODES, **_OF_ACTIONS, **_OF_OBSERVATIONS, "grid": np.uint8}.items():
        if arrays[name].dtype != kind:
            raise ValueError(f"{name} is {arrays[name].dtype}, expected {np.dtype(kind)}")
    steps = arrays["steps"]
    if steps.ndim != 1 or not len(steps) or (steps < 1).any():
        raise ValueError("an episode has no actions")
    lengths = dict.fromkeys(_OF_EPISODES, len(steps)) | dict.fromkeys(_OF_ACTIONS, int(steps.sum()))
    lengths |= dict.fromkeys(_OF_OBSERVATIONS, int(steps.sum()) + len(steps))
    for name, length in lengths.items():
        if arrays[name].shape[:1] != (length,) or (name not in ("observation", "code") and arrays[name].ndim != 1):
            raise ValueError(f"{name} has shape {list(arrays[name].shape)}, expected {length} of them")
    if "picture" in arrays:
        shape = arrays["picture"].shape
        if arrays["picture"].dtype != np.uint8 or len(shape) != 4 or (shape[0], shape[3]) != (lengths["x"], 3):
            raise ValueError(f"picture has shape {list(shape)}, expected [{lengths['x']}, height, width, 3] of bytes")
    if arrays["code"].ndim != 2 or arrays["grid"].ndim != 4 or arrays["grid"].shape[3] != 3:
        raise ValueError("codes or grids have another shape")
    if not -1 <= int(arrays["scene"].min()) <= int(arrays["scene"].max()) < len(arrays["grid"]):
        raise ValueError("a scene is not among the grids")
    if not 0 <= int(arrays["action"].min()) <= int(arrays["action"].max()) < actions:
        raise ValueError(f"an action is not one of 0 to {actions - 1}")
    width, height = arrays["grid"].shape[1:3]
    there = arrays["scene"] >= 0
    x, y, direction = (arrays[name][there] for name in ("x", "y", "direction"))
    if ((x < 0) | (x >= width) | (y < 0) | (y >= height) | (direction < 0) | (direction > 3)).any():
        raise ValueError("the agent is outside its level")


def _to_json(metadata: Metadata) -> bytes:
    table = {name.rstrip("_"): value for name, value in dataclasses.asdict(metadata).items()}
    return json.dumps({"format": FORMAT, **table}).encode()


def _from_json(data: bytes) -> Metadata:
    table = json.loads(data)
    if table.pop("format") != FORMAT:
        raise ValueError(
            f"it has another format than {FORMAT}, which this leco reads; record it again with `leco eval`"
        )
    table["actions"] = tuple(table["actions"])
    if table.get("image") is not None:
        table["image"] = tuple(table["image"])
    table["lambda_"] = table.pop("lambda")
    return Metadata(**table)
