"""Recordings: what is read is what was written, and whatever else is in a file is refused."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from leco.evaluation import recording as module
from leco.evaluation.recording import Recording, RecordingError, read_recording, recording_name, write_recording
from leco.report.pictures import draw_moment
from support.made_episodes import episode, metadata, recording, room

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def assert_same(one: Recording, other: Recording) -> None:
    assert one.metadata == other.metadata
    assert len(one.episodes) == len(other.episodes)
    for a, b in zip(one.episodes, other.episodes, strict=True):
        assert (a.level, a.solved) == (b.level, b.solved)
        for name in a._fields[2:-4]:  # without scenes, grids, pictures and what observations are
            x, y = getattr(a, name), getattr(b, name)
            assert x.dtype == y.dtype, name
            np.testing.assert_array_equal(x, y, err_msg=name)
        for t in range(len(a.scene_T)):
            np.testing.assert_array_equal(a.grid(t), b.grid(t))


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    written = recording(5, 1, 40)
    path = tmp_path / "recordings" / recording_name(written.metadata)
    assert path.name == "000000100-seed0.npz"
    write_recording(path, written)
    found = read_recording(path)
    assert_same(written, found)
    assert [len(each.action_T) for each in found.episodes] == [5, 1, 40]
    assert [each.score for each in found.episodes] == [0.5, 0.5, 0.5]
    before = path.read_bytes()
    write_recording(path, found)
    assert path.read_bytes() == before


def test_grids_of_several_episodes_keep_apart(tmp_path: Path) -> None:
    shared, own = np.concatenate([room(), room()[:, ::-1]]), room()[:, :, ::-1]
    first, second, third = (episode(n, 3, grids=grids) for n, grids in enumerate((shared, own, shared)))
    first = first._replace(scene_T=np.array([0, 1, 1, 0], np.int32))
    written = Recording(metadata(), (first, second, third))
    write_recording(tmp_path / "one.npz", written)
    found = read_recording(tmp_path / "one.npz")
    assert_same(written, found)
    assert len(found.episodes[0].grid_GXY) == 3  # each once


def test_without_grid_and_codes_as_on_pixels(tmp_path: Path) -> None:
    nowhere = np.full(4, -1)
    one = episode(0, 3, width=0)._replace(
        observation_TO=np.zeros((4, 72, 96, 3), np.uint8),
        x_T=nowhere.astype(np.int16),
        y_T=nowhere.astype(np.int16),
        direction_T=nowhere.astype(np.int8),
        scene_T=nowhere.astype(np.int32),
        grid_GXY=np.zeros((0, 0, 0, 3), np.uint8),
    )
    write_recording(tmp_path / "one.npz", Recording(metadata(), (one,)))
    [found] = read_recording(tmp_path / "one.npz").episodes
    assert found.grid(0) is None
    assert found.code_TW.shape == (4, 0)


def test_what_an_environment_drew_and_what_numbers_it_showed(tmp_path: Path) -> None:
    numbers = np.array([[0.0, 1.0], [-1.0, 0.5], [0.0, 0.0], [0.0, 0.0]], "<f4").view(np.uint8)
    pictures = np.random.default_rng(0).integers(0, 256, (4, 6, 8, 3), np.uint8)
    one = episode(0, 3)._replace(observation_TO=numbers, scene_T=np.full(4, -1, np.int32), picture_T=pictures)
    about = dataclasses.replace(metadata(), numbers=2, solvable=False)
    write_recording(tmp_path / "one.npz", Recording(about, (one,)))
    found = read_recording(tmp_path / "one.npz")
    assert found.metadata == about
    [read] = found.episodes
    np.testing.assert_array_equal(read.picture_T, pictures)
    np.testing.assert_array_equal(draw_moment(read, 2, 8), pictures[2])
    bars = draw_moment(read._replace(picture_T=None), 1, 8)  # -1 downwards, 0.5 upwards
    height = len(bars) // 2
    drawn = (bars != bars[0, 0]).all(2)
    assert (drawn[:height, :8].sum(), drawn[height + 1 :, 8:].sum()) == (0, 0)
    assert drawn[height + 1 :, 0].sum() == height
    assert drawn[:height, 8].sum() == pytest.approx(height / 2, abs=1)


def damaged(path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    write_recording(path, recording(5, 3))
    with np.load(path) as archive:
        arrays = dict(archive)
    change(arrays)
    data = io.BytesIO()
    np.savez(data, **arrays)
    path.write_bytes(data.getvalue())
    with pytest.raises(RecordingError) as raised:
        read_recording(path)
    return str(raised.value)


def put(name: str, index: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a: a.pop("code"), "'code'"),
        (lambda a: a.update(action=a["action"].astype(np.int64)), "action is int64, expected int16"),
        (lambda a: a.update(action=a["action"][:-1]), "action has shape [7], expected 8 of them"),
        (lambda a: a.update(count=a["count"][:-2]), "count has shape [8], expected 10 of them"),
        (lambda a: a.update(r_e=a["r_e"][:, None]), "r_e has shape [8, 1]"),
        (put("steps", 0, 0), "an episode has no actions"),
        (put("scene", 3, 2), "a scene is not among the grids"),
        (put("scene", 3, -2), "a scene is not among the grids"),
        (put("action", 2, 7), "an action is not one of 0 to 6"),
        (put("action", 2, -1), "an action is not one of 0 to 6"),
        (put("x", 4, 5), "the agent is outside its level"),
        (put("direction", 4, 4), "the agent is outside its level"),
        (lambda a: a.update(facts=np.frombuffer(b'{"format": 1}', np.uint8)), "another format than 2"),
        (lambda a: a.update(facts=np.frombuffer(b"[", np.uint8)), "is damaged"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], None], why: str) -> None:
    path = tmp_path / "one.npz"
    text = damaged(path, change)
    assert text.startswith(f"{path} is no recording of leco, or is damaged: ")
    assert why in text


def test_half_a_file_other_files_and_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    write_recording(path, recording(5))
    whole = path.read_bytes()
    single, pickled = io.BytesIO(), io.BytesIO()
    np.save(single, np.zeros(3))
    np.savez(pickled, metadata=np.array([{}], object))
    for data in (whole[: len(whole) // 2], b"", b"text", single.getvalue(), pickled.getvalue()):
        path.write_bytes(data)
        with pytest.raises(RecordingError, match="is no recording of leco, or is damaged"):
            read_recording(path)


def test_a_file_cannot_claim_any_amount_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.npz"
    write_recording(path, recording(5))
    with zipfile.ZipFile(path) as archive:
        size = sum(each.file_size for each in archive.infolist())
    monkeypatch.setattr(module, "MAX_BYTES", size)
    read_recording(path)
    monkeypatch.setattr(module, "MAX_BYTES", size - 1)
    with pytest.raises(RecordingError, match=f"take {size:,} bytes, expected at most {size - 1:,}"):
        read_recording(path)


def test_nothing_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one episode"):
        write_recording(tmp_path / "one.npz", Recording(metadata(), ()))
    with pytest.raises(FileNotFoundError):
        read_recording(tmp_path / "one.npz")
