"""The contract of trajectory.proto, checked.

What comes from the wire is held against the whole contract before anyone computes with it: one malformed trajectory
would poison the batch it lands in. Each refusal is a `CodecError` that names the field.

Shapes use the legend of `leco.types`: T, A, E, O..., C...
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from leco.rpc.tensors import CodecError, Place, layout, unpack
from leco.types import TrajectorySpec
from leco.v1 import trajectory_pb2


def checked_tensors(message: trajectory_pb2.Trajectory, spec: TrajectorySpec) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a message that keeps every promise of trajectory.proto for a run of this specification.

    They are read-only views over one buffer, which is read only after all types and shapes were found right.
    """
    if message.number < 1:
        raise CodecError("number is 0, expected at least 1")
    if message.parameters_version < 1:
        raise CodecError("parameters_version is 0, expected at least 1")
    places = layout(message.tensors.specs)
    _check_tensor_specs(places, spec, counted=message.counted)
    tensors = unpack(places, message.tensors.payload)
    _check_tensor_values(tensors, spec)
    _check_parts(tensors, spec)
    _check_episodes(message.episodes, tensors, spec)
    _check_previous_step(message, spec, begins_episode=bool(tensors["start"][0]))
    return tensors


def _check_tensor_specs(places: Sequence[Place], spec: TrajectorySpec, *, counted: bool) -> None:
    """Exactly the tensors of trajectory.proto, in its order, with its types and shapes. E may still be anything."""
    steps = spec.unroll_length
    expected: dict[str, tuple[str, tuple[int | str, ...]]] = {
        "observation": ("uint8", (steps + 1, *spec.observation_shape)),
        "start": ("bool", (steps + 1,)),
        "terminal_observation": ("uint8", ("E", *spec.observation_shape)),
        "action": ("int32", (steps,)),
        "reward": ("float32", (steps,)),
        "behaviour_logits": ("float32", (steps, spec.action_count)),
        "core_state": ("float32", spec.core_state_shape),
    }
    if counted:
        expected["count"] = ("uint32", (steps,))
        if spec.coarse_levels > 0:
            expected |= dict.fromkeys(("coarse_count", "coarse_code"), ("uint32", (steps, spec.coarse_levels)))
    for index, (place, name) in enumerate(itertools.zip_longest(places, expected)):
        if place is None or place.name != name:
            found, wanted = (repr(place.name) if place else "missing"), (repr(name) if name else "no more tensors")
            raise CodecError(f"tensors[{index}] is {found}, expected {wanted} (counted is {str(counted).lower()})")
    for place, (dtype, shape) in zip(places, expected.values(), strict=True):
        if place.dtype.name != dtype:
            raise CodecError(f"{place.name} has type {place.dtype.name}, expected {dtype}")
        if len(place.shape) != len(shape) or any(
            size not in ("E", axis) for axis, size in zip(place.shape, shape, strict=True)
        ):
            raise CodecError(f"{place.name} has shape {_text(place.shape)}, expected {_text(shape)}")


def _check_tensor_values(tensors: Mapping[str, npt.NDArray[Any]], spec: TrajectorySpec) -> None:
    """Every element in its range."""
    action = tensors["action"]
    _refuse("action", action, (action < 0) | (action >= spec.action_count), f"0 to {spec.action_count - 1}")
    most, expected = _bound(spec)
    _refuse("reward", tensors["reward"], ~(np.abs(tensors["reward"]) <= most), expected)
    for name in ("behaviour_logits", "core_state"):
        _refuse(name, tensors[name], ~np.isfinite(tensors[name]), "a finite number")
    for name in tensors.keys() & {"count", "coarse_count"}:
        _refuse(name, tensors[name], tensors[name] < 1, "at least 1")


def _check_parts(tensors: Mapping[str, npt.NDArray[Any]], spec: TrajectorySpec) -> None:
    """Of observations that are no image alone: their numbers, and which actions they allow."""
    masked = spec.action_count if spec.masked else 0
    for name in ("observation", "terminal_observation") if spec.numbers or masked else ():
        row_TX = tensors[name]
        end = row_TX.shape[1] - masked
        number_TF = np.ascontiguousarray(row_TX[:, end - 4 * spec.numbers : end]).view("<f4")
        _refuse(f"the numbers of {name}", number_TF, ~np.isfinite(number_TF), "a finite number")
        mask_TA = row_TX[:, end:]
        _refuse(f"the action mask of {name}", mask_TA, mask_TA > 1, "0 or 1")
        if masked and not mask_TA.any(1).all():
            raise CodecError(f"the action mask of {name} allows nothing, expected at least one action")
    if masked:
        action_T = tensors["action"]
        allowed_T = tensors["observation"][np.arange(len(action_T)), -masked + action_T] == 1
        _refuse("action", action_T, ~allowed_T, "one that its action mask allows")


def _bound(spec: TrajectorySpec) -> tuple[float, str]:
    """The largest size of a reward or a return, and what is expected of one, in words."""
    if math.isinf(spec.reward_limit):
        return float(np.finfo(np.float32).max), "a finite number"
    return spec.reward_limit, f"-{spec.reward_limit:g} to {spec.reward_limit:g}, the run's reward_limit"


def _check_episodes(
    episodes: Sequence[trajectory_pb2.EpisodeSummary], tensors: Mapping[str, npt.NDArray[Any]], spec: TrajectorySpec
) -> None:
    """`start` says how many episodes ended; everything else that knows E must agree."""
    ended = int(tensors["start"][1:].sum())
    rows = len(tensors["terminal_observation"])
    if rows != ended:
        raise CodecError(f"terminal_observation has {rows} rows, expected {ended}, the true elements of start[1:]")
    if len(episodes) != ended:
        raise CodecError(f"episodes has {len(episodes)} elements, expected {ended}, the true elements of start[1:]")
    most, expected = _bound(spec)
    for index, episode in enumerate(episodes):
        if not abs(episode.episode_return) <= most:
            raise CodecError(f"episodes[{index}].episode_return is {episode.episode_return}, expected {expected}")
        if episode.length < 1:
            raise CodecError(f"episodes[{index}].length is 0, expected at least 1")


def _check_previous_step(message: trajectory_pb2.Trajectory, spec: TrajectorySpec, *, begins_episode: bool) -> None:
    """What came before the unroll: nothing, exactly if the unroll begins with an episode."""
    action, reward = message.previous_action, message.previous_reward
    if begins_episode:
        if action != -1:
            raise CodecError(f"previous_action is {action}, expected -1 because start[0] is true")
        if reward != 0:
            raise CodecError(f"previous_reward is {reward}, expected 0 because start[0] is true")
    if not begins_episode and not 0 <= action < spec.action_count:
        raise CodecError(
            f"previous_action is {action}, expected 0 to {spec.action_count - 1} because start[0] is false"
        )
    most, expected = _bound(spec)
    if not abs(reward) <= most:
        raise CodecError(f"previous_reward is {reward}, expected {expected}")


def _refuse(name: str, array: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], expected: str) -> None:
    """Name the first wrong element, if there is one."""
    if wrong.any():
        index = tuple(int(axis) for axis in np.argwhere(wrong)[0])
        place = f"[{', '.join(map(str, index))}]" if index else ""
        raise CodecError(f"{name}{place} is {array[index]}, expected {expected}")


def _text(shape: Iterable[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"
