"""The values of `leco.types` to and from messages. Nothing else in the project turns one into the other.

A message that breaks its contract is refused with a `CodecError` that names the field, so whoever holds a value can
compute with it.
"""

import itertools
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from leco.rpc.contract import checked_tensors
from leco.rpc.tensors import (
    ALIGNMENT,
    MAX_AXES,
    CodecError,
    Compression,
    expanded,
    layout,
    pack,
    payload_size,
    tensors_to_message,
    unpack,
)
from leco.types import EpisodeSummary, ParameterSnapshot, RunSpecification, Trajectory, TrajectorySpec
from leco.v1 import learner_pb2, tensor_pb2, trajectory_pb2

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "CodecError",
    "parameters_from_messages",
    "parameters_to_messages",
    "specification_from_message",
    "specification_to_message",
    "trajectory_from_message",
    "trajectory_to_message",
]

# A chunk of nearly 4 MiB would not fit, with its envelope, in gRPC's default limit of 4 MiB.
CHUNK_LIMIT_BYTES = 4_000_000
# What the HashCount service takes.
MAX_CODE_WIDTH = 256
MAX_COARSE_LEVELS = 8
_is_traceparent = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_is_run_name = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch


def specification_to_message(specification: RunSpecification) -> learner_pb2.RunSpecification:
    """A run as the learner describes it, held against learner.proto: a mistake shall show in the learner, not in its actors."""
    trajectories = specification.trajectories
    message = learner_pb2.RunSpecification(
        run=specification.run,
        task=specification.task,
        method=specification.method,
        unroll_length=trajectories.unroll_length,
        environments=specification.environments,
        action_count=trajectories.action_count,
        observation_shape=trajectories.observation_shape,
        core_state_shape=trajectories.core_state_shape,
        code_width=specification.code_width,
        configuration_toml=specification.configuration_toml,
        coarse_levels=trajectories.coarse_levels,
        reward_limit=0 if math.isinf(trajectories.reward_limit) else trajectories.reward_limit,
        observation_numbers=trajectories.numbers,
        action_masks=trajectories.masked,
    )
    _check_specification(message)
    return message


def specification_from_message(message: learner_pb2.RunSpecification) -> RunSpecification:
    """The run in a message, if it keeps every promise of learner.proto."""
    _check_specification(message)
    return RunSpecification(
        run=message.run,
        task=message.task,
        method=message.method,
        environments=message.environments,
        code_width=message.code_width,
        configuration_toml=message.configuration_toml,
        trajectories=TrajectorySpec(
            unroll_length=message.unroll_length,
            observation_shape=tuple(message.observation_shape),
            action_count=message.action_count,
            core_state_shape=tuple(message.core_state_shape),
            coarse_levels=message.coarse_levels,
            reward_limit=message.reward_limit or math.inf,
            numbers=message.observation_numbers,
            masked=message.action_masks,
        ),
    )


def _check_specification(message: learner_pb2.RunSpecification) -> None:
    if not _is_run_name(message.run):
        raise CodecError(f"run is {message.run[:80]!r}, expected 1 to 64 characters of A-Z a-z 0-9 . _ -")
    for name in ("task", "method"):
        if not getattr(message, name):
            raise CodecError(f"{name} is empty, expected a name")
    for name in ("unroll_length", "environments", "action_count"):
        if getattr(message, name) < 1:
            raise CodecError(f"{name} is 0, expected at least 1")
    # The time axis of an unroll comes before those of an observation.
    for name, most, least in (("observation_shape", MAX_AXES - 1, 1), ("core_state_shape", MAX_AXES, 0)):
        shape = list(getattr(message, name))
        if len(shape) > most:
            raise CodecError(f"{name} has {len(shape)} axes, expected at most {most}")
        if min(shape, default=least) < least:
            raise CodecError(f"{name} is {shape}, expected axes of at least {least}")
    if message.code_width > MAX_CODE_WIDTH:
        raise CodecError(f"code_width is {message.code_width}, expected at most {MAX_CODE_WIDTH}")
    if message.coarse_levels > MAX_COARSE_LEVELS:
        raise CodecError(f"coarse_levels is {message.coarse_levels}, expected at most {MAX_COARSE_LEVELS}")
    _check_parts(message)
    if not 0 <= message.reward_limit < math.inf:
        raise CodecError(f"reward_limit is {message.reward_limit}, expected a finite number above 0, or 0 for no limit")


def _check_parts(message: learner_pb2.RunSpecification) -> None:
    """That there is room for the numbers and the mask in an observation."""
    beside = 4 * message.observation_numbers + (message.action_count if message.action_masks else 0)
    if beside and (len(message.observation_shape) != 1 or message.observation_shape[0] < beside):
        raise CodecError(
            f"observation_shape is {list(message.observation_shape)}, expected one axis of at least {beside}: the bytes of "
            "observation_numbers and of action_masks"
        )


def trajectory_to_message(trajectory: Trajectory, *, compression: Compression = "none") -> trajectory_pb2.Trajectory:
    """A trajectory as the actor sends it."""
    tensors: dict[str, npt.NDArray[Any]] = {
        "observation": trajectory.observation,
        "start": trajectory.start,
        "terminal_observation": trajectory.terminal_observation,
        "action": trajectory.action,
        "reward": trajectory.reward,
        "behaviour_logits": trajectory.behaviour_logits,
        "core_state": trajectory.core_state,
    }
    if trajectory.count is not None:
        tensors["count"] = trajectory.count
    if trajectory.coarse_count is not None and trajectory.coarse_code is not None:
        tensors |= {"coarse_count": trajectory.coarse_count, "coarse_code": trajectory.coarse_code}
    return trajectory_pb2.Trajectory(
        number=trajectory.number,
        parameters_version=trajectory.parameters_version,
        counted=trajectory.count is not None,
        previous_action=trajectory.previous_action,
        previous_reward=trajectory.previous_reward,
        tensors=tensors_to_message(tensors, compression=compression),
        episodes=[
            trajectory_pb2.EpisodeSummary(
                episode_return=episode.episode_return,
                length=episode.length,
                success=episode.success,
                dropped=episode.dropped,
                truncated=episode.truncated,
            )
            for episode in trajectory.episodes
        ],
        traceparent=trajectory.traceparent,
    )


def trajectory_from_message(message: trajectory_pb2.Trajectory, spec: TrajectorySpec) -> Trajectory:
    """The trajectory in a message, if it keeps every promise of trajectory.proto for a run of this specification.

    The arrays are read-only views over one buffer.
    """
    if message.traceparent and not _is_traceparent(message.traceparent):
        raise CodecError(
            f"traceparent is {message.traceparent[:80]!r}, expected one of version 00 of W3C's, or nothing"
        )
    tensors = checked_tensors(_uncompressed(message, spec), spec)
    return Trajectory(
        number=message.number,
        parameters_version=message.parameters_version,
        previous_action=message.previous_action,
        previous_reward=message.previous_reward,
        observation=tensors["observation"],
        start=tensors["start"],
        terminal_observation=tensors["terminal_observation"],
        action=tensors["action"],
        reward=tensors["reward"],
        behaviour_logits=tensors["behaviour_logits"],
        core_state=tensors["core_state"],
        count=tensors.get("count"),
        coarse_count=tensors.get("coarse_count"),
        coarse_code=tensors.get("coarse_code"),
        episodes=tuple(
            EpisodeSummary(
                episode.episode_return, episode.length, episode.success, episode.dropped, truncated=episode.truncated
            )
            for episode in message.episodes
        ),
        traceparent=message.traceparent,
    )


def _uncompressed(message: trajectory_pb2.Trajectory, spec: TrajectorySpec) -> trajectory_pb2.Trajectory:
    """The message itself, or one with the payload that its compressed one stands for."""
    if message.tensors.compression == tensor_pb2.COMPRESSION_UNSPECIFIED:
        return message
    payload = expanded(message.tensors, layout(message.tensors.specs), max_bytes=_largest_payload(spec))
    plain = trajectory_pb2.Trajectory()
    plain.CopyFrom(message)
    plain.tensors.payload = payload
    plain.tensors.compression = tensor_pb2.COMPRESSION_UNSPECIFIED
    return plain


def _largest_payload(spec: TrajectorySpec) -> int:
    """At least the bytes of any trajectory of this run: one in which every action ends an episode, with counts."""
    steps = spec.unroll_length
    observations = (2 * steps + 1) * math.prod(spec.observation_shape)  # with the terminal ones
    beside = 3 + 2 * spec.coarse_levels  # action, reward, count; counts and codes of coarser levels
    words = steps * (spec.action_count + beside) + math.prod(spec.core_state_shape)
    return observations + (steps + 1) + 4 * words + (10 if spec.coarse_levels else 8) * ALIGNMENT


def parameters_to_messages(
    snapshot: ParameterSnapshot, *, chunk_bytes: int = 2 * 1024 * 1024
) -> Iterator[learner_pb2.ParametersResponse]:
    """A snapshot as a stream: the header, then the payload in chunks. It is packed here, the chunks are cut as asked."""
    if not 1 <= chunk_bytes < CHUNK_LIMIT_BYTES:
        raise ValueError(f"chunk_bytes is {chunk_bytes}, expected 1 to {CHUNK_LIMIT_BYTES - 1}")
    specs, payload = pack(snapshot.tensors)
    header = learner_pb2.ParametersHeader(
        version=snapshot.version, specs=specs, payload_bytes=len(payload), payload_crc32=zlib.crc32(payload)
    )
    chunks = (
        learner_pb2.ParametersResponse(chunk=payload[start : start + chunk_bytes])
        for start in range(0, len(payload), chunk_bytes)
    )
    return itertools.chain([learner_pb2.ParametersResponse(header=header)], chunks)


def parameters_from_messages(
    messages: Iterable[learner_pb2.ParametersResponse], *, max_bytes: int
) -> ParameterSnapshot | None:
    """The snapshot in a stream, or None if the stream is empty: nothing newer than what the caller has.

    The arrays are read-only views over one buffer of at most `max_bytes`, which is reserved only after the header was
    found consistent.
    """
    stream = iter(messages)
    first = next(stream, None)
    if first is None:
        return None
    if first.WhichOneof("message") != "header":
        raise CodecError(f"message 0 has {first.WhichOneof('message') or 'nothing'}, expected header")
    header = first.header
    if header.version < 1:
        raise CodecError("version is 0, expected at least 1")
    places = layout(header.specs)
    if header.payload_bytes != payload_size(places):
        raise CodecError(f"payload_bytes is {header.payload_bytes}, expected {payload_size(places)} by the specs")
    if header.payload_bytes > max_bytes:
        raise CodecError(f"payload_bytes is {header.payload_bytes}, expected at most {max_bytes}")
    payload = _joined(stream, header.payload_bytes)
    if (crc := zlib.crc32(payload)) != header.payload_crc32:
        raise CodecError(f"the chunks have CRC-32 {crc:#010x}, expected payload_crc32 {header.payload_crc32:#010x}")
    return ParameterSnapshot(version=header.version, tensors=unpack(places, payload))


def _joined(stream: Iterator[learner_pb2.ParametersResponse], size: int) -> bytearray:
    """The chunks of a stream, exactly `size` bytes of them, read into one buffer.

    An empty chunk is refused, so that no stream can go on for ever.
    """
    payload = bytearray(size)
    received = 0
    for index, message in enumerate(stream, start=1):
        if message.WhichOneof("message") != "chunk":
            raise CodecError(f"message {index} has {message.WhichOneof('message') or 'nothing'}, expected chunk")
        chunk = message.chunk
        if not 1 <= len(chunk) < CHUNK_LIMIT_BYTES:
            raise CodecError(
                f"the chunk in message {index} has {len(chunk)} bytes, expected 1 to {CHUNK_LIMIT_BYTES - 1}"
            )
        if received + len(chunk) > size:
            raise CodecError(f"the chunks have at least {received + len(chunk)} bytes, expected payload_bytes {size}")
        payload[received : received + len(chunk)] = chunk
        received += len(chunk)
    if received != size:
        raise CodecError(f"the chunks have {received} bytes, expected payload_bytes {size}")
    return payload
