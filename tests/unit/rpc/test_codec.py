import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zstandard
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from leco.rpc.codec import (
    CodecError,
    parameters_from_messages,
    parameters_to_messages,
    specification_from_message,
    specification_to_message,
    trajectory_from_message,
    trajectory_to_message,
)
from leco.rpc.tensors import COMPRESSIONS, Compression, tensors_from_message, tensors_to_message
from leco.types import EpisodeSummary, ParameterSnapshot, RunSpecification, Trajectory, TrajectorySpec
from leco.v1 import learner_pb2, trajectory_pb2
from leco.v1.learner_pb2 import ParametersHeader, ParametersResponse
from leco.v1.tensor_pb2 import COMPRESSION_ZSTD, DataType, Tensors, TensorSpec
from support.peak import peak_bytes
from support.uncompiled import make_uncompiled

Array = npt.NDArray[Any]

SPEC = TrajectorySpec(unroll_length=5, observation_shape=(2, 3), action_count=4, core_state_shape=(2, 1))
MIB = 2**20
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # W3C's example


def make_trajectory(spec: TrajectorySpec, start: list[bool], *, counted: bool = True, seed: int = 0) -> Trajectory:
    rng = np.random.default_rng(seed)
    steps, ended = spec.unroll_length, sum(start[1:])
    observation = (steps + 1, *spec.observation_shape)
    coarse = (steps, spec.coarse_levels) if counted and spec.coarse_levels else None
    return Trajectory(
        number=3,
        parameters_version=8,
        previous_action=-1 if start[0] else 2,
        previous_reward=0.0 if start[0] else 0.25,
        observation=rng.integers(0, 256, observation, np.uint8),
        start=np.array(start),
        terminal_observation=rng.integers(0, 256, (ended, *spec.observation_shape), np.uint8),
        action=rng.integers(0, spec.action_count, steps, np.int32),
        reward=rng.standard_normal(steps, np.float32),
        behaviour_logits=rng.standard_normal((steps, spec.action_count), np.float32),
        core_state=rng.standard_normal(spec.core_state_shape, np.float32),
        count=rng.integers(1, 9, steps, np.uint32) if counted else None,
        coarse_count=None if coarse is None else rng.integers(1, 9, coarse, np.uint32),
        coarse_code=None if coarse is None else rng.integers(0, 2**32, coarse, np.uint32),
        episodes=tuple(EpisodeSummary(index + 0.5, 10 + index, index == 0, index == 1) for index in range(ended)),
        traceparent="" if seed % 2 else TRACEPARENT,
    )


def two_ends() -> Trajectory:
    """An unroll that begins inside an episode; its second and its last action end one."""
    return make_trajectory(SPEC, [False, False, True, False, False, True])


COARSER = replace(SPEC, coarse_levels=2)


def with_coarser_codes() -> Trajectory:
    return make_trajectory(COARSER, [False, False, True, False, False, True])


def assert_same(one: Trajectory, other: Trajectory) -> None:
    for field in fields(Trajectory):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right, err_msg=field.name, strict=True)
        else:
            assert left == right, field.name


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        TrajectorySpec,
        st.integers(1, 6),
        st.lists(st.integers(1, 4), max_size=3).map(tuple),
        st.integers(1, 5),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.integers(0, 3),
    ),
    st.booleans(),
    st.sampled_from(COMPRESSIONS),
    st.data(),
)
def test_a_trajectory_survives_the_wire(
    spec: TrajectorySpec, counted: bool, compression: Compression, data: st.DataObject
) -> None:
    length = spec.unroll_length + 1
    start = data.draw(st.lists(st.booleans(), min_size=length, max_size=length))
    # A task with a single action has no action 2.
    previous_action = -1 if start[0] else spec.action_count - 1
    made = make_trajectory(spec, start, counted=counted)
    trajectory = replace(made, previous_action=previous_action)
    wire = trajectory_to_message(trajectory, compression=compression).SerializeToString()
    assert_same(trajectory_from_message(trajectory_pb2.Trajectory.FromString(wire), spec), trajectory)


def test_the_tensors_travel_in_the_order_of_the_contract() -> None:
    message = trajectory_to_message(two_ends())
    names = ["observation", "start", "terminal_observation", "action", "reward", "behaviour_logits", "core_state"]
    assert [spec.name for spec in message.tensors.specs] == [*names, "count"]
    assert message.counted
    uncounted = trajectory_to_message(replace(two_ends(), count=None))
    assert [spec.name for spec in uncounted.tensors.specs] == names
    assert not uncounted.counted
    coarser = trajectory_to_message(with_coarser_codes())
    assert [spec.name for spec in coarser.tensors.specs] == [*names, "count", "coarse_count", "coarse_code"]


def test_coarser_codes_that_a_run_does_not_have_are_refused() -> None:
    with pytest.raises(CodecError, match=r"tensors\[8\] is 'coarse_count', expected no more tensors"):
        trajectory_from_message(trajectory_to_message(with_coarser_codes()), SPEC)


def test_decoded_arrays_are_read_only_views_over_one_buffer() -> None:
    trajectory = trajectory_from_message(trajectory_to_message(two_ends()), SPEC)
    arrays = [value for field in fields(trajectory) if isinstance(value := getattr(trajectory, field.name), np.ndarray)]
    assert len(arrays) == 8
    assert len({id(array.base) for array in arrays}) == 1
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


Message = trajectory_pb2.Trajectory


def field_is(**values: Any) -> Callable[[Message], None]:
    def change(message: Message) -> None:
        for name, value in values.items():
            setattr(message, name, value)

    return change


def tensors_are(change: Callable[[dict[str, Array]], object]) -> Callable[[Message], None]:
    def change_message(message: Message) -> None:
        tensors = tensors_from_message(message.tensors)
        change(tensors)
        message.tensors.CopyFrom(tensors_to_message(tensors))

    return change_message


def tensor_is(name: str, array: npt.ArrayLike, dtype: npt.DTypeLike) -> Callable[[Message], None]:
    return tensors_are(lambda tensors: tensors.update({name: np.asarray(array, dtype)}))


def element_is(name: str, index: tuple[int, ...], value: float) -> Callable[[Message], None]:
    def change(tensors: dict[str, Array]) -> None:
        array = tensors[name].copy()
        array[index] = value
        tensors[name] = array

    return tensors_are(change)


def second_episode_is(episode: trajectory_pb2.EpisodeSummary) -> Callable[[Message], None]:
    return lambda message: message.episodes[1].CopyFrom(episode)


def reversed_tensors(tensors: dict[str, Array]) -> None:
    items = list(tensors.items())
    tensors.clear()
    tensors.update(reversed(items))


NO_END = "the true elements of start[1:]"
MALFORMED: dict[str, tuple[Callable[[Message], Any], str]] = {
    "number": (field_is(number=0), "number is 0, expected at least 1"),
    "version": (field_is(parameters_version=0), "parameters_version is 0, expected at least 1"),
    "no tensors": (
        lambda message: message.ClearField("tensors"),
        "tensors[0] is missing, expected 'observation' (counted is true)",
    ),
    "count without counted": (
        field_is(counted=False),
        "tensors[7] is 'count', expected no more tensors (counted is false)",
    ),
    "counted without count": (
        tensors_are(lambda tensors: tensors.pop("count")),
        "tensors[7] is missing, expected 'count' (counted is true)",
    ),
    "another order": (
        tensors_are(reversed_tensors),
        "tensors[0] is 'count', expected 'observation' (counted is true)",
    ),
    "one too many": (
        tensor_is("line\nbreak", 0, np.int32),
        "tensors[8] is 'line\\nbreak', expected no more tensors (counted is true)",
    ),
    "payload": (
        lambda message: setattr(message.tensors, "payload", message.tensors.payload[:-1]),
        "the payload has 219 bytes, expected 220",
    ),
    "start type": (tensor_is("start", [0] * 6, np.uint8), "start has type uint8, expected bool"),
    "action type": (tensor_is("action", [0] * 5, np.int64), "action has type int64, expected int32"),
    "reward type": (tensor_is("reward", [0] * 5, np.float64), "reward has type float64, expected float32"),
    "count type": (tensor_is("count", [1] * 5, np.int32), "count has type int32, expected uint32"),
    "observation shape": (
        tensor_is("observation", np.zeros((5, 2, 3)), np.uint8),
        "observation has shape [5, 2, 3], expected [6, 2, 3]",
    ),
    "start shape": (tensor_is("start", np.zeros((6, 1)), np.bool_), "start has shape [6, 1], expected [6]"),
    "terminal_observation shape": (
        tensor_is("terminal_observation", np.zeros((2, 2, 2)), np.uint8),
        "terminal_observation has shape [2, 2, 2], expected [E, 2, 3]",
    ),
    "action shape": (tensor_is("action", [0] * 6, np.int32), "action has shape [6], expected [5]"),
    "reward shape": (tensor_is("reward", 0, np.float32), "reward has shape [], expected [5]"),
    "behaviour_logits shape": (
        tensor_is("behaviour_logits", np.zeros((5, 3)), np.float32),
        "behaviour_logits has shape [5, 3], expected [5, 4]",
    ),
    "core_state shape": (tensor_is("core_state", [0], np.float32), "core_state has shape [1], expected [2, 1]"),
    "count shape": (tensor_is("count", [1] * 4, np.uint32), "count has shape [4], expected [5]"),
    "terminal_observation rows": (
        tensor_is("terminal_observation", np.zeros((1, 2, 3)), np.uint8),
        f"terminal_observation has 1 rows, expected 2, {NO_END}",
    ),
    "start marks another end": (
        element_is("start", (1,), True),
        f"terminal_observation has 2 rows, expected 3, {NO_END}",
    ),
    "too few episodes": (
        lambda message: message.episodes.pop(),
        f"episodes has 1 elements, expected 2, {NO_END}",
    ),
    "too many episodes": (
        lambda message: message.episodes.add(length=1),
        f"episodes has 3 elements, expected 2, {NO_END}",
    ),
    "episode_return": (
        second_episode_is(trajectory_pb2.EpisodeSummary(episode_return=float("inf"), length=1)),
        "episodes[1].episode_return is inf, expected a finite number",
    ),
    "episode length": (
        second_episode_is(trajectory_pb2.EpisodeSummary(episode_return=1)),
        "episodes[1].length is 0, expected at least 1",
    ),
    "action too low": (element_is("action", (3,), -1), "action[3] is -1, expected 0 to 3"),
    "action too high": (element_is("action", (0,), 4), "action[0] is 4, expected 0 to 3"),
    "reward": (element_is("reward", (4,), float("nan")), "reward[4] is nan, expected a finite number"),
    "behaviour_logits": (
        element_is("behaviour_logits", (2, 1), -float("inf")),
        "behaviour_logits[2, 1] is -inf, expected a finite number",
    ),
    "core_state": (
        element_is("core_state", (1, 0), float("inf")),
        "core_state[1, 0] is inf, expected a finite number",
    ),
    "count": (element_is("count", (2,), 0), "count[2] is 0, expected at least 1"),
    "no previous action": (
        field_is(previous_action=-1),
        "previous_action is -1, expected 0 to 3 because start[0] is false",
    ),
    "previous action too high": (
        field_is(previous_action=4),
        "previous_action is 4, expected 0 to 3 because start[0] is false",
    ),
    "previous reward": (
        field_is(previous_reward=float("nan")),
        "previous_reward is nan, expected a finite number",
    ),
    "traceparent": (
        field_is(traceparent=TRACEPARENT.upper()),
        f"traceparent is {TRACEPARENT.upper()!r}, expected one of version 00 of W3C's, or nothing",
    ),
    "traceparent too long": (
        field_is(traceparent=2 * TRACEPARENT),
        f"traceparent is {(2 * TRACEPARENT)[:80]!r}, expected one of version 00 of W3C's, or nothing",
    ),
}


@pytest.mark.parametrize(("change", "text"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_trajectory_is_refused_with_the_reason(change: Callable[[Message], Any], text: str) -> None:
    message = trajectory_to_message(two_ends())
    change(message)
    with pytest.raises(CodecError) as caught:
        trajectory_from_message(Message.FromString(message.SerializeToString()), SPEC)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (field_is(previous_action=0), "previous_action is 0, expected -1 because start[0] is true"),
        (field_is(previous_reward=0.5), "previous_reward is 0.5, expected 0 because start[0] is true"),
        (field_is(previous_reward=float("nan")), "previous_reward is nan, expected 0 because start[0] is true"),
    ],
)
def test_nothing_comes_before_the_start_of_an_episode(change: Callable[[Message], None], text: str) -> None:
    message = trajectory_to_message(make_trajectory(SPEC, [True] + [False] * 5))
    change(message)
    with pytest.raises(CodecError) as caught:
        trajectory_from_message(message, SPEC)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            tensor_is("coarse_count", [[1, 1]] * 4, np.uint32),
            "coarse_count has shape [4, 2], expected [5, 2]",
        ),
        (tensor_is("coarse_code", [[1, 1]] * 5, np.int32), "coarse_code has type int32, expected uint32"),
        (element_is("coarse_count", (2, 1), 0), "coarse_count[2, 1] is 0, expected at least 1"),
        (
            tensors_are(lambda tensors: tensors.pop("coarse_code")),
            "tensors[9] is missing, expected 'coarse_code' (counted is true)",
        ),
    ],
)
def test_coarser_codes_are_as_the_specification_says(change: Callable[[Message], None], text: str) -> None:
    message = trajectory_to_message(with_coarser_codes())
    change(message)
    with pytest.raises(CodecError) as caught:
        trajectory_from_message(message, COARSER)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (element_is("reward", (4,), 8.5), "reward[4] is 8.5"),
        (element_is("reward", (0,), -1e12), "reward[0] is -999999995904.0"),
        (element_is("reward", (0,), float("nan")), "reward[0] is nan"),
        (field_is(previous_reward=3e38), "previous_reward is 3.0000000"),
        (
            second_episode_is(trajectory_pb2.EpisodeSummary(episode_return=-9, length=1)),
            "episodes[1].episode_return is -9.0",
        ),
    ],
)
def test_a_reward_or_return_beyond_the_limit_of_the_run_is_refused(
    change: Callable[[Message], Any], named: str
) -> None:
    message = trajectory_to_message(two_ends())
    change(message)
    with pytest.raises(CodecError) as caught:
        trajectory_from_message(message, replace(SPEC, reward_limit=8.0))
    assert str(caught.value).startswith(named)
    assert str(caught.value).endswith("expected -8 to 8, the run's reward_limit")


def test_a_reward_at_the_limit_of_the_run_is_taken() -> None:
    message = trajectory_to_message(two_ends())
    for change in (element_is("reward", (4,), -8.0), field_is(previous_reward=8.0)):
        change(message)
    assert trajectory_from_message(message, replace(SPEC, reward_limit=8.0)).reward[4] == -8


def test_a_scalar_core_state_is_named_without_an_index() -> None:
    spec = replace(SPEC, core_state_shape=())
    message = trajectory_to_message(make_trajectory(spec, [True] + [False] * 5))
    tensor_is("core_state", float("nan"), np.float32)(message)
    with pytest.raises(CodecError, match=r"^core_state is nan, expected a finite number$"):
        trajectory_from_message(message, spec)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_flipped_and_missing_bytes_never_break_the_trajectory_decoder(data: st.DataObject) -> None:
    compression = data.draw(st.sampled_from(COMPRESSIONS))
    wire = bytearray(trajectory_to_message(two_ends(), compression=compression).SerializeToString())
    for position in data.draw(st.lists(st.integers(0, len(wire) - 1), max_size=3)):
        wire[position] = data.draw(st.integers(0, 255))
    del wire[data.draw(st.integers(0, len(wire)) | st.just(len(wire))) :]
    try:
        trajectory = trajectory_from_message(Message.FromString(bytes(wire)), SPEC)
    except (CodecError, DecodeError):
        return
    assert trajectory.observation.shape == (6, 2, 3)
    assert len(trajectory.episodes) == len(trajectory.terminal_observation) == trajectory.start[1:].sum()
    assert set(trajectory.action) <= {0, 1, 2, 3}
    assert all(np.isfinite(x).all() for x in (trajectory.reward, trajectory.behaviour_logits, trajectory.core_state))
    assert trajectory.count is None or trajectory.count.min() >= 1
    assert_same(trajectory_from_message(trajectory_to_message(trajectory), SPEC), trajectory)


# Compressed.


def played(task: str) -> tuple[Trajectory, TrajectorySpec]:
    """An unroll of a real task, with the observations of random play."""
    env, random, steps = make_uncompiled(task, 1, 3), np.random.default_rng(0), 96
    try:
        seen = [env.reset()[0]]
        seen += [env.step(random.integers(0, env.num_actions, 1)).observation_EO[0] for _ in range(steps)]
        spec = TrajectorySpec(steps, env.observation_shape, env.num_actions, (2, 2, 32))
    finally:
        env.close()
    trajectory = make_trajectory(spec, [True] + [False] * steps)
    return replace(trajectory, observation=np.array(seen)), spec


@pytest.mark.parametrize(("task", "ratio"), [("KeyCorridorS3R3", 2), ("vizdoom-my-way-home", 3)])
def test_what_a_task_looks_like_survives_compression_and_shrinks(task: str, ratio: float) -> None:
    trajectory, spec = played(task)
    wires = {each: trajectory_to_message(trajectory, compression=each).SerializeToString() for each in COMPRESSIONS}
    for wire in wires.values():
        assert_same(trajectory_from_message(Message.FromString(wire), spec), trajectory)
    assert ratio * len(wires["zstd"]) < len(wires["none"])


def test_actors_that_compress_and_actors_that_do_not_are_understood_side_by_side() -> None:
    for seed in range(6):
        trajectory = make_trajectory(SPEC, [True, False, True, True, False, False], seed=seed)
        message = trajectory_to_message(trajectory, compression=COMPRESSIONS[seed % 2])
        before = message.SerializeToString()
        assert_same(trajectory_from_message(message, SPEC), trajectory)
        assert message.SerializeToString() == before  # it belongs to the caller


def test_a_decompressed_trajectory_is_read_only_views_over_one_buffer() -> None:
    trajectory = trajectory_from_message(trajectory_to_message(two_ends(), compression="zstd"), SPEC)
    arrays = [value for field in fields(trajectory) if isinstance(value := getattr(trajectory, field.name), np.ndarray)]
    assert len({id(array.base) for array in arrays}) == 1
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def compress(message: Message) -> None:
    """What the message is, compressed by somebody else."""
    message.tensors.payload = zstandard.ZstdCompressor(write_checksum=True).compress(message.tensors.payload)
    message.tensors.compression = COMPRESSION_ZSTD


# Of a run of SPEC: 11 rows of 6 bytes, 6 flags, 37 numbers of 4 bytes, 8 gaps of at most 8.
OF_SPEC = "expected 1 to 284 in a compressed payload"
OTHERWISE_COMPRESSED = {
    "no tensors": f"the tensors have 0 bytes, {OF_SPEC}",
    "payload": "the size of the compressed payload is 219, expected 220 by the specs",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_trajectory_is_refused_with_the_same_reason_if_it_is_compressed(case: str) -> None:
    change, text = MALFORMED[case]
    message = trajectory_to_message(two_ends())
    change(message)
    compress(message)
    with pytest.raises(CodecError) as caught:
        trajectory_from_message(Message.FromString(message.SerializeToString()), SPEC)
    assert str(caught.value) == OTHERWISE_COMPRESSED.get(case, text)


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        replace(SPEC, unroll_length=1, core_state_shape=()),
        replace(SPEC, observation_shape=(), action_count=3),
        # In these, one kind of tensor outweighs all gaps.
        replace(SPEC, unroll_length=40, observation_shape=(10, 10)),
        replace(SPEC, unroll_length=200, observation_shape=(1,), action_count=1),
        replace(SPEC, action_count=100),
        replace(SPEC, core_state_shape=(2, 100)),
        replace(SPEC, unroll_length=100, coarse_levels=8),
    ],
)
def test_the_largest_trajectory_of_a_run_may_be_compressed(spec: TrajectorySpec) -> None:
    trajectory = make_trajectory(spec, [True] * (spec.unroll_length + 1))
    assert_same(trajectory_from_message(trajectory_to_message(trajectory, compression="zstd"), spec), trajectory)


@pytest.mark.parametrize("rows", [100, 10_000_000, 2**32 - 1])
def test_rows_that_no_unroll_has_are_refused_before_they_are_expanded(rows: int) -> None:
    message = trajectory_to_message(two_ends())
    specs = list(message.tensors.specs)
    specs[2] = TensorSpec(name="terminal_observation", dtype=DataType.DATA_TYPE_UINT8, shape=[rows, 2, 3])
    size = len(message.tensors.payload) + (6 * rows + 7) // 8 * 8 - 16
    bomb = zstandard.ZstdCompressor(write_checksum=True).compress(bytes(min(size, 6 * 10**7 + 400)))
    message.tensors.CopyFrom(Tensors(specs=specs, payload=bomb, compression=COMPRESSION_ZSTD))

    def refused() -> None:
        with pytest.raises(CodecError) as caught:
            trajectory_from_message(message, SPEC)
        assert str(caught.value) == f"the tensors have {size} bytes, {OF_SPEC}"

    assert peak_bytes(refused) < MIB


def test_a_compressed_trajectory_cut_at_any_byte_is_refused() -> None:
    message = trajectory_to_message(two_ends(), compression="zstd")
    payload = message.tensors.payload
    for length in range(len(payload)):
        message.tensors.payload = payload[:length]
        with pytest.raises(CodecError, match="compressed payload"):
            trajectory_from_message(message, SPEC)


def test_a_flipped_bit_in_a_compressed_trajectory_is_refused_or_changes_nothing() -> None:
    message = trajectory_to_message(two_ends(), compression="zstd")
    payload = message.tensors.payload
    for bit in range(8 * len(payload)):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        message.tensors.payload = bytes(changed)
        try:
            assert_same(trajectory_from_message(message, SPEC), two_ends())
        except CodecError:
            continue


def test_a_compression_from_the_future_is_refused() -> None:
    message = trajectory_to_message(two_ends())
    message.tensors.compression = 9  # type: ignore[assignment]
    with pytest.raises(CodecError, match=r"^compression is 9, expected 0 \(none\) or 1 \(zstd\)$"):
        trajectory_from_message(message, SPEC)


def snapshot() -> ParameterSnapshot:
    rng = np.random.default_rng(1)
    return ParameterSnapshot(
        version=12,
        tensors={
            "policy.weight": rng.standard_normal((7, 5), np.float32),
            "policy.steps": np.array(10**12),
            "hash.scale": np.array([0.1, -2.5]),
            "hash.mask": np.array([True, False, True]),
            "empty": np.zeros((0, 3), np.float32),
        },
    )


def received(messages: Iterable[ParametersResponse], max_bytes: int = MIB) -> ParameterSnapshot:
    """What the other side gets, after the messages went through bytes."""
    result = parameters_from_messages(
        (ParametersResponse.FromString(message.SerializeToString()) for message in messages), max_bytes=max_bytes
    )
    assert result is not None
    return result


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 3_999_999])
def test_parameters_survive_the_wire_bit_for_bit(chunk_bytes: int) -> None:
    messages = list(parameters_to_messages(snapshot(), chunk_bytes=chunk_bytes))
    assert all(len(message.chunk) <= chunk_bytes for message in messages)
    result = received(messages)
    assert result.version == 12
    assert list(result.tensors) == list(snapshot().tensors)
    for name, tensor in snapshot().tensors.items():
        np.testing.assert_array_equal(result.tensors[name], tensor, strict=True)
        with pytest.raises(ValueError, match="read-only"):
            result.tensors[name][...] = 0
    assert len({id(tensor.base) for tensor in result.tensors.values()}) == 1


def test_a_large_snapshot_travels_in_messages_under_4_mb() -> None:
    tensors: dict[str, Array] = {"x": np.arange(5 * MIB // 8), "y": np.ones(3, np.uint8)}
    messages = list(parameters_to_messages(ParameterSnapshot(1, tensors)))
    assert [len(message.chunk) for message in messages[1:]] == [2 * MIB, 2 * MIB, MIB + 3]
    np.testing.assert_array_equal(received(messages, 6 * MIB).tensors["x"], tensors["x"])


def test_a_type_that_the_wire_does_not_have_is_refused() -> None:
    wide = ParameterSnapshot(1, {"x": np.zeros(2, np.longdouble)})
    with pytest.raises(CodecError, match=rf"^array 'x' has dtype {np.dtype(np.longdouble)}, "):
        parameters_to_messages(wide)


def test_an_empty_stream_means_nothing_newer() -> None:
    assert parameters_from_messages([], max_bytes=0) is None


def test_a_snapshot_without_elements_is_a_header_alone() -> None:
    messages = list(parameters_to_messages(ParameterSnapshot(1, {"x": np.zeros(0)})))
    assert [message.WhichOneof("message") for message in messages] == ["header"]
    assert received(messages, 0).tensors["x"].shape == (0,)


@pytest.mark.parametrize("chunk_bytes", [0, -1, 4_000_000])
def test_a_chunk_size_that_the_contract_forbids_is_refused_at_the_call(chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match=rf"^chunk_bytes is {chunk_bytes}, expected 1 to 3999999$"):
        parameters_to_messages(snapshot(), chunk_bytes=chunk_bytes)


def header(**changes: Any) -> ParametersResponse:
    """The header of eight bytes `abcdefgh`."""
    specs = [TensorSpec(name="x", dtype=DataType.DATA_TYPE_UINT8, shape=[8])]
    values: dict[str, Any] = {"version": 1, "specs": specs, "payload_bytes": 8, "payload_crc32": 0xAEEF2A50}
    return ParametersResponse(header=ParametersHeader(**values | changes))


def chunk(data: bytes) -> ParametersResponse:
    return ParametersResponse(chunk=data)


BAD_TYPE = TensorSpec(name="x", shape=[8])
MALFORMED_STREAMS: dict[str, tuple[list[ParametersResponse], str]] = {
    "no header": ([chunk(b"abcdefgh")], "message 0 has chunk, expected header"),
    "nothing first": ([ParametersResponse()], "message 0 has nothing, expected header"),
    "two headers": ([header(), header()], "message 1 has header, expected chunk"),
    "nothing later": ([header(), ParametersResponse()], "message 1 has nothing, expected chunk"),
    "empty chunk": ([header(), chunk(b"")], "the chunk in message 1 has 0 bytes, expected 1 to 3999999"),
    "version": ([header(version=0), chunk(b"abcdefgh")], "version is 0, expected at least 1"),
    "size against specs": (
        [header(payload_bytes=9), chunk(b"abcdefghi")],
        "payload_bytes is 9, expected 8 by the specs",
    ),
    "over the limit": (
        [
            header(
                specs=[TensorSpec(name="x", dtype=DataType.DATA_TYPE_UINT8, shape=[2**20, 2**20])], payload_bytes=2**40
            )
        ],
        "payload_bytes is 1099511627776, expected at most 1048576",
    ),
    "no chunks": ([header()], "the chunks have 0 bytes, expected payload_bytes 8"),
    "truncated": ([header(), chunk(b"abcd"), chunk(b"ef")], "the chunks have 6 bytes, expected payload_bytes 8"),
    "too long": (
        [header(), chunk(b"abcd"), chunk(b"efghi")],
        "the chunks have at least 9 bytes, expected payload_bytes 8",
    ),
    "goes on after the end": (
        [header(), chunk(b"abcdefgh"), chunk(b"i")],
        "the chunks have at least 9 bytes, expected payload_bytes 8",
    ),
    "corrupted": (
        [header(), chunk(b"abcdefgH")],
        "the chunks have CRC-32 0x95810a98, expected payload_crc32 0xaeef2a50",
    ),
    "swapped": (
        [header(), chunk(b"efgh"), chunk(b"abcd")],
        "the chunks have CRC-32 0x653a190a, expected payload_crc32 0xaeef2a50",
    ),
}


@pytest.mark.parametrize(("messages", "text"), MALFORMED_STREAMS.values(), ids=MALFORMED_STREAMS)
def test_a_malformed_stream_is_refused_with_the_reason(messages: list[ParametersResponse], text: str) -> None:
    with pytest.raises(CodecError) as caught:
        received(messages)
    assert str(caught.value) == text


def test_a_header_with_a_malformed_spec_is_refused() -> None:
    with pytest.raises(CodecError, match=r"^tensor 'x' has data type 0, "):
        received([header(specs=[BAD_TYPE]), chunk(b"abcdefgh")])


def test_the_limit_is_exact() -> None:
    stream = [header(), chunk(b"abcdefgh")]
    assert received(stream, max_bytes=8).tensors["x"].tobytes() == b"abcdefgh"
    with pytest.raises(CodecError, match=r"^payload_bytes is 8, expected at most 7$"):
        received(stream, max_bytes=7)


def test_a_chunk_of_4_mb_is_refused() -> None:
    size = 4_000_000
    specs = [TensorSpec(name="x", dtype=DataType.DATA_TYPE_UINT8, shape=[size])]
    with pytest.raises(CodecError, match=r"^the chunk in message 1 has 4000000 bytes, expected 1 to 3999999$"):
        received([header(specs=specs, payload_bytes=size), chunk(bytes(size))], size)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_missing_and_moved_messages_never_give_other_parameters(data: st.DataObject) -> None:
    pieces = [m.SerializeToString() for m in parameters_to_messages(snapshot(), chunk_bytes=32)]
    whole = list(range(len(pieces)))
    order = data.draw(st.just(whole) | st.permutations(whole) | st.sets(st.sampled_from(whole), min_size=1).map(sorted))
    stream = [bytearray(pieces[index]) for index in order]
    damaged = data.draw(st.integers(0, len(stream) - 1))
    stream[damaged][data.draw(st.integers(0, len(stream[damaged]) - 1))] ^= data.draw(st.integers(0, 255))
    try:
        result = parameters_from_messages(map(ParametersResponse.FromString, map(bytes, stream)), max_bytes=MIB)
    except (CodecError, DecodeError):
        return
    assert result is not None
    # The CRC guards only the payload: damage to the header may give another version, name, type or shape.
    if order[damaged] != 0:
        truth = received(parameters_to_messages(snapshot()))
        assert result.version == truth.version
        assert list(result.tensors) == list(truth.tensors)
        for name, tensor in truth.tensors.items():
            np.testing.assert_array_equal(result.tensors[name], tensor, strict=True)


def test_receiving_holds_one_buffer_and_one_chunk() -> None:
    size, part = 8 * MIB, MIB // 4
    sent = ParameterSnapshot(1, {"x": np.zeros(size, np.uint8)})
    messages = list(parameters_to_messages(sent, chunk_bytes=part))
    assert size <= peak_bytes(lambda: parameters_from_messages(messages, max_bytes=size)) < size + 3 * part


def test_an_endless_stream_ends_and_costs_no_more_than_it_announced() -> None:
    def endless(data: bytes) -> Iterator[ParametersResponse]:
        return itertools.chain([header()], itertools.repeat(chunk(data)))

    def refused() -> None:
        for data in (b"", b"abc"):
            with pytest.raises(CodecError):
                parameters_from_messages(endless(data), max_bytes=MIB)

    assert peak_bytes(refused) < MIB


def test_a_claimed_size_over_the_limit_costs_no_memory() -> None:
    messages, _ = MALFORMED_STREAMS["over the limit"]

    def refused() -> None:
        with pytest.raises(CodecError):
            parameters_from_messages(messages, max_bytes=MIB)

    assert peak_bytes(refused) < MIB


def specification(**changes: Any) -> RunSpecification:
    return replace(
        RunSpecification(
            run="key-corridor_1.2",
            task="MiniGrid-KeyCorridorS3R3-v0",
            method="leco",
            environments=16,
            code_width=8,
            configuration_toml='[task]\nname = "KeyCorridorS3R3"\n',
            trajectories=SPEC,
        ),
        **changes,
    )


@pytest.mark.parametrize(
    "sent",
    [
        specification(),
        specification(code_width=0, configuration_toml=""),
        specification(trajectories=replace(SPEC, reward_limit=0.1)),
        specification(
            run="x" * 64,
            code_width=256,
            trajectories=TrajectorySpec(
                unroll_length=1, observation_shape=(1,) * 7, action_count=1, core_state_shape=(0,) * 8
            ),
        ),
        specification(trajectories=replace(SPEC, observation_shape=(), core_state_shape=())),
    ],
)
def test_a_specification_survives_the_wire(sent: RunSpecification) -> None:
    wire = specification_to_message(sent).SerializeToString()
    assert specification_from_message(learner_pb2.RunSpecification.FromString(wire)) == sent


RUN_RULE = "expected 1 to 64 characters of A-Z a-z 0-9 . _ -"
MALFORMED_SPECIFICATIONS: list[tuple[dict[str, Any], str]] = [
    ({"run": ""}, f"run is '', {RUN_RULE}"),
    ({"run": "a run"}, f"run is 'a run', {RUN_RULE}"),
    ({"run": "line\n"}, f"run is 'line\\n', {RUN_RULE}"),
    ({"run": "r" * 65}, f"run is '{'r' * 65}', {RUN_RULE}"),
    ({"run": "r" * 10**6}, f"run is '{'r' * 80}', {RUN_RULE}"),
    ({"task": ""}, "task is empty, expected a name"),
    ({"method": ""}, "method is empty, expected a name"),
    ({"unroll_length": 0}, "unroll_length is 0, expected at least 1"),
    ({"environments": 0}, "environments is 0, expected at least 1"),
    ({"action_count": 0}, "action_count is 0, expected at least 1"),
    ({"observation_shape": [7, 0, 3]}, "observation_shape is [7, 0, 3], expected axes of at least 1"),
    ({"observation_shape": [1] * 8}, "observation_shape has 8 axes, expected at most 7"),
    ({"core_state_shape": [1] * 9}, "core_state_shape has 9 axes, expected at most 8"),
    ({"code_width": 257}, "code_width is 257, expected at most 256"),
    ({"coarse_levels": 9}, "coarse_levels is 9, expected at most 8"),
    ({"reward_limit": -1.0}, "reward_limit is -1.0, expected a finite number above 0, or 0 for no limit"),
    ({"reward_limit": float("nan")}, "reward_limit is nan, expected a finite number above 0, or 0 for no limit"),
]


@pytest.mark.parametrize(
    ("changes", "text"), MALFORMED_SPECIFICATIONS, ids=[text for _, text in MALFORMED_SPECIFICATIONS]
)
def test_a_malformed_specification_is_refused_with_the_reason(changes: dict[str, Any], text: str) -> None:
    message = specification_to_message(specification())
    for name, value in changes.items():
        message.ClearField(name)  # type: ignore[arg-type]
        message.MergeFrom(learner_pb2.RunSpecification(**{name: value}))
    with pytest.raises(CodecError) as caught:
        specification_from_message(message)
    assert str(caught.value) == text


def test_a_malformed_specification_is_not_even_sent() -> None:
    with pytest.raises(CodecError, match=r"^run is 'a run', "):
        specification_to_message(specification(run="a run"))
    with pytest.raises(CodecError, match=r"^action_count is 0, expected at least 1$"):
        specification_to_message(specification(trajectories=replace(SPEC, action_count=0)))
