"""Which checkpoints are kept, which one is gone on from, and versions that only ever grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from leco.checkpoint.state_file import SavedStateError, load
from services.learner.checkpoints import Checkpoints
from support.learner_parts import state

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def numbered(*updates: int) -> list[str]:
    return [f"{each:09d}.safetensors" for each in updates]


def test_the_newest_few_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "made" / "here", keep=2)
    for updates, best in ((5, False), (10, True), (15, False), (20, False)):
        checkpoints.save(state(updates, shift=updates), {"return": 0.5}, best=best)
    folder = tmp_path / "made" / "here"
    assert names(folder) == [*numbered(15, 20), "best.safetensors"]
    best_state, metadata = load(folder / "best.safetensors", state(0))
    assert (best_state.updates, metadata) == (10, {"return": 0.5})


def test_the_newest_is_gone_on_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.newest(state(0)) is None
    for updates in (900, 1000, 1100):
        checkpoints.save(state(updates, shift=updates), {"frames": 7 * updates}, best=False)
    found = Checkpoints(tmp_path, keep=3).newest(state(0))
    assert found is not None
    assert (found[0].updates, found[1]) == (1100, {"frames": 7700})
    expected = state(1100, shift=1100)
    assert all(torch.equal(tensor, expected.policy[name]) for name, tensor in found[0].policy.items())


def test_a_damaged_one_falls_back_to_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for updates in (1, 2, 3):
        checkpoints.save(state(updates), {}, best=updates == 3)
    damage(tmp_path / numbered(3)[0])
    (tmp_path / numbered(2)[0]).write_bytes(b"")
    found = checkpoints.newest(state(0))
    assert found is not None
    assert found[0].updates == 1


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_never_takes_the_place_of_a_good_one(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for updates in (10, 20):
        checkpoints.save(state(updates), {}, best=False)
    damage(tmp_path / numbered(20)[0])
    again = Checkpoints(tmp_path, keep)
    again.save(state(12), {}, best=False)
    found = again.newest(state(0))
    assert found is not None
    assert found[0].updates == 12


def test_if_all_are_damaged_that_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for updates in (1, 2):
        checkpoints.save(state(updates), {}, best=False)
        damage(tmp_path / numbered(updates)[0])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SavedStateError, match=numbered(2)[0]):
        Checkpoints(tmp_path, keep=3).newest(state(0))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for name in ("000000001.safetensors.old", "notes.txt", "5.safetensors"):
        (tmp_path / name).write_text("mine")
    checkpoints.save(state(1), {}, best=False)
    checkpoints.save(state(2), {}, best=False)
    assert names(tmp_path) == ["000000001.safetensors.old", *numbered(2), "5.safetensors", "notes.txt"]


def test_versions_grow_with_updates_and_over_restarts(tmp_path: Path) -> None:
    """Also if the learner begins again at an older checkpoint, or at none."""
    published = 0
    for begins, updates in ((0, 5), (3, 2), (0, 1), (0, 1500), (1000, 1200), (0, 3)):
        checkpoints = Checkpoints(tmp_path, keep=1)
        versions = [checkpoints.version(begins + update) for update in range(updates)]
        assert versions == list(range(versions[0], versions[0] + updates))
        assert versions[0] > published
        # What was played by a policy that is gone is older than any lag worth allowing.
        assert published == 0 or versions[0] - published > 1000
        published = versions[-1]


def test_the_version_of_the_same_updates_is_the_same_within_a_life(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert [checkpoints.version(updates) for updates in (4, 4, 5)] == [5, 5, 6]
