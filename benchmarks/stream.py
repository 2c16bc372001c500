"""Benchmarks of what flows between actors and the learner: `python benchmarks/stream.py`, or with --help.

Trajectories: the learner's own server, servicer and queue are in this process, with a thread that takes batches away as a
trainer would; clients are processes that push unrolls of DMLab's size through `LearnerClient` over loopback. Beside it, in
turns, the same clients send messages of the same size as bytes through a bare gRPC stream into this process: what gRPC itself
can do here. Parameters: the same servicer publishes, a client process asks as an actor does, and a short real training shows
what becomes of it in a run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import grpc
import numpy as np
import torch
from hashcount import Report, alternately, measured, ratios, spread
from hashcount_process import service
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from leco.checkpoint.snapshot import load_snapshot, make_snapshot
from leco.config.toml import parse, to_toml
from leco.learning.state import init
from leco.methods.table import find_method
from leco.models.build import build
from leco.rpc.channel import MAX_FRAME_BYTES, open_channel
from leco.rpc.codec import trajectory_from_message, trajectory_to_message
from leco.rpc.interceptor import RpcInterceptor, RpcMetrics
from leco.rpc.learner_client import SERVICE, LearnerClient
from leco.rpc.server import RpcServer
from leco.telemetry.logging import configure_logging
from leco.telemetry.malloc import keep_freed_memory
from leco.types import ParameterSnapshot, RunSpecification, Trajectory, TrajectorySpec
from leco.v1 import learner_pb2, learner_pb2_grpc
from services.learner.batching import make_batch
from services.learner.metrics import LearnerMetrics
from services.learner.servicer import LearnerServicer
from services.learner.trajectory_queue import TrajectoryQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from leco.learning.state import Networks

RESULTS = Path(__file__).parent / "results"
UNROLL, BATCH, ENVIRONMENTS, CLIENTS, EPISODE = 96, 48, 16, 4, 3600
PIXELS, VIEW = (
    ((72, 96, 3), 15),
    ((7, 7, 3), 7),
)  # an observation's shape and the number of actions: DMLab's, MiniGrid's
SPEC = TrajectorySpec(UNROLL, *PIXELS, core_state_shape=(2, 2, 256 + 15 + 1))
RUN = RunSpecification(
    run="stream",
    task="pixels",
    method="leco",
    environments=ENVIRONMENTS,
    code_width=24,
    configuration_toml="",
    trajectories=SPEC,
)
MAX_UNACKNOWLEDGED = 16  # as an actor has it
ASK_SECONDS = 0.01  # how often an actor in turns asks for parameters; others ask after each unroll
BARE = "/leco.benchmarks.Bare/Send"
GOAL = 300  # MB/s
MB = 1e6
REAL_TASK = "MultiRoom-N2-S4"


def main() -> None:
    """Runs everything, prints the tables, and keeps them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="how often each way is measured (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each measurement takes (default: 1.5)")
    parser.add_argument("--publishing", type=float, default=12.0, help="seconds of publishing, each way (default: 12)")
    parser.add_argument("--training", type=float, default=30.0, help="seconds of real training; 0: none (default: 30)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the table (default: benchmarks/results)")
    arguments = parser.parse_args()
    keep_freed_memory()  # as the learner does
    torch.set_num_threads(1)
    configure_logging(level="warning", log_format="human")
    report = Report()
    report.say(heading())
    asyncio.run(beside_the_learner(report, arguments))
    steps(report, arguments.repeats)
    if arguments.training:
        real_training(report, arguments.training)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"stream_{os.cpu_count()}cpu_{dt.datetime.now(dt.UTC):%Y-%m-%d}.md"
    path.write_text(report.text)
    print(f"\nkept in {path}")


async def beside_the_learner(report: Report, arguments: argparse.Namespace) -> None:
    """Has the event loop in the main thread, as the learner has it, and measures in another one."""

    def measure() -> None:
        learner.servicer.publish(ParameterSnapshot(1, {"weight": np.zeros(1, np.float32)}))
        with clients(CLIENTS, learner) as children:
            ingest(report, learner, children, arguments)
            parameters(report, learner, children[0], arguments.publishing)

    async with Learner() as learner:
        await asyncio.to_thread(measure)


def heading() -> str:
    """Where and with what it was measured."""
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("grpcio", "protobuf", "numpy", "torch"))
    command = " ".join(["python benchmarks/stream.py", *sys.argv[1:]])
    return (
        f"# Between actors and learner\n\n{measured(command)}, {packages}. Clients and learner "
        f"share these CPUs; the load average when it began was {os.getloadavg()[0]:.1f}. Numbers: median (least to most)."
    )


class Learner:
    """The learner's parts that talk to actors, in this process, and a bare stream beside them. Batches are taken away at once.

    Attributes:
        servicer: To publish with.
        address, bare_address: Where actors are served, and where bytes are.
        stacks: Whether what is taken is also made one batch, as for an update.
    """

    servicer: LearnerServicer
    address: str
    bare_address: str

    def __init__(self) -> None:
        self.stacks = False
        metrics = LearnerMetrics(CollectorRegistry())
        self._queue = TrajectoryQueue(
            capacity=BATCH + CLIENTS * ENVIRONMENTS,
            window=ENVIRONMENTS,
            max_policy_lag=1_000_000,
            needs_counts=True,
            metrics=metrics,
            on_episodes=lambda _version, _episodes: None,
        )
        self.servicer = LearnerServicer(RUN, self._queue, metrics, software_version=metadata.version("leco"))

    async def __aenter__(self) -> Self:
        interceptor = RpcInterceptor(RpcMetrics(CollectorRegistry(), "learner"), max_seconds=60, max_calls=64)
        self._server = RpcServer(SERVICE, interceptor=interceptor)
        learner_pb2_grpc.add_LearnerServiceServicer_to_server(self.servicer, self._server.grpc)
        self.address = await self._server.start("127.0.0.1:0")
        self._server.set_serving(serving=True)
        self._bare = grpc.aio.server(options=[("grpc.http2.max_frame_size", MAX_FRAME_BYTES)])
        self._bare.add_generic_rpc_handlers([BareStream()])
        self.bare_address = f"127.0.0.1:{self._bare.add_insecure_port('127.0.0.1:0')}"
        await self._bare.start()
        threading.Thread(target=self._take, daemon=True).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._queue.close()
        await self._server.drain(0)
        await self._bare.stop(0)

    def _take(self) -> None:
        device = torch.device("cpu")
        while (batch := self._queue.take(BATCH)) is not None:
            if self.stacks:
                make_batch(batch, device, max_steps=EPISODE)


class BareStream(grpc.GenericRpcHandler):
    """Takes bytes and forgets them."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The one method there is."""
        return grpc.stream_unary_rpc_method_handler(_forget) if handler_call_details.method == BARE else None


async def _forget(requests: AsyncIterator[bytes], _context: object) -> bytes:
    async for _ in requests:
        pass
    return b""


def unroll() -> list[Trajectory]:
    """An actor's unroll, one trajectory for each environment; the arrays are slices, as an actor's are."""
    random = np.random.default_rng(0)
    observation_TEO = random.integers(0, 256, (UNROLL + 1, ENVIRONMENTS, *SPEC.observation_shape), np.uint8)
    logits_TEA = random.standard_normal((UNROLL, ENVIRONMENTS, SPEC.action_count), np.float32)
    action_TE = random.integers(0, SPEC.action_count, (UNROLL, ENVIRONMENTS), np.int32)
    start_TE = np.zeros((UNROLL + 1, ENVIRONMENTS), bool)
    core_LCEH = np.zeros((2, 2, ENVIRONMENTS, SPEC.core_state_shape[-1]), np.float32)
    return [
        Trajectory(
            number=1,
            parameters_version=1,
            previous_action=0,
            previous_reward=0.0,
            observation=observation_TEO[:, e],
            start=start_TE[:, e],
            terminal_observation=np.empty((0, *SPEC.observation_shape), np.uint8),
            action=action_TE[:, e],
            reward=np.zeros(UNROLL, np.float32),
            behaviour_logits=logits_TEA[:, e],
            core_state=core_LCEH[:, :, e],
            count=np.ones(UNROLL, np.uint32),
            episodes=(),
        )
        for e in range(ENVIRONMENTS)
    ]


def message() -> learner_pb2.PushRequest:
    """What one of them travels in."""
    return learner_pb2.PushRequest(trajectory=trajectory_to_message(unroll()[0]))


# The processes that send and ask.


def push(address: str, bare_address: str) -> None:
    """A client: sends as each line of its input says ("leco SECONDS" or "bare SECONDS").

    It prints how many messages were taken, and its processor time.
    """
    keep_freed_memory()  # as an actor does
    trajectories, packed, numbers = unroll(), message().SerializeToString(), itertools.count(1)
    with (
        open_channel(address, service=SERVICE) as channel,
        grpc.insecure_channel(bare_address, options=[("grpc.http2.max_frame_size", MAX_FRAME_BYTES)]) as bare,
        new_client(channel) as client,
    ):
        client.join(give_up_after=60)
        send: grpc.StreamUnaryMultiCallable[bytes, bytes] = bare.stream_unary(BARE)
        for line in sys.stdin:
            what, seconds = line.split()
            sent, end, processor = 0, time.perf_counter() + float(seconds), time.process_time()
            if what == "leco":
                while time.perf_counter() < end:
                    number = next(numbers)
                    client.push(replace(trajectories[number % ENVIRONMENTS], number=number))
                    sent += 1
                client.drain(None)
            else:
                sending = _until(packed, end)
                send(sending, wait_for_ready=True)
                sent = sending.sent
            print(sent, time.process_time() - processor, flush=True)


class _until:  # noqa: N801  # used as a function
    """The same message again and again, and how often it was asked for."""

    def __init__(self, packed: bytes, end: float) -> None:
        self._packed, self._end, self.sent = packed, end, 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if time.perf_counter() >= self._end:
            raise StopIteration
        self.sent += 1
        return self._packed


def ask(address: str, size: str) -> None:
    """A client: asks for parameters until it is killed; prints each version, and when it asked for it, had it, had loaded it."""
    keep_freed_memory()
    torch.set_num_threads(1)
    networks = leco_networks(json.loads(size))
    with open_channel(address, service=SERVICE) as channel, new_client(channel) as client:
        _, version = client.join(give_up_after=60)
        print("ready", flush=True)
        while True:
            asked = time.monotonic()
            snapshot = client.parameters(version)
            had = time.monotonic()
            if snapshot is None:
                time.sleep(ASK_SECONDS)
                continue
            policy, _ = load_snapshot(snapshot, networks)
            networks.policy.load_state_dict(policy)
            version = snapshot.version
            print(json.dumps([version, asked, had, time.monotonic()]), flush=True)


def new_client(channel: grpc.Channel) -> LearnerClient:
    """An actor's client."""
    version = metadata.version("leco")
    return LearnerClient(channel, actor_name="bench", software_version=version, max_unacknowledged=MAX_UNACKNOWLEDGED)


def leco_networks(size: tuple[tuple[int, ...], int]) -> Networks:
    """LECO's networks for observations and actions of this size."""
    shape, actions = size
    return build(find_method("leco"), tuple(shape), actions)


Child = subprocess.Popen[str]


@contextlib.contextmanager
def child(*arguments: str) -> Iterator[Child]:
    """This program as a child process in another role."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def clients(count: int, learner: Learner) -> Iterator[list[Child]]:
    """Processes that push, warmed up."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(child("push", learner.address, learner.bare_address)) for _ in range(count)]
        for what in ("leco", "bare"):
            sent(children, what, 0.2)
        yield children


def sent(children: Sequence[Child], what: str, seconds: float) -> tuple[int, float]:
    """Has all of them send at once for that long; returns how many messages were taken, and the processor time of all."""
    for each in children:
        begin_sending(each, what, seconds)
    answers = [answer(each).split() for each in children]
    return sum(int(count) for count, _ in answers), sum(float(processor) for _, processor in answers)


def begin_sending(process: Child, what: str, seconds: float) -> None:
    """Tells a client to send."""
    assert process.stdin is not None
    process.stdin.write(f"{what} {seconds}\n")
    process.stdin.flush()


def answer(process: Child) -> str:
    """The next line that a child prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit(f"{process.args!r} ended")
    return line


# What is measured.


def ingest(report: Report, learner: Learner, children: Sequence[Child], arguments: argparse.Namespace) -> None:
    """Megabytes of trajectories a second, against those of a bare stream."""
    size = message().ByteSize() / MB
    rows, reached = [], []
    for count in (1, 2, CLIENTS):
        # Megabytes for a second of processor time, of this process and of the clients.
        efforts: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ("taken", "stacked", "bare")}

        def measure(name: str, count: int = count, efforts: Any = efforts) -> Callable[[], float]:
            def turn() -> float:
                learner.stacks = name == "stacked"
                begin, processor = time.perf_counter(), time.process_time()
                messages, theirs = sent(children[:count], "bare" if name == "bare" else "leco", arguments.seconds)
                seconds = time.perf_counter() - begin
                for effort, spent in zip(efforts[name], (time.process_time() - processor, theirs), strict=True):
                    effort.append(messages * size / spent)
                return messages * size / seconds

            return turn

        rates = dict(zip(efforts, alternately(arguments.repeats, *map(measure, efforts)), strict=True))
        for name, words in (
            ("taken", "taken away"),
            ("stacked", "taken away and stacked"),
            ("bare", "bare gRPC stream"),
        ):
            ratio = "1" if name == "bare" else ratios(rates[name], rates["bare"])
            rows.append((count, words, spread(rates[name]), ratio, *map(spread, efforts[name])))
        reached.append(statistics.median(rates["taken"]) >= GOAL)
    learner.stacks = False
    report.say(
        f"## Trajectories into the learner\n\nUnrolls of {UNROLL} actions, observations of {'x'.join(map(str, PIXELS[0]))}, "
        f"{PIXELS[1]} actions: {size:.2f} MB a message. What arrives is checked, queued and taken away {BATCH} at a time, "
        "without an update; stacked: also made one batch of tensors. Bare: the same bytes through a stream of gRPC "
        "(asynchronous server, blocking clients, same frame size) that forgets them. The last two columns: what moves in "
        f"a second of processor time. Goal: {GOAL} MB/s taken away, with 1, 2 and {CLIENTS} clients. "
        f"Reached: {', '.join('yes' if each else 'no' for each in reached)}."
    )
    report.table(
        ("clients", "way", "MB/s", "of the bare stream's", "MB, learner's processor", "MB, clients' processors"), rows
    )


def steps(report: Report, repeats: int) -> None:
    """What the parts of it cost, one after another on one thread, on messages that are in no cache any more."""
    trajectories = unroll()
    values = [trajectory_to_message(each) for each in trajectories]
    requests = [learner_pb2.PushRequest(trajectory=value) for value in values]
    packed = [request.SerializeToString() for request in requests]
    batch = [trajectory_from_message(values[i % ENVIRONMENTS], SPEC) for i in range(BATCH)]
    parts: dict[str, Callable[[int], object]] = {
        "actor: trajectory_to_message": lambda i: trajectory_to_message(trajectories[i]),
        "actor: PushRequest(trajectory=message)": lambda i: learner_pb2.PushRequest(trajectory=values[i]),
        "actor: SerializeToString": lambda i: requests[i].SerializeToString(),
        "learner: FromString": lambda i: learner_pb2.PushRequest.FromString(packed[i]),
        "learner: message.ByteSize, for a metric": lambda i: values[i].ByteSize(),
        "learner: trajectory_from_message, with its checks": lambda i: trajectory_from_message(values[i], SPEC),
        "of it: message.tensors.payload": lambda i: values[i].tensors.payload,
        "for comparison: a copy of the message": lambda i: bytearray(packed[i]),
    }

    def timed(action: Callable[[int], object]) -> Callable[[], float]:
        def run() -> float:
            begin = time.process_time()
            for i in range(ENVIRONMENTS):
                action(i)
            return (time.process_time() - begin) * 1000 / ENVIRONMENTS

        return run

    def stacked() -> float:
        begin = time.process_time()
        make_batch(batch, torch.device("cpu"), max_steps=EPISODE)
        return (time.process_time() - begin) * 1000 / BATCH

    found = alternately(4 * repeats, *map(timed, parts.values()), stacked)
    names = [*parts, f"trainer: make_batch of {BATCH}, for one of them"]
    report.say(
        "## Where the time goes\n\nMilliseconds of processor time for one trajectory, beside what gRPC itself spends: each step "
        f"alone on one thread, for {ENVIRONMENTS} messages in turn ({4 * repeats} times), so that none is in a cache."
    )
    rows = []
    for name, ms in zip(names, found, strict=True):
        rows.append((name, spread(ms, ".2f"), f"{len(packed[0]) / MB / statistics.median(ms) * 1000:,.0f}"))
    report.table(("step", "ms", "MB/s, if it were all"), rows)


class Timing(NamedTuple):
    """Seconds from the publication of a version: to its parameters at a client, and to networks that have them."""

    had: float
    loaded: float
    call: float  # of it, the call that brought them


def parameters(report: Report, learner: Learner, pusher: Child, seconds: float) -> None:
    """Seconds from publication to use."""
    rows, versions = [], itertools.count(2)
    for name, size in (("MiniGrid", VIEW), ("DMLab", PIXELS)):
        state = init(leco_networks(size))
        begin = time.process_time()
        tensors = make_snapshot(state, 1).tensors
        copying = time.process_time() - begin
        total = sum(array.nbytes for array in tensors.values())
        for busy in (False, True):
            with child("ask", learner.address, json.dumps(size)) as asker:
                answer(asker)
                if busy:
                    begin_sending(pusher, "leco", seconds)
                timings, end = [], time.monotonic() + seconds
                while time.monotonic() < end:
                    timings.append(published(learner, asker, ParameterSnapshot(next(versions), tensors)))
                if busy:
                    answer(pusher)
            columns = [np.array(column) * 1000 for column in zip(*timings, strict=True)]
            cells = [f"{np.median(ms):.1f} / {np.percentile(ms, 99):.1f}" for ms in columns]
            rows.append(
                (name, f"{total / MB:.2f}", "busy" if busy else "idle", len(timings), *cells, f"{copying * 1000:.1f}")
            )
    report.say(
        "## From a new version to its use\n\nMilliseconds, median / 99th percentile. LECO's networks, of them what actors need. "
        f"A client process asks every {ASK_SECONDS * 1000:.0f} ms, as an actor in turns does; others ask after each unroll, so "
        "for them the rest of an unroll comes on top. Busy: another client pushes trajectories of DMLab's size as fast as it can."
    )
    report.table(
        (
            "networks",
            "MB",
            "learner",
            "versions",
            "at the client",
            "in its networks",
            "the call itself",
            "copied by the trainer",
        ),
        rows,
    )


def published(learner: Learner, asker: Child, snapshot: ParameterSnapshot) -> Timing:
    """Publishes, at a moment that has nothing to do with when the client asks, and waits until it has it."""
    time.sleep(float(np.random.default_rng(snapshot.version).uniform(0.02, 0.06)))
    begin = time.monotonic()  # one clock for all processes of a machine
    learner.servicer.publish(snapshot)
    version, asked, had, loaded = json.loads(answer(asker))
    assert version == snapshot.version
    return Timing(had - begin, loaded - begin, had - asked)


def real_training(report: Report, seconds: float) -> None:
    """The same in a run: when the learner, the actor and the trainer come to each version, as their metrics tell."""
    with tempfile.TemporaryDirectory() as folder, service("--store", "memory") as hashcount:
        config, run = Path(folder, "experiment.toml"), Path(folder, "run")
        experiment = parse("", {"task": REAL_TASK, "learner.log_every": 1})
        config.write_text(to_toml(experiment))
        with (
            leco(
                "learner", "serving", Path(folder), f"--config={config}", f"--run-dir={run}", "--listen=127.0.0.1:0"
            ) as line,
            leco(
                "actor",
                "serving metrics",
                Path(folder),
                f"--learner={line['address']}",
                f"--hashcount={hashcount['address']}",
            ) as actor,
        ):
            samples = watch(int(line["metrics_port"]), int(actor["port"]), seconds)
    used, trained = [], []
    unroll_frames = experiment.actors.unroll_length
    for version, when, frames in samples.used:
        if version in samples.published:
            used.append(when - samples.published[version])
            later = [t for t, taken in samples.taken if t > when and taken > frames / unroll_frames]
            trained += [later[0] - samples.published[version]] if later else []
    updates = np.diff(sorted(samples.published.values()))
    report.say(
        f"## In a run\n\nLECO on {REAL_TASK}, {experiment.actors.num_envs} environments, unrolls of {unroll_frames}, "
        f"one actor, one thread each, {seconds:.0f} s; from the services' own metrics, read every {samples.period * 1000:.0f} ms "
        "(so much is the error). An update with its publication took "
        f"{np.median(updates):.2f} s in the median."
    )
    report.table(
        ("from publication", "seconds, median / 99th percentile", "versions"),
        [
            (what, f"{np.median(each):.2f} / {np.percentile(each, 99):.2f}", len(each))
            for what, each in (
                ("to the actor that acts with it", used),
                ("to the trainer that gets the first trajectory played with it", trained),
            )
        ],
    )


class Samples(NamedTuple):
    """When each version was published; (version, when, frames played before) of the actor; (when, taken) of the trainer."""

    published: dict[int, float]
    used: list[tuple[int, float, int]]
    taken: list[tuple[float, int]]
    period: float


def watch(learner_port: int, actor_port: int, seconds: float) -> Samples:
    """Reads the metrics of both again and again, from the first updates on."""
    found = Samples({}, [], [], 0.02)
    while (page := metrics(learner_port))["leco_learner_updates_total"] < 3:
        time.sleep(0.1)
    first, begin = page["leco_learner_parameters_version"], time.monotonic()
    while time.monotonic() - begin < seconds:
        page, now = metrics(learner_port), time.monotonic()
        if (version := page["leco_learner_parameters_version"]) > first:  # the first was published before
            found.published.setdefault(int(version), now)
        found.taken.append((now, int(page["leco_learner_trajectories_taken_total"])))
        page, now = metrics(actor_port), time.monotonic()
        version = int(page["leco_actor_parameters_version"])
        if not found.used or found.used[-1][0] != version:
            found.used.append((version, now, int(page["leco_actor_frames_total"])))
        time.sleep(found.period)
    return found


def metrics(port: int) -> dict[str, float]:
    """A page of metrics, those without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


@contextlib.contextmanager
def leco(name: str, ready: str, folder: Path, *flags: str) -> Iterator[dict[str, Any]]:
    """A service as `leco train` runs it, but with metrics; gives its first log line with this event."""
    log = folder / f"{name}.log"
    command = [
        sys.executable,
        "-m",
        "leco.cli.main",
        name,
        "--metrics-port=0",
        "--threads=1",
        "--log-format=json",
        *flags,
    ]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            while process.poll() is None:
                lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
                if found := next((line for line in lines if line["event"] == ready), None):
                    yield found
                    return
                time.sleep(0.1)
            sys.exit(f"leco {name} ended: {log.read_text()}")
        finally:
            process.terminate()


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {"push": push, "ask": ask}
    if sys.argv[1:2] and sys.argv[1] in roles:
        roles[sys.argv[1]](*sys.argv[2:])
    else:
        main()
