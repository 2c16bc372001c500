"""Which checkpoints are kept, which one is gone on from, and versions that only ever grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from leco.checkpoint.state_file import SavedStateError, load, save
from services.learner.checkpoints import Checkpoints
from support.learner_parts import state

if TYPE_CHECKING:
    from pathlib import Path

    from leco.learning.state import TrainingState


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


def published(folder: Path, *, updates: int) -> int:
    """Trains, saves and is killed; the highest version that actors may have."""
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.newest(state(0))
    last = checkpoints.version(updates + 400)
    checkpoints.save(state(updates), {"last_version": last}, best=False)
    return last


@pytest.mark.parametrize(
    "damage", [None, b"", b"12 apples", b"\xff\x00", b"-5", str(2**70).encode(), b"1" * 5000], ids=repr
)
def test_versions_go_on_above_those_of_the_checkpoint_if_their_file_is_lost_or_damaged(
    tmp_path: Path, damage: bytes | None
) -> None:
    highest = max(published(tmp_path, updates=each) for each in (500, 1000))
    (tmp_path / "versions").unlink()
    if damage is not None:
        (tmp_path / "versions").write_bytes(damage)
    again = Checkpoints(tmp_path, keep=2)
    assert again.newest(state(0)) is not None
    assert highest + 1000 < again.version(1000) < 2**40
    assert int((tmp_path / "versions").read_text()) > highest


def test_a_checkpoint_from_before_it_knew_versions_is_gone_on_from_without_their_file(tmp_path: Path) -> None:
    Checkpoints(tmp_path, keep=2).save(state(700), {}, best=False)
    again = Checkpoints(tmp_path, keep=2)
    again.newest(state(0))
    assert again.version(700) > 1700


def test_damaged_versions_without_a_checkpoint_are_named(tmp_path: Path) -> None:
    (tmp_path / "versions").write_text("twelve")
    with pytest.raises(
        SavedStateError, match=r"versions is damaged, and there is no checkpoint yet: remove it, and start"
    ):
        Checkpoints(tmp_path, keep=2).newest(state(0))


def test_a_folder_in_a_checkpoints_place_prevents_nothing(tmp_path: Path) -> None:
    Checkpoints(tmp_path, keep=1).save(state(1), {}, best=True)
    for name in (*numbered(2), "best.safetensors", "milestone-000000002.safetensors"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name / "inside").mkdir(parents=True)
    again = Checkpoints(tmp_path, keep=1)
    found = again.newest(state(0))
    assert found is not None
    assert found[0].updates == 1
    again.save(state(2), {}, best=True)
    again.keep(state(2), {})
    files = sorted(path.name for path in tmp_path.glob("*.safetensors") if path.is_file())
    assert files == [*numbered(2), "best.safetensors", "milestone-000000002.safetensors"]
    assert len(list(tmp_path.glob("*.damaged-*/inside"))) == 3, "nothing was removed"


def ruined(updates: int) -> TrainingState:
    """A state of which only what Adam remembers is not finite."""
    good = state(updates)
    squares = {name: x + float("inf") for name, x in good.policy_adam.exp_avg_sq.items()}
    return good._replace(policy_adam=good.policy_adam._replace(exp_avg_sq=squares))


def test_a_state_that_is_not_finite_is_neither_saved_nor_gone_on_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state(1), {}, best=True)
    kept = names(tmp_path)
    text = r"policy_adam/exp_avg_sq/.* is not finite: .*000000002.safetensors is not written"
    with pytest.raises(ValueError, match=text):
        checkpoints.save(ruined(2), {}, best=True)
    with pytest.raises(ValueError, match=text):
        checkpoints.keep(ruined(2), {})
    assert names(tmp_path) == kept
    save(tmp_path / numbered(3)[0], ruined(3), {})  # by a leco that did not look
    found = checkpoints.newest(state(0))
    assert found is not None
    assert found[0].updates == 1


def test_the_version_of_the_same_updates_is_the_same_within_a_life(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert [checkpoints.version(updates) for updates in (4, 4, 5)] == [5, 5, 6]
