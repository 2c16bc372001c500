"""An actor that compresses: how it is told to, and beside others at a real learner's server."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from leco.rpc import learner_client
from leco.rpc.channel import open_channel
from leco.rpc.codec import trajectory_to_message
from leco.rpc.interceptor import RpcInterceptor, RpcMetrics
from leco.rpc.learner_client import SERVICE, LearnerClient, Rejected
from leco.rpc.server import RpcServer
from leco.types import ParameterSnapshot, RunSpecification, Trajectory, TrajectorySpec
from leco.v1 import learner_pb2_grpc
from services.actor.__main__ import play_run
from services.actor.config import read_settings
from services.actor.metrics import ActorMetrics
from services.learner.metrics import LearnerMetrics
from services.learner.servicer import LearnerServicer
from services.learner.trajectory_queue import TrajectoryQueue
from support.harness import LoopThread
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import grpc

    from leco.rpc.tensors import Compression
    from leco.v1.trajectory_pb2 import Trajectory as TrajectoryMessage

STEPS = 20
SPEC = TrajectorySpec(unroll_length=STEPS, observation_shape=(72, 96, 3), action_count=4, core_state_shape=(2, 8))
RUN = RunSpecification(
    run="run-1",
    task="pixels",
    method="leco",
    environments=2,
    code_width=5,
    configuration_toml="",
    trajectories=SPEC,
)


def made(number: int) -> Trajectory:
    """A trajectory of pictures of a slope that moves."""
    random = np.random.default_rng(number)
    slope = np.arange(72)[:, None, None] + np.arange(96)[:, None] // 2 + np.zeros(3)
    pictures = [(slope + number + step).astype(np.uint8) for step in range(STEPS + 1)]
    return Trajectory(
        number=number,
        parameters_version=1,
        previous_action=-1,
        previous_reward=0.0,
        observation=np.array(pictures),
        start=np.array([True] + [False] * STEPS),
        terminal_observation=np.empty((0, 72, 96, 3), np.uint8),
        action=random.integers(0, 4, STEPS, np.int32),
        reward=random.standard_normal(STEPS, np.float32),
        behaviour_logits=random.standard_normal((STEPS, 4), np.float32),
        core_state=random.standard_normal((2, 8), np.float32),
        count=random.integers(1, 9, STEPS, np.uint32),
        episodes=(),
    )


class Learner:
    """A learner's server, and what came in."""

    def __init__(self, loop: LoopThread) -> None:
        self.registry = CollectorRegistry()
        metrics = LearnerMetrics(self.registry)
        self.queue = TrajectoryQueue(
            capacity=32, window=8, max_policy_lag=5, needs_counts=True, metrics=metrics, on_episodes=lambda _v, _e: None
        )
        self._loop = loop
        servicer = LearnerServicer(RUN, self.queue, metrics, software_version="1.2.3")

        async def start() -> None:
            interceptor = RpcInterceptor(RpcMetrics(CollectorRegistry(), "learner"), max_seconds=PATIENCE, max_calls=64)
            self._server = RpcServer(SERVICE, interceptor=interceptor)
            learner_pb2_grpc.add_LearnerServiceServicer_to_server(servicer, self._server.grpc)
            self.address = await self._server.start("127.0.0.1:0")
            self._server.set_serving(serving=True)

        loop.run(start())
        servicer.publish(ParameterSnapshot(1, {"weight": np.zeros(1, np.float32)}))

    def stop(self) -> None:
        self._loop.run(self._server.drain(0))

    def received_bytes(self) -> float:
        value = self.registry.get_sample_value("leco_learner_received_bytes_total")
        assert value is not None
        return value


@pytest.fixture
def learner() -> Iterator[Learner]:
    loop = LoopThread()
    learner = Learner(loop)
    yield learner
    learner.stop()
    loop.close()


@pytest.fixture
def channel(learner: Learner) -> Iterator[grpc.Channel]:
    with open_channel(learner.address, service=SERVICE) as channel:
        yield channel


def joined(channel: grpc.Channel, compression: Compression) -> LearnerClient:
    client = LearnerClient(
        channel, actor_name="a", software_version="1.2.9", max_unacknowledged=8, compression=compression
    )
    client.join(give_up_after=PATIENCE)
    return client


def assert_same(one: Trajectory, other: Trajectory) -> None:
    for field in fields(Trajectory):
        np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name), err_msg=field.name)


def test_an_actor_that_compresses_and_one_that_does_not_push_to_one_learner(
    learner: Learner, channel: grpc.Channel
) -> None:
    sent = [made(number) for number in range(1, 7)]
    with joined(channel, "none") as plain, joined(channel, "zstd") as small:
        for trajectory in sent:
            plain.push(trajectory)
            small.push(trajectory)
        taken = learner.queue.take(12, PATIENCE)
        assert taken is not None
        assert plain.drain(PATIENCE) == small.drain(PATIENCE) == 0
    for trajectory in sent:
        both = [each for each in taken if each.number == trajectory.number]
        assert len(both) == 2
        for each in both:
            assert_same(each, trajectory)
    plain_bytes, small_bytes = (
        sum(trajectory_to_message(each, compression=compression).ByteSize() for each in sent)
        for compression in ("none", "zstd")
    )
    assert learner.received_bytes() == plain_bytes + small_bytes
    assert small_bytes < plain_bytes / 10


def cut(message: TrajectoryMessage) -> None:
    message.tensors.payload = message.tensors.payload[:-1]


def from_the_future(message: TrajectoryMessage) -> None:
    message.tensors.compression = 5  # type: ignore[assignment]


def rows(message: TrajectoryMessage) -> None:
    message.tensors.specs[2].shape[0] = 10**6


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (cut, "the compressed payload is broken, expected one whole zstd frame"),
        (from_the_future, "compression is 5, expected 0 (none) or 1 (zstd)"),
        (rows, "the tensors have 20736"),
    ],
)
def test_a_learner_refuses_a_bad_compressed_trajectory_says_which_and_goes_on(
    learner: Learner,
    channel: grpc.Channel,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[TrajectoryMessage], None],
    text: str,
) -> None:
    def spoiled(trajectory: Trajectory, *, compression: Compression) -> TrajectoryMessage:
        message = trajectory_to_message(trajectory, compression=compression)
        if trajectory.number == 2:
            spoil(message)
        return message

    with joined(channel, "zstd") as bad:
        with monkeypatch.context() as patch:
            patch.setattr(learner_client, "trajectory_to_message", spoiled)
            bad.push(made(1))
            bad.push(made(2))
        with pytest.raises(Rejected) as caught:
            bad.drain(PATIENCE)
    assert f"INVALID_ARGUMENT: trajectory 2: {text}" in str(caught.value)
    with joined(channel, "zstd") as good:
        good.push(made(1))
        assert learner.queue.take(2, PATIENCE) is not None
        assert good.drain(PATIENCE) == 0


@pytest.mark.parametrize(
    ("flags", "variable", "expected"),
    [
        ([], None, "none"),
        (["--compression", "zstd"], None, "zstd"),
        ([], "zstd", "zstd"),
        (["--compression=none"], "zstd", "none"),
        ([], "", "none"),
    ],
)
def test_compression_is_a_flag_and_a_variable(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], variable: str | None, expected: str
) -> None:
    monkeypatch.delenv("LECO_ACTOR_COMPRESSION", raising=False)
    if variable is not None:
        monkeypatch.setenv("LECO_ACTOR_COMPRESSION", variable)
    assert read_settings(flags).compression == expected


def test_a_compression_that_there_is_not_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_settings(["--compression", "lz4"])
    assert caught.value.code == 2
    expected = "must be one of none, zstd, and not 'lz4' (--compression or LECO_ACTOR_COMPRESSION)"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_actor_hands_its_setting_to_its_client(
    monkeypatch: pytest.MonkeyPatch, channel: grpc.Channel, compression: Compression
) -> None:
    made_with: list[Any] = []

    class Client(LearnerClient):
        def __init__(self, channel: grpc.Channel, **settings: Any) -> None:
            made_with.append(settings["compression"])
            super().__init__(channel, **settings)
            self.close()  # so that it plays nothing

    monkeypatch.setattr(learner_client, "LearnerClient", Client)
    settings = replace(read_settings([f"--compression={compression}"]), drain_seconds=0.01)
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(learner_client.LearnerError):
        play_run(settings, ActorMetrics(CollectorRegistry()), channel, None, stopped)
    assert made_with == [compression]
