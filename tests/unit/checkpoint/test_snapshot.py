"""What a learner sends to its actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from leco.checkpoint.snapshot import SnapshotError, acting_params, acting_state, load_snapshot, make_snapshot
from leco.config.training import NetworkConfig
from leco.learning.state import init
from leco.learning.update import update
from leco.methods.table import METHODS, find_method
from leco.models.build import build
from leco.models.hash_function import make_hash_function
from leco.models.intrinsic import FeatureModule, HashModule
from leco.models.kinds.table import find_kind
from leco.types import ParameterSnapshot
from support.training_case import make_batch, networks, paper_config

if TYPE_CHECKING:
    from collections.abc import Callable


ROWS = [(name, None) for name in METHODS] + [
    ("leco", "exact"),
    ("leco-naive", "objects"),
    ("lirpg", "dsc"),
    ("dsc", "vq"),
]


@pytest.mark.parametrize(("name", "kind"), ROWS)
def test_an_actor_gets_the_policy_and_the_hash_and_nothing_else(name: str, kind: str | None) -> None:
    """With what it gets it acts and hashes as the learner would."""
    nets, fresh, method = networks(name, kind), networks(name, kind), find_method(name, kind)
    state, _ = update(nets, init(nets), make_batch(), method, paper_config())
    sent = make_snapshot(state, 4)
    assert sent.version == 4
    assert sent.tensors["updates"] == 1
    policy, hash_ = load_snapshot(sent, fresh)
    assert all(torch.equal(policy[key], value) for key, value in state.policy.items())
    assert policy.keys() == state.policy.keys()
    whole = {**state.intrinsic, **state.running}
    assert all(torch.equal(hash_[key], whole[key]) for key in hash_)
    at_home = {key.split(".")[0].split("_")[0] for key in whole.keys() - hash_.keys()}
    assert (
        at_home
        == {
            HashModule: {"decoder", "modulator", "value"},
            FeatureModule: {"features", "modulator", "value"},
            type(None): set(),
        }[type(nets.intrinsic)]
    )
    assert bool(hash_) == method.learns_hash
    if isinstance(nets.intrinsic, HashModule):
        assert fresh.intrinsic is not None
        nets.intrinsic.load_state_dict(whole, strict=False)
        fresh.intrinsic.load_state_dict(hash_, strict=False)
        observation_N = make_batch(9).observation_TBO.flatten(0, 1).numpy()
        found = []
        for each in (nets, fresh):
            assert each.intrinsic is not None
            coder = make_hash_function(find_method("vq-only"), find_kind((7, 7, 3)), each.intrinsic.eval())
            assert coder is not None
            found.append(coder.codes(observation_N))
        np.testing.assert_array_equal(found[0], found[1])


def test_an_actor_of_a_run_without_a_learned_hash_gets_the_policy_alone() -> None:
    """Modulator, V^e and their features are the learner's: an actor counts exact codes without any network."""
    nets = networks("leco", "exact")
    state = init(nets)
    assert any(name.startswith("features.") for name in state.intrinsic)
    assert any(name.startswith("features.") for name in state.running)
    sent = make_snapshot(state, 1)
    assert sent.tensors.keys() == {f"policy/{name}" for name in state.policy} | {"updates"}
    plays = acting_state(acting_params(state), networks("leco", "exact"))
    assert (plays.intrinsic, plays.running) == ({}, {})
    assert all(torch.equal(plays.policy[name], tensor) for name, tensor in state.policy.items())
    # A snapshot that had them, of a run with another hash, would be refused.
    learned = make_snapshot(init(networks("leco")), 1)
    with pytest.raises(SnapshotError, match=r"snapshot 1 is not of these networks: hash/.* is not expected"):
        load_snapshot(learned, nets)
    with pytest.raises(SnapshotError, match=r"snapshot 1 is not of these networks: hash/.* is missing"):
        load_snapshot(sent, networks("leco"))


def test_a_policy_of_another_width_is_refused() -> None:
    narrow = build(find_method("no-int"), (7, 7, 3), 7, network=NetworkConfig(width=8))
    sent = make_snapshot(init(narrow), 2)
    load_snapshot(sent, build(find_method("no-int"), (7, 7, 3), 7, network=NetworkConfig(width=8)))
    with pytest.raises(
        SnapshotError, match=r"snapshot 2 has float32 \[8, 32\] as policy/.*, expected float32 \[16, 32\]"
    ):
        load_snapshot(sent, build(find_method("no-int"), (7, 7, 3), 7, network=NetworkConfig(width=16)))


def test_a_snapshot_keeps_its_numbers() -> None:
    state = init(networks())
    sent = make_snapshot(state, 1)
    first = next(iter(state.policy))
    before = sent.tensors[f"policy/{first}"].copy()
    state.policy[first].zero_()
    np.testing.assert_array_equal(sent.tensors[f"policy/{first}"], before)


def test_read_only_arrays_are_copied() -> None:
    nets = networks()
    sent = make_snapshot(init(nets), 1)
    for array in sent.tensors.values():
        array.setflags(write=False)
    policy, hash_ = load_snapshot(sent, nets)
    for prefix, named in (("policy", policy), ("hash", hash_)):
        for name, tensor in named.items():
            expected = sent.tensors[f"{prefix}/{name}"]
            assert tensor.numpy().dtype == expected.dtype
            np.testing.assert_array_equal(tensor.numpy(), expected)
            tensor.zero_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("policy/value_head.bias"), "3 is not of these networks: policy/value_head.bias is missing"),
        (lambda t: t.pop("updates"), "updates is missing"),
        (lambda t: t.update({"policy/x": np.zeros(1)}), "policy/x is not expected"),
        (lambda t: t.update({"policy/value_head.bias": np.zeros(2)}), r"float64 \[2\] as policy/value_head.bias, exp"),
        (lambda t: t.update({"policy/value_head.bias": np.zeros(1, np.float32)}), r"float32 \[1\] .* expected float64"),
        (lambda t: t.update({"policy/value_head.bias": np.zeros(1, np.int64)}), r"int64 \[1\] .* expected float64"),
    ],
)
def test_a_snapshot_of_other_networks_is_refused_by_name(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    nets = networks()
    tensors = dict(make_snapshot(init(nets), 3).tensors)
    change(tensors)
    with pytest.raises(SnapshotError, match=message):
        load_snapshot(ParameterSnapshot(3, tensors), nets)


def test_a_snapshot_counts_from_one() -> None:
    with pytest.raises(ValueError, match="version is 0, expected 1 or more"):
        make_snapshot(init(networks()), 0)
