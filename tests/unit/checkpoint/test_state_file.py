"""States on disk: bit for bit the same, all or nothing, and no trust in what a file says."""

from __future__ import annotations

import ast
import errno
import json
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch

from leco.checkpoint import state_file
from leco.checkpoint.state_file import SavedStateError, load, save
from leco.learning.state import TrainingState, init
from leco.learning.update import update
from leco.methods.table import find_method
from support.state_case import FACTS, assert_same, like, odd_state, policy_alone
from support.training_case import make_batch, networks, paper_config

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    save(path, odd_state(), FACTS)
    return path


def test_every_bit_name_and_type_comes_back(saved: Path) -> None:
    state, metadata = load(saved, like(odd_state()))
    assert_same(state, odd_state())
    assert metadata == FACTS
    assert [type(metadata[name]) for name in FACTS] == [type(fact) for fact in FACTS.values()]
    state.policy["z"].fill_(1)  # memory of its own, not a view of the file
    assert state.intrinsic == {}


def test_the_state_of_real_networks_comes_back(tmp_path: Path) -> None:
    for nets in (networks(), policy_alone()):
        state = init(nets)
        save(tmp_path / "s", state, {})
        assert_same(load(tmp_path / "s", like(state)), (state, {}))


def test_parameters_that_share_memory_are_saved(tmp_path: Path) -> None:
    state = odd_state()
    state = state._replace(intrinsic=state.policy)
    save(tmp_path / "s", state, {})
    assert_same(load(tmp_path / "s", like(state))[0], state)


class Grown(NamedTuple):
    """What a state with another field would be."""

    inner: TrainingState
    rounds: int
    noise: torch.Tensor


def test_a_state_with_more_fields_is_walked_too(tmp_path: Path) -> None:
    state: Any = Grown(odd_state(), 5, torch.rand(3))
    save(tmp_path / "s", state, {})
    assert_same(load(tmp_path / "s", Grown(like(odd_state()), 0, torch.zeros(3)))[0], state)


@pytest.mark.parametrize("method", ["leco", "no-int"])
def test_training_goes_on_as_if_never_interrupted(tmp_path: Path, method: str) -> None:
    nets = networks() if method != "no-int" else policy_alone()
    straight = train(init(nets), range(6), method)
    save(tmp_path / "s", train(init(nets), range(3), method), {})
    resumed, _ = load(tmp_path / "s", init(nets))
    assert_same(train(resumed, range(3, 6), method), straight)


def train(state: TrainingState, seeds: range, method: str) -> TrainingState:
    nets = networks() if method != "no-int" else policy_alone()
    for seed in seeds:
        state, _ = update(nets, state, make_batch(seed), find_method(method), paper_config(policy_learning_rate=0.01))
    return state


# What is refused


def swap(state: TrainingState, **policy: torch.Tensor) -> TrainingState:
    return state._replace(policy={**state.policy, **policy})


OTHERS: dict[str, tuple[Callable[[TrainingState], TrainingState], str]] = {
    "missing": (lambda s: swap(s, new=torch.zeros(1)), r"missing: policy/new;"),
    "unexpected": (lambda s: s._replace(running={}), r"not expected: running/mask, running/norm.num_batches_tracked;"),
    "shape": (lambda s: swap(s, z=torch.zeros(2, 2)), r"float32 \[4\] as policy/z, expected torch.float32 \[2, 2\]"),
    "dtype": (lambda s: swap(s, z=torch.zeros(4).int()), r"float32 \[4\] as policy/z, expected torch.int32 \[4\]"),
    "smaller": (lambda s: swap(s, grid=torch.zeros(1)), r"as policy/grid, expected torch.float32 \[1\]"),
    "tensor for counter": (lambda s: s._replace(updates=torch.tensor(0)), "an integer as updates"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_state_of_other_networks_is_refused_by_name(saved: Path, case: str) -> None:
    change, message = OTHERS[case]
    with pytest.raises(SavedStateError, match=message) as caught:
        load(saved, change(like(odd_state())))
    assert str(caught.value).startswith(f"{saved} ")
    assert "load it with the networks and method it was saved with" in str(caught.value)


def test_a_file_cut_anywhere_is_refused(saved: Path) -> None:
    data, structure = saved.read_bytes(), like(odd_state())
    for length in range(len(data)):
        saved.write_bytes(data[:length])
        with pytest.raises(SavedStateError, match="remove it to begin anew"):
            load(saved, structure)


def test_a_changed_bit_anywhere_is_refused(saved: Path) -> None:
    data, structure = saved.read_bytes(), like(odd_state())
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        saved.write_bytes(damaged)
        with pytest.raises(SavedStateError):
            load(saved, structure)


def test_bytes_after_the_end_are_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b"\0")
    with pytest.raises(SavedStateError, match="truncated or damaged"):
        load(saved, like(odd_state()))


def forged(path: Path, change: Callable[[dict[str, Any]], object], *, sign: bool = True) -> None:
    """Writes the odd state with a changed JSON, its checksum made right again."""
    tensors = safetensors.torch.load(path.read_bytes())
    header = path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")]
    document = json.loads(json.loads(header)["__metadata__"]["leco"])
    change(document)
    if sign:
        document.pop("sha256", None)
        document["sha256"] = state_file._digest(document, tensors)
    path.write_bytes(safetensors.torch.save(tensors, {"leco": json.dumps(document)}))


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "version": (lambda d: d.update(format=2), "has format 2, but this leco reads format 1; use the leco that wrote it"),
    "counter as text": (lambda d: d["counters"].update(updates="7"), "damaged header"),
    "counter as bool": (lambda d: d["counters"].update(updates=True), "damaged header"),
    "counter missing": (lambda d: d["counters"].pop("updates"), "missing: updates;"),
    "counter unexpected": (lambda d: d["counters"].update(more=1), "not expected: more;"),
    "counter for tensor": (lambda d: d["counters"].update({"policy/z": 1}), "an integer as policy/z"),
    "counters": (lambda d: d.update(counters=[]), "damaged header"),
    "names missing": (lambda d: d["names"].pop(), "checksum is wrong"),
    "names twice": (lambda d: d["names"].append("policy/z"), "checksum is wrong"),
    "names": (lambda d: d.update(names={"policy/z": 1}), "damaged header"),
    "name": (lambda d: d["names"].append(1), "damaged header"),
    "facts": (lambda d: d.update(facts=1), "damaged header"),
    "nested fact": (lambda d: d["facts"].update(run=["a"]), "damaged header"),
    "fact": (lambda d: d["facts"].update(rate=float("inf")), "damaged header"),
    "more": (lambda d: d.update(more=1), "damaged header"),
    "less": (lambda d: d.pop("facts"), "damaged header"),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_header_is_refused(saved: Path, case: str) -> None:
    change, message = FORGERIES[case]
    forged(saved, change)
    with pytest.raises(SavedStateError, match=message):
        load(saved, like(odd_state()))


def test_a_changed_counter_or_fact_is_noticed(saved: Path) -> None:
    for part, name in (("counters", "updates"), ("facts", "seed")):
        forged(saved, lambda d: d[part].update({name: 8}), sign=False)  # noqa: B023 - called at once
        with pytest.raises(SavedStateError, match="checksum is wrong"):
            load(saved, like(odd_state()))
        save(saved, odd_state(), FACTS)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + body


class Bomb:
    """What a pickle can do to who loads it."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("exploded",)


HOSTILE = {
    "empty": b"",
    "pickle": pickle.dumps(Bomb()),
    "long pickle": pickle.dumps([Bomb()] * 1000),
    "no JSON": framed(b"\xff" * 100),
    "no object": framed(b"[]"),
    "no metadata": framed(b"{}"),
    "metadata of others": framed(json.dumps({"__metadata__": {"format": "pt"}}).encode()),
    "metadata no object": framed(json.dumps({"__metadata__": "leco"}).encode()),
    "text no JSON": framed(json.dumps({"__metadata__": {"leco": "{"}}).encode()),
    "text no object": framed(json.dumps({"__metadata__": {"leco": "7"}}).encode()),
    "deep": framed(b"[" * 500_000),
    "deep inside": framed(json.dumps({"__metadata__": {"leco": "[" * 500_000}}).encode()),
    "header beyond the end": (2**40).to_bytes(8, "little") + b"{}",
    "header of 2**64 - 1": b"\xff" * 8 + b"{}",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s").write_bytes(HOSTILE[case])
    with pytest.raises(SavedStateError, match="remove it to begin anew"):
        load("s", like(odd_state()))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "claim",
    [
        {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]},
        {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]},
        {"dtype": "F8_E8M0", "shape": [16], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [8, 4]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
    ],
)
def test_what_a_header_claims_is_not_believed(tmp_path: Path, claim: dict[str, Any]) -> None:
    text = json.dumps({"format": 1, "names": [], "counters": {}, "facts": {}, "sha256": ""})
    header = json.dumps({"__metadata__": {"leco": text}, "policy/z": claim}).encode()
    (tmp_path / "s").write_bytes(framed(header, bytes(claim["data_offsets"][1] % 2**10)))
    with pytest.raises(SavedStateError):
        load(tmp_path / "s", like(odd_state()))


def test_no_more_is_read_than_the_state_can_take(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no room: a file of holes
    with pytest.raises(SavedStateError, match="larger than the"):
        load(path, like(odd_state()))
    with path.open("r+b") as file:
        file.truncate(2**20 + 20)
        file.write((2**20 + 1).to_bytes(8, "little"))
    with pytest.raises(SavedStateError, match="has a header of 1048577 bytes"):
        load(path, like(odd_state()))


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none", odd_state())


@pytest.mark.parametrize("fact", [float("nan"), float("inf"), None, ["a"], np.float64(1)])
def test_a_fact_that_would_not_come_back_is_refused(tmp_path: Path, fact: Any) -> None:
    with pytest.raises(ValueError, match="value 'x' is"):
        save(tmp_path / "s", odd_state(), {"x": fact})
    assert not any(tmp_path.iterdir())


def test_too_many_facts_are_refused_before_they_are_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save less of it"):
        save(tmp_path / "s", odd_state(), {"x": "x" * 2**20})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("policy", [{"a/b": torch.zeros(1)}, {"a": 1.5}, {"a": True}, {"a": {}}])
def test_what_cannot_come_back_is_not_saved(tmp_path: Path, policy: Any) -> None:
    with pytest.raises(TypeError, match=r"policy/a.* cannot be saved"):
        save(tmp_path / "s", odd_state()._replace(policy=policy), {})
    with pytest.raises(TypeError, match="updates cannot be saved: it is a float"):
        save(tmp_path / "s", odd_state()._replace(updates=1.0), {})  # type: ignore[arg-type]


def test_no_pickle_is_near() -> None:
    tree = ast.parse(Path(state_file.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"torch.load", "torch.save", "np.load", "eval", "exec"}


# All or nothing


def test_a_full_disk_leaves_the_old_file_and_nothing_else(small_disk: Path) -> None:
    path = small_disk / "s"
    save(path, odd_state(), FACTS)
    large = odd_state()._replace(intrinsic={"large": torch.rand(100_000)})
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        save(path, large, {})
    assert [file.name for file in small_disk.iterdir()] == ["s"]
    assert_same(load(path, like(odd_state()))[0], odd_state())


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_step_leaves_the_old_file_and_nothing_else(
    saved: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = saved.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    with pytest.raises(OSError, match="the disk is broken"):
        save(saved, odd_state()._replace(updates=8), {})
    assert list(saved.parent.iterdir()) == [saved]
    assert saved.read_bytes() == before


def test_file_and_folder_are_on_the_disk_before_save_returns(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(number: int) -> None:
        target = Path(f"/proc/self/fd/{number}").readlink()
        steps.append("folder" if target == saved.parent else f"file of {target.stat().st_size}")
        fsync(number)

    def noted_replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    save(saved, odd_state(), FACTS)
    assert steps == [f"file of {saved.stat().st_size}", "rename", "folder"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    saved = tmp_path / "run[1]*"
    (saved.parent / f".{saved.name}.0123.partial").write_bytes(b"half")
    (saved.parent / ".other.0123.partial").write_bytes(b"of another file")
    save(saved, odd_state(), FACTS)
    assert {file.name for file in saved.parent.iterdir()} == {saved.name, ".other.0123.partial"}
