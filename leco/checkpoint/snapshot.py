"""What acts, of a training state: the policy, and of the intrinsic module what the hash needs.

A learner sends it to its actors as a snapshot, and an entry of the zoo keeps it as a file. Names in both are `policy/...` and
`hash/...`, and `updates` is how many updates made it. Actors neither decode nor modulate, so those networks, which are more than
half of all parameters, stay at home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from leco.learning.state import init
from leco.types import ParameterSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from leco.learning.state import Networks, Params, TrainingState

_AT_HOME = ("decoder.", "features.", "modulator_", "value_head.")


class SnapshotError(ValueError):
    """A snapshot that does not fit the networks. The text says why."""


class ActingParams(NamedTuple):
    """What acts.

    policy   its parameters
    hash     parameters and running statistics that codes are computed with; none without a learned hash
    updates  how many updates made them
    """

    policy: Params
    hash: Params
    updates: int


def acting_params(state: TrainingState) -> ActingParams:
    """What acts, of a state."""
    return ActingParams(dict(state.policy), _of_the_hash({**state.intrinsic, **state.running}), state.updates)


def acting_state(params: ActingParams, networks: Networks) -> TrainingState:
    """A state with nothing but these parameters, to play with and not to train on.

    Modulator, V^e, decoder and the novelty's own networks are absent from it, so that numbers which nobody trained are not taken
    for trained ones.
    """
    net = networks.intrinsic
    buffers = set() if net is None else {name for name, _ in net.named_buffers()}
    return init(networks)._replace(
        policy=params.policy,
        intrinsic={name: tensor for name, tensor in params.hash.items() if name not in buffers},
        running={name: tensor for name, tensor in params.hash.items() if name in buffers},
        novelty={},
        novelty_running={},
        updates=params.updates,
    )


def make_snapshot(state: TrainingState, version: int) -> ParameterSnapshot:
    """What actors need of a state. The arrays are copies."""
    if version < 1:
        raise ValueError(f"version is {version}, expected 1 or more")
    params = acting_params(state)
    named = {f"policy/{name}": tensor for name, tensor in params.policy.items()}
    named |= {f"hash/{name}": tensor for name, tensor in params.hash.items()}
    arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in named.items()}
    return ParameterSnapshot(version, arrays | {"updates": np.array(state.updates, np.int64)})


def load_snapshot(snapshot: ParameterSnapshot, networks: Networks) -> tuple[Params, Params]:
    """The parameters of the policy, and the tensors of the hash (none for a method without a learned one).

    They are copies on the CPU, of the types that `networks` has.

    Raises:
        SnapshotError: names or shapes are not those of the networks, or `updates` is missing.
    """
    policy = dict(networks.policy.named_parameters())
    net = networks.intrinsic
    hash_ = {} if net is None else _of_the_hash({**dict(net.named_parameters()), **dict(net.named_buffers())})
    expected = {f"policy/{name}" for name in policy} | {f"hash/{name}" for name in hash_} | {"updates"}
    if strange := sorted(expected ^ snapshot.tensors.keys()):
        which = "missing" if strange[0] in expected else "not expected"
        raise SnapshotError(f"snapshot {snapshot.version} is not of these networks: {strange[0]} is {which}")
    return (
        {name: _like(f"policy/{name}", snapshot, tensor) for name, tensor in policy.items()},
        {name: _like(f"hash/{name}", snapshot, tensor) for name, tensor in hash_.items()},
    )


def _of_the_hash(intrinsic: Mapping[str, Tensor]) -> Params:
    return {name: tensor for name, tensor in intrinsic.items() if not name.startswith(_AT_HOME)}


def _like(name: str, snapshot: ParameterSnapshot, like: Tensor) -> Tensor:
    array = snapshot.tensors[name]
    dtype = torch.empty(0, dtype=like.dtype).numpy().dtype
    if array.shape != like.shape or array.dtype != dtype:
        raise SnapshotError(
            f"snapshot {snapshot.version} has {array.dtype} {list(array.shape)} as {name}, "
            f"expected {dtype} {list(like.shape)}"
        )
    return torch.from_numpy(array.copy())
