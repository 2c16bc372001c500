"""Actors and a learner, with real gRPC between them: the stream of trajectories, parameters, and joining."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import queue
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import grpc
import numpy as np
import pytest
import structlog
from prometheus_client import CollectorRegistry

from leco.rpc import channel as channel_module
from leco.rpc import learner_client
from leco.rpc import server as server_module
from leco.rpc.channel import open_channel
from leco.rpc.codec import parameters_to_messages, trajectory_to_message
from leco.rpc.interceptor import RpcInterceptor, RpcMetrics
from leco.rpc.learner_client import SERVICE, Closed, LearnerClient, Rejected, RunChanged, TakenOver, Unavailable
from leco.rpc.server import RpcServer
from leco.rpc.tensors import tensors_from_message, tensors_to_message
from leco.types import EpisodeSummary, ParameterSnapshot, RunSpecification, Trajectory, TrajectorySpec
from leco.v1 import learner_pb2_grpc
from leco.v1.learner_pb2 import (
    JoinRequest,
    ParametersRequest,
    ParametersResponse,
    PushHello,
    PushRequest,
    PushResponse,
)
from services.learner import servicer, trajectory_queue
from services.learner.metrics import LearnerMetrics
from services.learner.servicer import LearnerServicer
from services.learner.trajectory_queue import TrajectoryQueue
from support.harness import LoopThread
from support.raw_http2 import UnfinishedCalls
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leco.v1.trajectory_pb2 import Trajectory as TrajectoryMessage

MIB = 1 << 20
SPEC = TrajectorySpec(unroll_length=3, observation_shape=(2,), action_count=4, core_state_shape=(2,))
RUN = RunSpecification(
    run="run-1",
    task="MiniGrid-DoorKey-8x8-v0",
    method="leco",
    environments=2,
    code_width=5,
    configuration_toml="[task]\n",
    trajectories=replace(SPEC, reward_limit=100.0),
)
EPISODE = EpisodeSummary(0.5, 9, success=True)
INCARNATION = bytes(range(16))


def made(number: int, version: int = 1, *, actor: int = 0, counted: bool = True, ended: bool = False) -> Trajectory:
    """A trajectory whose action says who made it."""
    random_state = np.random.default_rng(number)
    return Trajectory(
        number=number,
        parameters_version=version,
        previous_action=-1,
        previous_reward=0.0,
        observation=random_state.integers(0, 256, (4, 2), np.uint8),
        start=np.array([True, False, ended, False]),
        terminal_observation=np.ones((int(ended), 2), np.uint8),
        action=np.array([actor % 4, actor // 4 % 4, actor // 16], np.int32),
        reward=random_state.standard_normal(3, np.float32),
        behaviour_logits=random_state.standard_normal((3, 4), np.float32),
        core_state=random_state.standard_normal(2, np.float32),
        count=np.array([1, 2, 1], np.uint32) if counted else None,
        episodes=(EPISODE,) * ended,
    )


def actor_of(trajectory: Trajectory) -> int:
    return int(trajectory.action @ np.array([1, 4, 16]))


def snapshot(version: int, **tensors: Any) -> ParameterSnapshot:
    return ParameterSnapshot(version, tensors or {"weight": np.arange(4, dtype=np.float32) + version})


class WatchedIntake(TrajectoryQueue):
    """Counts its places by hand whenever they change hands, and lists what was put into the queue."""

    def __init__(self, **settings: Any) -> None:
        self.most = 0
        self.arrived: list[Trajectory] = []
        super().__init__(**settings)

    def _grant(self) -> None:
        super()._grant()
        held = sum(stream.credits for stream in self._streams.values())
        assert held == self._outstanding
        self.most = max(self.most, held + len(self._queue))

    def _put(self, trajectory: Trajectory, last: int | None) -> Any:
        reason = super()._put(trajectory, last)
        if reason is None:
            self.arrived.append(trajectory)
        return reason


class Learner:
    """A learner without a trainer: a test takes, and publishes."""

    max_seconds = PATIENCE

    def __init__(self, loop: LoopThread, *, run: RunSpecification = RUN, publish: bool = True, **settings: Any) -> None:
        self.loop, self.run = loop, run
        self.registry = CollectorRegistry()
        self.metrics = LearnerMetrics(self.registry)
        self.episodes: list[tuple[int, Sequence[EpisodeSummary]]] = []
        self.queue = WatchedIntake(
            metrics=self.metrics,
            on_episodes=lambda version, episodes: self.episodes.append((version, episodes)),
            **{"capacity": 16, "window": 4, "max_policy_lag": 5, "needs_counts": True} | settings,
        )
        self.address = "127.0.0.1:0"
        self.start()
        if publish:
            self.servicer.publish(snapshot(1))

    def start(self) -> None:
        """Serves, at the same address as before; the queue stays the same."""
        self.rpc_registry = CollectorRegistry()
        metrics = RpcMetrics(self.rpc_registry, "learner")
        interceptor = RpcInterceptor(metrics, max_seconds=self.max_seconds, max_calls=128)

        async def start() -> None:
            self.server = RpcServer(SERVICE, interceptor=interceptor)
            self.servicer = LearnerServicer(self.run, self.queue, self.metrics, software_version="1.2.3")
            learner_pb2_grpc.add_LearnerServiceServicer_to_server(self.servicer, self.server.grpc)
            self.address = await self.server.start(self.address)
            self.server.set_serving(serving=True)

        self.loop.run(start())

    def stop(self) -> None:
        """Cuts all connections."""
        self.loop.run(self.server.drain(0))

    def cut(self) -> None:
        """As if the network had failed: the same learner is back at once."""
        self.stop()
        self.start()
        self.servicer.publish(snapshot(1))

    def restarted(self, **changes: Any) -> Learner:
        """Another learner at the same address: this one crashed."""
        self.stop()
        other = Learner.__new__(Learner)
        Learner.__init__(other, self.loop, **{"publish": False} | changes)
        other.stop()
        other.address = self.address
        other.start()
        other.servicer.publish(snapshot(1))
        return other

    def on_loop(self, act: Callable[[], object]) -> None:
        async def call() -> None:
            act()

        self.loop.run(call())

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"leco_learner_{name}", labels)
        assert value is not None, name
        return value

    def dropped(self, reason: str) -> float:
        return self.value("trajectories_dropped_total", reason=reason)

    def take(self, count: int) -> list[Trajectory]:
        taken = self.queue.take(count, PATIENCE)
        assert taken is not None, f"not {count} within {PATIENCE:g} s"
        return taken


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture
def learner(loop: LoopThread) -> Iterator[Learner]:
    learner = Learner(loop)
    yield learner
    learner.stop()


@pytest.fixture
def channel(learner: Learner) -> Iterator[grpc.Channel]:
    with open_channel(learner.address, service=SERVICE) as channel:
        yield channel


@pytest.fixture
def client(channel: grpc.Channel) -> Iterator[LearnerClient]:
    with new_client(channel) as client:
        client.join(give_up_after=PATIENCE)
        yield client


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    # gRPC sends from a thread that waits for ours; only its poller and asyncio's executor live as long as the process.
    until(lambda: not [each for each in set(threading.enumerate()) - before if not is_for_ever(each)])


def is_for_ever(thread: threading.Thread) -> bool:
    return "_poll_wrapper" in thread.name or thread.name.startswith("asyncio_")


def new_client(channel: grpc.Channel, **changes: Any) -> LearnerClient:
    settings: dict[str, Any] = {
        "actor_name": "a",
        "software_version": "1.2.9",
        "max_unacknowledged": 8,
        "patience_seconds": PATIENCE,
    }
    return LearnerClient(channel, **settings | changes)


class Trainer:
    """Takes in a thread until it is stopped; with a pause after each."""

    def __init__(self, learner: Learner, count: int = 1, pause: float = 0.0) -> None:
        self.taken: list[Trajectory] = []
        self._learner, self._count, self._pause = learner, count, pause
        self._stopped = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopped:
            self.taken += self._learner.queue.take(self._count, 0.02) or ()
            time.sleep(self._pause)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._thread.join()

    def numbers(self, actor: int = 0) -> list[int]:
        return [each.number for each in self.taken if actor_of(each) == actor]


class RawStream:
    """A Push stream on which a test sends whatever it likes."""

    def __init__(self, channel: grpc.Channel, *first: PushRequest) -> None:
        self._requests: queue.SimpleQueue[PushRequest | None] = queue.SimpleQueue()
        self.call = learner_pb2_grpc.LearnerServiceStub(channel).Push(iter(self._requests.get, None), timeout=PATIENCE)
        self.send(*first)

    def send(self, *requests: PushRequest) -> None:
        for request in requests:
            self._requests.put(request)

    def push(self, *numbers: int) -> None:
        self.send(*(pushed(made(number)) for number in numbers))

    def next(self) -> PushResponse:
        return next(self.call)

    def until_told(self, acknowledged: int) -> int:
        """Reads until that number is acknowledged; returns how many credits came with it."""
        credits_ = 0
        for response in self.call:
            credits_ += response.credits
            if response.acknowledged >= acknowledged:
                return credits_
        raise AssertionError("the stream ended")

    def refusal(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ends; whatever came before is not looked at."""
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self.call:
                pass
        self.close()
        return caught.value.code(), caught.value.details() or ""

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hello(incarnation: bytes = INCARNATION, **changes: Any) -> PushRequest:
    return PushRequest(hello=PushHello(**{"run": "run-1", "incarnation": incarnation, "actor_name": "raw"} | changes))


def pushed(trajectory: Trajectory) -> PushRequest:
    return PushRequest(trajectory=trajectory_to_message(trajectory))


# Order, credits, memory.


def test_trajectories_arrive_in_order_and_unchanged(learner: Learner, client: LearnerClient) -> None:
    sent = [made(number, ended=number % 2 == 0) for number in range(1, 6)]
    for trajectory in sent:
        client.push(trajectory)
    taken = learner.take(5)
    assert client.drain(PATIENCE) == 0
    for one, other in zip(sent, taken, strict=True):
        assert (one.number, one.parameters_version, one.episodes) == (
            other.number,
            other.parameters_version,
            other.episodes,
        )
        for name in ("observation", "start", "terminal_observation", "action", "reward", "behaviour_logits", "count"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), strict=True)
    assert learner.episodes == [(1, (EPISODE,)), (1, (EPISODE,))]
    assert learner.value("received_bytes_total") == sum(trajectory_to_message(each).ByteSize() for each in sent)


def test_a_slow_trainer_never_has_more_waiting_than_its_capacity(learner: Learner) -> None:
    """A thousand trajectories of four actors, each of which is held back."""

    def act(actor: int) -> None:
        with (
            open_channel(learner.address, service=SERVICE) as channel,
            new_client(channel, max_unacknowledged=6) as client,
        ):
            client.join(give_up_after=PATIENCE)
            for number in range(1, 251):
                client.push(made(number, actor=actor))
                assert len(client._waiting) <= 6
            assert client.drain(PATIENCE) == 0

    actors = [threading.Thread(target=act, args=(actor,)) for actor in range(4)]
    for thread in actors:
        thread.start()
    until(lambda: learner.value("queue_trajectories") >= 16)
    with Trainer(learner, count=5, pause=0.004) as trainer:
        for thread in actors:
            thread.join()
        until(lambda: len(trainer.taken) == 1000)
        for actor in range(4):
            assert trainer.numbers(actor) == list(range(1, 251))
    assert 16 <= learner.queue.most <= 20, "full, and never fuller than with what newcomers sent"


def test_push_waits_while_too_many_are_not_acknowledged(learner: Learner, client: LearnerClient) -> None:
    """16 fit into the queue and 8 into the client; nobody takes."""
    for number in range(1, 25):
        client.push(made(number))
    until(lambda: learner.value("queue_trajectories") == 16)
    blocked = threading.Thread(target=client.push, args=(made(25),))
    blocked.start()
    blocked.join(0.3)
    assert blocked.is_alive()
    assert client.drain(0.05) == 8
    assert learner.value("outstanding_credits") == 0
    assert [each.number for each in learner.take(16)] == list(range(1, 17))
    blocked.join(PATIENCE)
    assert not blocked.is_alive()
    assert [each.number for each in learner.take(9)] == list(range(17, 26))
    assert client.drain(PATIENCE) == 0


def test_a_client_can_wait_for_room_before_it_plays(learner: Learner, client: LearnerClient) -> None:
    assert client.wait_for_credit(PATIENCE), "an idle learner has room, and says so before the first trajectory"
    for number in range(1, 17):
        client.push(made(number))
    assert client.drain(PATIENCE) == 0
    assert not client.wait_for_credit(0.1), "sixteen wait, and that is all it holds"
    assert learner.queue.take(16, PATIENCE, hold=True) is not None
    assert not client.wait_for_credit(0.1), "they are being learned from"
    learner.queue.free()
    assert client.wait_for_credit(PATIENCE)


def test_waiting_for_room_ends_with_the_client(learner: Learner, channel: grpc.Channel) -> None:
    learner.queue._capacity = 1
    with new_client(channel) as client:
        client.join(give_up_after=PATIENCE)
        client.push(made(1))
        assert client.drain(PATIENCE) == 0
        threading.Timer(0.2, client.close).start()
        with pytest.raises(Closed):
            client.wait_for_credit(PATIENCE)


def test_eight_actors_get_equal_shares(learner: Learner) -> None:
    with (
        open_channel(learner.address, service=SERVICE) as channel,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(new_client(channel)) for _ in range(8)]
        done = threading.Event()

        def act(actor: int, client: LearnerClient) -> None:
            client.join(give_up_after=PATIENCE)
            for number in itertools.count(1):
                if done.is_set():
                    return
                with contextlib.suppress(Closed):
                    client.push(made(number, actor=actor))

        actors = [threading.Thread(target=act, args=each) for each in enumerate(clients)]
        for thread in actors:
            thread.start()
        taken: list[Trajectory] = []
        for _ in range(100):  # whatever is freed is given to actors of which each could use it
            until(lambda: all(len(client._waiting) == 8 for client in clients))
            taken += learner.take(4)
        shares = Counter(actor_of(each) for each in taken)
        done.set()
        for client in clients:
            client.close()
        for thread in actors:
            thread.join()
    assert min(shares[actor] for actor in range(8)) > 25, shares
    assert max(shares.values()) < 100, shares


def test_an_idle_actor_does_not_keep_others_waiting(
    learner: Learner, client: LearnerClient, channel: grpc.Channel
) -> None:
    with RawStream(channel, hello()) as idle, Trainer(learner):
        assert idle.next() == PushResponse(acknowledged=0, credits=4)
        for number in range(1, 101):
            client.push(made(number, actor=1))
        assert client.drain(PATIENCE) == 0
        idle.push(1, 2, 3, 4)
        assert idle.until_told(4) <= 4


def test_forty_idle_streams_do_not_stop_the_training(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold every place when the actor comes, and the trainer needs as many as there are."""
    monkeypatch.setattr(trajectory_queue, "UNUSED_SECONDS", PATIENCE)
    monkeypatch.setattr(trajectory_queue, "STARVED_SECONDS", 0.1)
    with (
        open_channel(learner.address, service=SERVICE) as idle_channel,
        contextlib.ExitStack() as stack,
        open_channel(learner.address, service=SERVICE) as channel,
        new_client(channel, max_unacknowledged=16) as client,
    ):
        grpc.channel_ready_future(idle_channel).result(PATIENCE)
        for actor in range(40):
            stack.enter_context(RawStream(idle_channel, hello(bytes([actor + 1] * 16))))
        until(lambda: learner.value("open_streams") == 40)
        assert learner.value("outstanding_credits") == 16
        monkeypatch.setattr(trajectory_queue, "UNUSED_SECONDS", 0.5)
        client.join(give_up_after=PATIENCE)
        numbers = iter(range(1, 1000))
        for _ in range(10):
            taking = threading.Thread(target=learner.take, args=(16,))
            taking.start()
            for number in itertools.islice(numbers, 16):
                client.push(made(number))
            taking.join()
        assert client.drain(PATIENCE) == 0


def test_streams_without_a_hello_are_ended_and_leave_room_to_join(learner: Learner) -> None:
    """More than the 128 calls that this learner takes at once."""
    with contextlib.ExitStack() as stack:
        method = "/leco.v1.LearnerService/Push"
        silent = [
            stack.enter_context(UnfinishedCalls(learner.address, method, calls=20, message_bytes=0)) for _ in range(10)
        ]
        with open_channel(learner.address, service=SERVICE) as channel, new_client(channel) as client:
            client.join(give_up_after=PATIENCE)
            for number in itertools.count(1):
                client.push(made(number))
                learner.take(1)
                if sum(each.ended for each in silent) >= 50:
                    break
            assert client.drain(PATIENCE) == 0


def test_parameters_that_nobody_reads_do_not_use_up_the_calls_for_ever(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are more than a window, so that they cannot be sent; and there are as many such calls as a host may have."""
    monkeypatch.setattr(Learner, "max_seconds", 1.0)
    learner = Learner(loop)
    learner.servicer.publish(snapshot(2, weight=np.zeros(MIB, np.float32)))
    options = [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    with (
        grpc.insecure_channel(learner.address, options=options) as deaf,
        open_channel(learner.address, service=SERVICE) as channel,
        new_client(channel) as client,
    ):
        stub = learner_pb2_grpc.LearnerServiceStub(deaf)
        calls = [stub.Parameters(ParametersRequest(run="run-1"), wait_for_ready=True) for _ in range(96)]
        next(calls[-1])
        client.join(give_up_after=PATIENCE)
        for call in calls:
            call.cancel()
    learner.stop()


def test_a_client_that_goes_away_while_it_is_answered_is_no_error(loop: LoopThread) -> None:
    learner = Learner(loop)
    learner.servicer.publish(snapshot(2, weight=np.zeros(MIB, np.float32)))
    deaf = [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0)]
    with structlog.testing.capture_logs() as logged:
        with grpc.insecure_channel(learner.address, options=deaf) as channel:
            stub = learner_pb2_grpc.LearnerServiceStub(channel)
            calls = [stub.Parameters(ParametersRequest(run="run-1"), wait_for_ready=True) for _ in range(20)]
            for call in calls:
                next(call)
        ended = functools.partial(learner.rpc_registry.get_sample_value, "leco_learner_rpc_requests_total")
        until(lambda: ended({"method": "Parameters", "code": "CANCELLED"}) == 20)
    assert [line for line in logged if line["log_level"] == "error"] == []
    learner.stop()


def test_streams_leave_room_for_other_calls(learner: Learner) -> None:
    """Half of the 128 calls may be streams of one host."""
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(open_channel(learner.address, service=SERVICE))
        grpc.channel_ready_future(channel).result(PATIENCE)
        for each in [stack.enter_context(RawStream(channel, hello(bytes([i] * 16)))) for i in range(64)]:
            each.next()
        with RawStream(channel, hello(b"z" * 16)) as another:
            text = "64 streams by ipv4:127.0.0.1 are in progress, which is the most; repeat later"
            assert another.refusal() == (grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        with new_client(channel) as client:
            client.join(give_up_after=PATIENCE)


def test_an_actor_that_goes_away_gives_its_credits_back(learner: Learner, channel: grpc.Channel) -> None:
    with contextlib.ExitStack() as stack:
        for actor in range(4):
            stack.enter_context(RawStream(channel, hello(bytes([actor] * 16)))).next()
        assert learner.value("outstanding_credits") == 16
        with RawStream(channel, hello(b"z" * 16)) as late:
            assert late.next().credits == 0
            stack.close()
            assert late.next().credits > 0
    until(lambda: learner.value("open_streams") == learner.value("outstanding_credits") == 0)


def test_an_actor_that_reads_nothing_harms_nobody(learner: Learner, client: LearnerClient) -> None:
    """It sends what it may, and its unread answers fill the connection."""
    options = [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    with (
        grpc.insecure_channel(learner.address, options=options) as deaf_channel,
        RawStream(deaf_channel, hello()) as deaf,
        Trainer(learner) as trainer,
    ):
        until(lambda: learner.value("open_streams") == 1)
        [stream] = learner.queue._streams.values()
        for number in range(1, 31):  # many more than it may send before it is told of new credits
            until(lambda: stream.credits > 0)
            deaf.push(number)
            until(functools.partial(lambda number: stream.last == number, number))
        time.sleep(0.1)
        assert stream._untold, "its answers must be stuck, or this tests nothing"
        for other in range(1, 101):
            client.push(made(other, actor=1))
        assert client.drain(PATIENCE) == 0
        until(lambda: trainer.numbers(1) == list(range(1, 101)))
        with RawStream(deaf_channel, hello()) as again:
            assert again.next().acknowledged == number, "it may also come back"
        until(lambda: learner.value("open_streams") == 1)
    learner.loop.run(learner.server.drain(0.2))  # which does not wait for it


# Exactly once.


def test_cut_connections_lose_nothing_and_repeat_nothing(loop: LoopThread) -> None:
    learner, chance = Learner(loop), random.Random(1)
    with (
        open_channel(learner.address, service=SERVICE) as channel,
        Trainer(learner) as trainer,
        new_client(channel) as one,
        new_client(channel) as other,
    ):
        cuts = [0]  # how many had arrived at each
        pushed_by = {0: 0, 1: 0}

        def act(actor: int, client: LearnerClient) -> None:
            client.join(give_up_after=PATIENCE)
            while pushed_by[actor] < 400 or len(cuts) < 5:
                pushed_by[actor] += 1
                client.push(made(pushed_by[actor], actor=actor, ended=True))
                time.sleep(0.002)

        actors = [threading.Thread(target=act, args=each) for each in enumerate((one, other))]
        for thread in actors:
            thread.start()
        while any(thread.is_alive() for thread in actors):
            time.sleep(chance.uniform(0.0, 0.3))
            learner.cut()
            cuts.append(len(learner.queue.arrived))
            until(lambda: len(learner.queue.arrived) > cuts[-1] or not any(each.is_alive() for each in actors))
        assert one.drain(PATIENCE) == other.drain(PATIENCE) == 0
        until(lambda: len(trainer.taken) == sum(pushed_by.values()))
        for actor in (0, 1):
            assert trainer.numbers(actor) == list(range(1, pushed_by[actor] + 1))
    assert len(learner.episodes) == sum(pushed_by.values())
    assert learner.queue.most <= 16
    learner.stop()


def test_an_acknowledgement_that_was_lost_makes_a_duplicate_and_not_a_second_training(
    learner: Learner, channel: grpc.Channel
) -> None:
    """The certain case of what the test above leaves to chance."""
    with RawStream(channel, hello()) as stream:
        stream.next()
        stream.push(1, 2)
        until(lambda: learner.value("queue_trajectories") == 2)
    with RawStream(channel, hello()) as stream:
        assert stream.next().acknowledged == 2
        stream.push(1, 2, 3)
        stream.until_told(3)
    assert learner.dropped("duplicate") == 2
    assert [each.number for each in learner.take(3)] == [1, 2, 3]


def test_a_restarted_learner_gets_everything_that_was_not_acknowledged(loop: LoopThread) -> None:
    learner, chance = Learner(loop), random.Random(2)
    learners = [learner]
    with (
        open_channel(learner.address, service=SERVICE) as channel,
        contextlib.ExitStack() as stack,
        new_client(channel) as client,
    ):
        stack.enter_context(Trainer(learner))
        client.join(give_up_after=PATIENCE)

        made_so_far = 0

        def act() -> None:
            nonlocal made_so_far
            while made_so_far < 400 or len(learners) < 4:
                made_so_far += 1
                client.push(made(made_so_far))
                time.sleep(0.002)

        actor = threading.Thread(target=act)
        actor.start()
        while actor.is_alive():
            time.sleep(chance.uniform(0.05, 0.3))
            learner = learner.restarted()
            learners.append(learner)
            stack.enter_context(Trainer(learner))
            until(lambda: bool(learners[-1].queue.arrived) or not actor.is_alive())
        assert client.drain(PATIENCE) == 0
        learner.stop()
    for each in learners:
        numbers = [trajectory.number for trajectory in each.queue.arrived]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    assert {trajectory.number for each in learners for trajectory in each.queue.arrived} == set(
        range(1, made_so_far + 1)
    )


def test_a_learner_that_was_away_is_found_again(learner: Learner, client: LearnerClient) -> None:
    client.push(made(1))
    assert client.drain(PATIENCE) == 0
    learner.stop()
    for number in range(2, 6):
        client.push(made(number))
    assert client.drain(0.5) == 4
    learner.start()  # the run goes on, but its parameters are not there yet
    assert client.drain(0.5) == 4
    learner.servicer.publish(snapshot(2))
    assert client.drain(PATIENCE) == 0
    assert [each.number for each in learner.take(5)] == [1, 2, 3, 4, 5]


def test_a_second_stream_of_an_incarnation_takes_over(learner: Learner, channel: grpc.Channel) -> None:
    with RawStream(channel, hello()) as older:
        older.next()
        older.push(1, 2)
        older.until_told(2)
        with RawStream(channel, hello()) as newer:
            assert newer.next().acknowledged == 2
            code, detail = older.refusal()
            assert (code, detail) == (
                grpc.StatusCode.ALREADY_EXISTS,
                "another stream of the same incarnation took over",
            )
            newer.push(3)
            newer.until_told(3)
    assert [each.number for each in learner.take(3)] == [1, 2, 3]


def test_two_actors_with_one_incarnation_find_out(learner: Learner, channel: grpc.Channel) -> None:
    with new_client(channel, incarnation=INCARNATION) as one, new_client(channel, incarnation=INCARNATION) as other:
        for client in (one, other):
            client.join(give_up_after=PATIENCE)
        for number in (1, 2):
            one.push(made(number))
        assert one.drain(PATIENCE) == 0
        other.push(made(1, actor=1))
        with pytest.raises(TakenOver, match="the learner acknowledged 2, but only 1 were made"):
            other.drain(PATIENCE)
        with pytest.raises(TakenOver, match="ALREADY_EXISTS: another stream of the same incarnation took over"):
            until(lambda: one.drain(0) > 0)
        with pytest.raises(TakenOver):
            one.push(made(3))
    assert [actor_of(each) for each in learner.take(2)] == [0, 0]


# Hostile streams.


def changed(change: Callable[[TrajectoryMessage], object]) -> PushRequest:
    message = trajectory_to_message(made(1))
    change(message)
    return PushRequest(trajectory=message)


def tensor_is(name: str, array: Any) -> PushRequest:
    def change(message: TrajectoryMessage) -> None:
        tensors = tensors_from_message(message.tensors)
        tensors[name] = array
        message.tensors.CopyFrom(tensors_to_message(tensors))

    return changed(change)


NAN = np.array([0, np.nan, 0], np.float32)
PRECONDITION, ARGUMENT = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT


class Hostile(NamedTuple):
    requests: list[PushRequest]
    code: grpc.StatusCode
    text: str


HOSTILE = {
    "no hello": Hostile([pushed(made(1))], PRECONDITION, "the stream begins with trajectory, expected hello"),
    "an empty message first": Hostile([PushRequest()], PRECONDITION, "the stream begins with nothing, expected hello"),
    "two hellos": Hostile(
        [hello(), hello()],
        PRECONDITION,
        "the stream goes on with hello, expected a trajectory after the one hello",
    ),
    "an empty message": Hostile(
        [hello(), PushRequest()],
        PRECONDITION,
        "the stream goes on with nothing, expected a trajectory after the one hello",
    ),
    "another run": Hostile([hello(run="run-2")], PRECONDITION, "run is 'run-2', expected 'run-1': join again"),
    "a short incarnation": Hostile([hello(b"short")], ARGUMENT, "incarnation has 5 bytes, expected 16"),
    "a long name": Hostile([hello(actor_name="ä" * 65)], ARGUMENT, "actor_name has 130 bytes, expected at most 128"),
    "a wrong shape": Hostile(
        [hello(), tensor_is("reward", np.zeros(4, np.float32))],
        ARGUMENT,
        "trajectory 1: reward has shape [4], expected [3]",
    ),
    "a NaN": Hostile(
        [hello(), tensor_is("reward", NAN)],
        ARGUMENT,
        "trajectory 1: reward[1] is nan, expected -100 to 100, the run's reward_limit",
    ),
    "an absurd reward": Hostile(
        [hello(), pushed(made(1)), pushed(replace(made(2), reward=np.array([0, 0, 1e12], np.float32)))],
        ARGUMENT,
        "trajectory 2: reward[2] is 999999995904.0, expected -100 to 100, the run's reward_limit",
    ),
    "no number": Hostile(
        [hello(), changed(lambda message: message.ClearField("number"))],
        ARGUMENT,
        "trajectory 0: number is 0, expected at least 1",
    ),
    "a version from the future": Hostile(
        [hello(), pushed(made(1, 2))],
        ARGUMENT,
        "trajectory 1: parameters_version is 2, expected at most 1, the newest one",
    ),
    "a skipped number": Hostile(
        [hello(), pushed(made(1)), pushed(made(3))],
        PRECONDITION,
        "number is 3, expected 2: a trajectory was skipped",
    ),
}


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_a_stream_against_the_contract_is_refused_and_the_learner_goes_on(
    learner: Learner,
    channel: grpc.Channel,
    client: LearnerClient,
    case: Hostile,
) -> None:
    with RawStream(channel, *case.requests) as stream:
        assert stream.refusal() == (case.code, case.text)
    valid = len(learner.queue.arrived)
    assert learner.queue.most <= 16
    until(lambda: learner.value("open_streams") == 0)
    assert learner.value("trajectories_refused_total") == (case.requests[0] == hello() and len(case.requests) > 1)
    if valid:
        learner.take(valid)
    client.push(made(1, actor=1))
    assert actor_of(learner.take(1)[0]) == 1
    assert client.drain(PATIENCE) == 0


def test_what_is_sent_without_a_credit_is_not_read_before_there_is_one(learner: Learner, channel: grpc.Channel) -> None:
    with RawStream(channel, hello()) as stream:
        stream.push(*range(1, 41))
        until(lambda: len(learner.queue.arrived) == 16)
        [held] = learner.queue._streams.values()
        time.sleep(0.2)
        assert (held.open, held.credits, len(learner.queue.arrived)) == (True, 0, 16)
        for first in range(1, 33, 16):
            assert [each.number for each in learner.take(16)] == list(range(first, first + 16))
        stream.until_told(40)
    assert learner.queue.most == 16


def test_bytes_that_are_no_message_are_refused(learner: Learner, channel: grpc.Channel) -> None:
    raw: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/leco.v1.LearnerService/Push")
    for requests in ([b"\xff" * 9], [hello().SerializeToString(), b"\xff" * 9]):
        with pytest.raises(grpc.RpcError) as caught:
            list(raw(iter(requests), timeout=PATIENCE))
        assert caught.value.code() is ARGUMENT
        assert "not the message expected" in (caught.value.details() or "")
    until(lambda: learner.value("open_streams") == 0)


def test_a_message_of_100_mb_is_refused_by_its_size(learner: Learner, client: LearnerClient) -> None:
    huge = changed(lambda message: setattr(message.tensors, "payload", bytes(100 * MIB)))
    with (
        grpc.insecure_channel(learner.address, options=[("grpc.max_send_message_length", -1)]) as channel,
        RawStream(channel, hello(), huge) as stream,
    ):
        code, detail = stream.refusal()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in detail
    until(lambda: learner.value("open_streams") == learner.value("outstanding_credits") == 0)
    client.push(made(1))
    assert client.drain(PATIENCE) == 0


@pytest.mark.parametrize("name", ["no hello", "a NaN", "a skipped number"])
def test_a_refused_message_is_not_kept_until_the_garbage_collector_runs(channel: grpc.Channel, name: str) -> None:
    """It may have 4 MB, and in a process with many objects the collector runs rarely."""
    raw: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/leco.v1.LearnerService/Push")
    requests = [request.SerializeToString() for request in HOSTILE[name].requests]  # so only the learner has messages

    def kept() -> int:
        return sum(type(each) is PushRequest for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = kept()
        for _ in range(10):
            with pytest.raises(grpc.RpcError):
                list(raw(iter(requests), timeout=PATIENCE))
        until(lambda: kept() <= before + 1)
    finally:
        gc.enable()


def test_counts_in_a_run_that_counts_nothing_are_malformed(loop: LoopThread) -> None:
    learner = Learner(loop, run=replace(RUN, code_width=0), needs_counts=False)
    with open_channel(learner.address, service=SERVICE) as channel:
        with RawStream(channel, hello(), pushed(made(1, counted=False)), pushed(made(2))) as stream:
            text = "trajectory 2: counted is true, expected false because the run's method counts nothing"
            assert stream.refusal() == (ARGUMENT, text)
        assert [each.number for each in learner.take(1)] == [1]
    learner.stop()


def test_a_bug_behind_the_stream_is_an_internal_error_and_heals(
    learner: Learner, client: LearnerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[object] = []

    def fail(*_: object) -> None:
        failed.append(None)
        raise ZeroDivisionError

    monkeypatch.setattr(learner.queue, "_put", fail)
    client.push(made(1))
    until(lambda: bool(failed))
    assert client.drain(0) == 1
    monkeypatch.undo()
    assert client.drain(PATIENCE) == 0
    assert [each.number for each in learner.take(1)] == [1]


# What is dropped.


def test_late_and_uncounted_trajectories_are_acknowledged_and_dropped(learner: Learner, client: LearnerClient) -> None:
    learner.servicer.publish(snapshot(7))
    client.push(made(1, 1, ended=True))
    client.push(made(2, 2, ended=True))
    client.push(made(3, 7, counted=False, ended=True))
    client.push(made(4, 7))
    assert client.drain(PATIENCE) == 0
    learner.servicer.publish(snapshot(8))  # and now 2 is late, too
    assert [each.number for each in learner.take(1)] == [4]
    assert (learner.dropped("lag"), learner.dropped("uncounted"), learner.dropped("duplicate")) == (2, 1, 0)
    assert learner.value("trajectories_taken_total") == 1
    assert [version for version, _ in learner.episodes] == [1, 2, 7]
    until(lambda: learner.value("queue_trajectories") == 0)
    with RawStream(client_channel(learner), hello()) as other:
        other.next()
        other.push(1)
        assert other.until_told(1) == 4, "nothing keeps a place"


def client_channel(learner: Learner) -> grpc.Channel:
    return grpc.insecure_channel(learner.address)


# The client's errors.


def test_a_malformed_trajectory_is_rejected_by_name(learner: Learner, client: LearnerClient) -> None:
    client.push(made(1))
    assert client.drain(PATIENCE) == 0
    client.push(replace(made(2), reward=NAN))
    with pytest.raises(
        Rejected,
        match=r"^INVALID_ARGUMENT: trajectory 2: reward\[1\] is nan, expected -100 to 100, the run's reward_limit$",
    ):
        client.drain(PATIENCE)
    with pytest.raises(Rejected):
        client.push(made(3))
    assert [each.number for each in learner.take(1)] == [1]


def test_a_trajectory_that_is_too_large_is_rejected(loop: LoopThread) -> None:
    spec = replace(SPEC, observation_shape=(2 * MIB,))
    learner = Learner(loop, run=replace(RUN, trajectories=spec))
    with open_channel(learner.address, service=SERVICE) as channel, new_client(channel) as client:
        client.join(give_up_after=PATIENCE)
        client.push(replace(made(1), observation=np.zeros((4, 2 * MIB), np.uint8)))
        with pytest.raises(Rejected, match="larger than max"):
            client.drain(PATIENCE)
    learner.stop()


def test_a_number_out_of_order_is_refused_at_once(client: LearnerClient) -> None:
    with pytest.raises(ValueError, match=r"^number is 2, expected 1, the next one$"):
        client.push(made(2))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"run": "run-2"}, "the learner has the run 'run-2' now, and not 'run-1'; join again"),
        ({"environments": 3}, "the run 'run-1' has another specification now; join again"),
    ],
)
def test_another_run_is_noticed(learner: Learner, client: LearnerClient, change: dict[str, Any], text: str) -> None:
    client.push(made(1))
    assert client.drain(PATIENCE) == 0
    other = learner.restarted(run=replace(RUN, **change))
    client.push(made(2))
    with pytest.raises(RunChanged, match=f"^{text}$"):
        client.drain(PATIENCE)
    with pytest.raises(RunChanged):
        client.join(give_up_after=PATIENCE)
    if "run" in change:
        with pytest.raises(RunChanged, match="run is 'run-1', expected 'run-2'"):
            client.parameters(0)
    assert other.queue.arrived == []
    other.stop()


def test_a_push_that_waits_ends_with_the_client(learner: Learner, channel: grpc.Channel) -> None:
    learner.on_loop(learner.servicer.drain)
    with new_client(channel, max_unacknowledged=1) as client:
        client._specification = RUN  # as if it had joined before
        client.push(made(1))
        raised: list[type[BaseException]] = []

        def push() -> None:
            with pytest.raises(Closed) as caught:
                client.push(made(2))
            raised.append(caught.type)

        blocked = threading.Thread(target=push)
        blocked.start()
        blocked.join(0.2)
        assert blocked.is_alive()
        client.close()
        blocked.join(PATIENCE)
        assert raised == [Closed]
        client.close()
        with pytest.raises(Closed):
            client.push(made(2))
        assert client.drain(PATIENCE) == 1


def test_a_stream_on_which_nothing_happens_lives(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A learner may be slow for minutes; the pings of both sides must not count as abuse. Here they come every half second."""
    for module in (channel_module, server_module):
        monkeypatch.setattr(module, "KEEPALIVE_SECONDS", 0.5)
    learner = Learner(loop)
    with open_channel(learner.address, service=SERVICE) as channel, new_client(channel) as client:
        client.join(give_up_after=PATIENCE)
        for number in range(1, 9):
            client.push(made(number))
        time.sleep(4)
        learner.take(4)
        client.drain(PATIENCE)
        assert "Too many pings" not in "".join(capfd.readouterr())
    learner.stop()


def test_control_c_ends_a_push_that_waits(client: LearnerClient) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    for number in range(1, 25):
        client.push(made(number))
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # it may come at any moment after the start
        timer.start()
        client.push(made(25))
    timer.join()
    signal.signal(signal.SIGINT, before)
    client.close()


def test_close_is_possible_at_any_time(learner: Learner) -> None:
    """Also while it joins, connects or has never done anything."""
    chance = random.Random(3)
    for round_ in range(30):
        address = learner.address if round_ % 3 else "127.0.0.1:1"  # where nobody listens
        with open_channel(address, service=SERVICE) as channel:
            client = new_client(channel)

            def act(client: LearnerClient = client) -> None:
                with contextlib.suppress(Closed):
                    client.join(give_up_after=float("inf"))
                    for number in itertools.count(1):
                        client.push(made(number))
                        client.parameters(0)

            actor = threading.Thread(target=act)
            actor.start()
            time.sleep(chance.uniform(0, 0.05))
            client.close()
            actor.join(PATIENCE)
            assert not actor.is_alive()
        learner.queue.take(16, 0)


def test_a_channel_that_was_closed_is_said_to_be(learner: Learner) -> None:
    channel = open_channel(learner.address, service=SERVICE)
    with new_client(channel) as client:
        client.join(give_up_after=PATIENCE)
        client.push(made(1))
        assert client.drain(PATIENCE) == 0
        channel.close()
        client.push(made(2))
        with pytest.raises(Rejected, match="Channel closed"):
            client.drain(PATIENCE)


# Drain.


def test_a_drain_acknowledges_what_was_taken(learner: Learner, channel: grpc.Channel) -> None:
    with RawStream(channel, hello()) as stream:
        stream.next()
        stream.push(1, 2, 3)
        until(lambda: len(learner.queue.arrived) == 3)
        learner.on_loop(learner.servicer.drain)
        stream.until_told(3)
        assert stream.refusal() == (
            grpc.StatusCode.UNAVAILABLE,
            "the learner is stopping; connect again later",
        )
    with RawStream(channel, hello()) as stream:
        assert stream.refusal()[0] is grpc.StatusCode.UNAVAILABLE
    assert refused_join(channel) == (grpc.StatusCode.UNAVAILABLE, "the learner is stopping; connect again later")
    with new_client(channel) as client, pytest.raises(Unavailable, match=r"^no answer from the learner in 0.4 s; "):
        client.join(give_up_after=0.4)
    assert [each.number for each in learner.take(3)] == [1, 2, 3]


def test_an_actor_outlives_a_drain_and_a_restart(learner: Learner, client: LearnerClient) -> None:
    client.push(made(1))
    assert client.drain(PATIENCE) == 0
    learner.on_loop(learner.servicer.drain)
    client.push(made(2))
    assert client.drain(0.3) == 1
    other = learner.restarted()
    assert client.drain(PATIENCE) == 0
    assert [each.number for each in other.take(1)] == [2]
    other.stop()


# Join.


def refused_join(channel: grpc.Channel) -> tuple[grpc.StatusCode, str]:
    """How one question to join is refused; a client repeats it, and may give up before it gets the last answer."""
    with pytest.raises(grpc.RpcError) as caught:
        learner_pb2_grpc.LearnerServiceStub(channel).Join(JoinRequest(software_version="1.2.0"), timeout=PATIENCE)
    return caught.value.code(), caught.value.details() or ""


def test_joining_says_what_the_run_is(learner: Learner, channel: grpc.Channel) -> None:
    with new_client(channel) as client:
        assert client.join(give_up_after=PATIENCE) == (RUN, 1)
        learner.servicer.publish(snapshot(5))
        assert client.join(give_up_after=PATIENCE) == (RUN, 5)


@pytest.mark.parametrize("version", ["1.3.0", "2.2.3", "", "1", "1.20.3", "x" * 200])
def test_an_actor_of_another_version_is_refused(learner: Learner, channel: grpc.Channel, version: str) -> None:
    del learner
    with new_client(channel, software_version=version) as client, pytest.raises(Rejected) as caught:
        client.join(give_up_after=PATIENCE)
    shown = repr(version) if len(version) < 80 else f"{'x' * 60!r}... (200 characters)"
    assert str(caught.value) == (
        f"FAILED_PRECONDITION: the actor's software_version is {shown}, expected 1.2.x, because this learner's is 1.2.3"
    )


def test_a_long_name_is_refused(learner: Learner, channel: grpc.Channel) -> None:
    del learner
    stub = learner_pb2_grpc.LearnerServiceStub(channel)
    stub.Join(JoinRequest(actor_name="x" * 128, software_version="1.2.0"))
    with pytest.raises(grpc.RpcError) as caught:
        stub.Join(JoinRequest(actor_name="ä" * 65, software_version="1.2.0"))
    assert caught.value.code() is ARGUMENT
    assert caught.value.details() == "actor_name has 130 bytes, expected at most 128"


def test_an_actor_waits_for_the_first_parameters(loop: LoopThread) -> None:
    learner = Learner(loop, publish=False)
    with open_channel(learner.address, service=SERVICE) as channel, new_client(channel) as client:
        code, detail = refused_join(channel)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "not published" in detail
        begin = time.monotonic()
        with pytest.raises(Unavailable, match=r"^no answer from the learner in 0.4 s; "):
            client.join(give_up_after=0.4)
        assert time.monotonic() - begin > 0.1, "it tries again"
        with RawStream(channel, hello()) as stream:
            assert stream.refusal()[0] is grpc.StatusCode.UNAVAILABLE
        threading.Timer(0.3, learner.servicer.publish, (snapshot(1),)).start()
        assert client.join(give_up_after=PATIENCE) == (RUN, 1)
    learner.stop()


def test_nothing_goes_without_joining(channel: grpc.Channel) -> None:
    with new_client(channel) as client:
        with pytest.raises(RuntimeError, match=r"^the run is not known yet: call join first$"):
            client.push(made(1))
        with pytest.raises(RuntimeError, match=r"^the run is not known yet: call join first$"):
            client.parameters(0)


# Parameters.


def test_parameters_come_if_they_are_newer(learner: Learner, client: LearnerClient) -> None:
    first = client.parameters(0)
    assert first is not None
    assert first.version == 1
    np.testing.assert_array_equal(first.tensors["weight"], np.array([1, 2, 3, 4], np.float32), strict=True)
    assert client.parameters(1) is None
    learner.servicer.publish(snapshot(4))
    assert learner.value("parameters_version") == 4
    second = client.parameters(1)
    assert second is not None
    assert second.version == 4
    for version in (4, 9):
        assert client.parameters(version) is None


def test_large_parameters_come_in_pieces(learner: Learner, client: LearnerClient, channel: grpc.Channel) -> None:
    weight = np.random.default_rng(0).standard_normal((3, MIB), np.float32)
    learner.servicer.publish(snapshot(2, weight=weight, steps=np.array(7)))
    full = client.parameters(1)
    assert full is not None
    np.testing.assert_array_equal(full.tensors["weight"], weight, strict=True)
    assert full.tensors["steps"] == 7
    stub = learner_pb2_grpc.LearnerServiceStub(channel)
    sizes = [each.ByteSize() for each in stub.Parameters(ParametersRequest(run="run-1"))]
    assert len(sizes) > 4
    assert max(sizes) < 4_000_000


def test_parameters_are_encoded_once_for_all_actors(
    learner: Learner, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    in_time: list[bool] = []
    released = threading.Event()

    def slowly(parameters: ParameterSnapshot) -> Iterator[ParametersResponse]:
        encoded.append(parameters.version)
        in_time.append(released.wait(PATIENCE))
        return parameters_to_messages(parameters)

    monkeypatch.setattr(servicer, "parameters_to_messages", slowly)
    learner.servicer.publish(snapshot(2))
    assert encoded == [], "the trainer has better things to do"
    stub = learner_pb2_grpc.LearnerServiceStub(channel)
    calls = [stub.Parameters(ParametersRequest(run="run-1"), timeout=PATIENCE) for _ in range(10)]
    until(lambda: len(encoded) == 1)
    stub.Join(JoinRequest(software_version="1.2.0"), timeout=PATIENCE)
    for call in calls[:2]:
        call.cancel()
    time.sleep(0.1)
    released.set()
    until(lambda: len(in_time) == 1)
    assert all(in_time), "the event loop must go on while parameters are encoded"
    for call in calls[2:]:
        assert next(iter(call)).header.version == 2
        call.cancel()
    assert encoded == [2]
    assert list(stub.Parameters(ParametersRequest(run="run-1", newer_than=1), timeout=PATIENCE))
    assert encoded == [2]


def test_parameters_of_another_run_and_before_the_first_are_refused(loop: LoopThread) -> None:
    learner = Learner(loop, publish=False)
    with open_channel(learner.address, service=SERVICE) as channel, new_client(channel, patience_seconds=0.3) as client:
        stub = learner_pb2_grpc.LearnerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Parameters(ParametersRequest(run="run-2"), timeout=PATIENCE))
        assert (caught.value.code(), caught.value.details()) == (
            PRECONDITION,
            "run is 'run-2', expected 'run-1': join again",
        )
        with pytest.raises(grpc.RpcError, match="not published parameters yet") as caught:
            list(stub.Parameters(ParametersRequest(run="run-1"), timeout=PATIENCE))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        client._specification = RUN
        with pytest.raises(Unavailable, match=r"^no answer from the learner in 0.3 s; "):
            client.parameters(0)
    learner.stop()


def test_a_client_takes_only_parameters_of_a_size_that_it_can_hold(learner: Learner, channel: grpc.Channel) -> None:
    learner.servicer.publish(snapshot(2, weight=np.zeros(1000, np.float32)))
    with new_client(channel, max_parameters_bytes=3999) as client:
        client.join(give_up_after=PATIENCE)
        with pytest.raises(ValueError, match=r"^payload_bytes is 4000, expected at most 3999$"):
            client.parameters(0)


def test_pauses_grow_to_a_limit_and_differ() -> None:
    pauses = list(itertools.islice(learner_client._pauses(), 12))
    assert all(0.5 * longest <= pause <= longest for pause, longest in zip(pauses, (0.05, 0.1, 0.2, 0.4), strict=False))
    assert 2.5 <= max(pauses) <= 5.0
    assert pauses != list(itertools.islice(learner_client._pauses(), 12))
