"""Everything fails at random, and hostile clients attack, while clients count and actors train: `make chaos`.

Real services on 127.0.0.1: Valkey, two hash-count replicas, a learner, two actors. They are killed and paused; clients of no
library begin requests that they never end, open streams and send nothing, and lie. Meanwhile other clients count and hold every
answer against their own count, and the learner notes what it trains on. The table at the end says what came of it; the command
fails if an answer was wrong, a trajectory was trained on twice, a lie was believed, or a service ended by itself.

CHAOS_MINUTES=1 makes it short, CHAOS_SEED=... takes the same faults again. CHAOS_TABLE=FILE keeps the table.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np
from hashcount import Report, measured

from leco.rpc.channel import open_channel
from leco.rpc.codec import trajectory_to_message
from leco.rpc.hashcount_client import SERVICE
from leco.types import Trajectory
from leco.v1 import learner_pb2_grpc
from leco.v1.hash_count_pb2 import CountRequest, EpisodeBatch
from leco.v1.learner_pb2 import JoinRequest, PushHello, PushRequest, RunSpecification
from support.recounting import Recounter
from support.redis_servers import RedisServer
from support.service_process import ServiceProcess
from support.training_services import LECO, SMALL, TrainingProcess, actor, learner, updates
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLIENTS = 4
FRAMES_OF_UPDATE: int = SMALL["learner.batch_size"] * SMALL["actors.unroll_length"]
ATTACK_SECONDS = 15.0
COUNT, PUSH = "/leco.v1.HashCountService/Count", "/leco.v1.LearnerService/Push"
FAULTS = [
    *("kill Redis", "kill a hashcount replica", "kill the learner", "kill an actor"),
    *("pause Redis", "pause a hashcount replica", "pause the learner", "pause an actor"),
    *("800 unfinished requests to hashcount", "800 unfinished messages to the learner"),
    *("400 streams without a hello", "40 idle streams", "lies to hashcount", "lies to the learner"),
]
# The learner, and a line of what it trains on in each update.
NOTING = """
import hashlib, os
from services.learner.trajectory_queue import TrajectoryQueue
take = TrajectoryQueue.take
def name(each):
    parts = (each.observation, each.action, each.behaviour_logits, each.core_state)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]
def noted(self, *arguments, **settings):
    taken = take(self, *arguments, **settings)
    if taken is not None:
        with open(os.environ["CHAOS_TAKEN"], "a") as file:
            file.write(" ".join(map(name, taken)) + "\\n")
    return taken
TrajectoryQueue.take = noted
from leco.cli.main import main
main()
"""


def main() -> None:
    """Lets it happen, and says what came of it."""
    minutes, seed = float(os.environ.get("CHAOS_MINUTES") or 10), os.environ.get("CHAOS_SEED") or str(time.time_ns())
    with tempfile.TemporaryDirectory(prefix="leco-chaos-") as folder, ExitStack() as stack:
        world = World(stack, random.Random(seed), Path(folder))
        rows = world.suffer(minutes * 60)
    report = Report()
    report.say(f"# Chaos\n\n{measured(f'CHAOS_MINUTES={minutes:g} CHAOS_SEED={seed} make chaos')}.")
    report.say(
        "Valkey, two hash-count replicas, a learner and two actors on one machine, killed, paused and\n"
        "attacked at random ([chaos.py](../../benchmarks/chaos.py)). Four clients hold every answer of hashcount\n"
        "against their own count; the learner notes what it trains on. *Wrong counts* and the three rows after it\n"
        "must be 0, or the command fails."
    )
    report.table(("what", "how much"), rows)
    if table := os.environ.get("CHAOS_TABLE"):
        Path(table).write_text(report.text.rstrip() + "\n")
    sys.exit(f"not as it should be: {', '.join(world.broken)}" if world.broken else 0)


class World:
    """The services, their clients, and what can happen to them."""

    def __init__(self, stack: ExitStack, rng: random.Random, folder: Path) -> None:
        self._stack, self._rng, self._folder = stack, rng, folder
        self.redis = stack.enter_context(RedisServer())
        self.all: list[ServiceProcess] = []  # all that ever ran
        self.replicas = [self._replica("127.0.0.1:0") for _ in range(2)]
        self._lives: list[Path] = []
        self.learner = self._learner("127.0.0.1:0")
        self.counting = "ipv4:" + ",".join(each.address for each in self.replicas)
        self.actors = [self._actor(index) for index in range(2)]
        self.tally: Counter[str] = Counter()
        self.most: Counter[str] = Counter()  # memory
        self._attacks, self._attacking = ThreadPoolExecutor(), list[Future[None]]()
        self.broken: list[str] = []

    def _begun(self, process: ServiceProcess) -> None:
        self.all.append(self._stack.enter_context(process))

    def _replica(self, address: str) -> ServiceProcess:
        self._begun(process := ServiceProcess("--store", self.redis.url, "--listen", address))
        return process

    def _learner(self, address: str) -> TrainingProcess:
        process = learner(self._folder / "run", listen=address, method="leco", frames=1_000_000_000)
        process._command = [sys.executable, "-P", "-c", NOTING, *process._command[len(LECO) :]]  # noqa: SLF001
        self._lives.append(self._folder / f"life-{len(self._lives)}")
        process._env["CHAOS_TAKEN"] = str(self._lives[-1])  # noqa: SLF001
        self._begun(process)
        return process

    def _actor(self, index: int) -> TrainingProcess:
        self._begun(process := actor(self.learner.address, self.counting, f"--index={index}"))
        return process

    def suffer(self, seconds: float) -> list[tuple[str, object]]:
        """Faults for so long; rows of a table."""
        until(lambda: updates(self.learner) >= 20)
        before = self._memory()
        stop, end = threading.Event(), time.monotonic() + seconds
        with open_channel(self.counting, service=SERVICE) as channel, ThreadPoolExecutor(CLIENTS + 1) as pool:
            plays = [pool.submit(self._recount, channel, number, stop) for number in range(CLIENTS)]
            pool.submit(self._watch_memory, stop)
            try:
                self._suffer_until(end)
            finally:
                stop.set()
            for each in plays:
                each.result()
        return self._rows(before, self._memory())

    def _suffer_until(self, end: float) -> None:
        faults = list(FAULTS)
        while time.monotonic() < end:
            fault = faults.pop(self._rng.randrange(len(faults)))
            self.tally[fault] += 1
            self._suffer(fault)
            self._note_the_dead()
            time.sleep(self._rng.uniform(0.0, 3.0))
            faults = faults or list(FAULTS)
        for each in self._attacking:
            each.result()
        made = updates(self.learner)

        def is_well_again() -> bool:
            self._note_the_dead()
            return updates(self.learner) >= made + 20

        until(is_well_again)

    def _suffer(self, fault: str) -> None:
        verb, _, what = fault.partition(" ")
        if verb == "kill":
            self._kill(what)
        elif verb == "pause":
            self._pause(what)
        else:
            attack: dict[str, Callable[[], None]] = {
                "800 unfinished requests to hashcount": lambda: self._unfinished(self.replicas[0], COUNT, 4_000_000),
                "800 unfinished messages to the learner": lambda: self._unfinished(self.learner, PUSH, 4_000_000),
                "400 streams without a hello": lambda: self._unfinished(self.learner, PUSH, 0),
                "40 idle streams": self._idle,
                "lies to hashcount": self._lie_to_hashcount,
                "lies to the learner": self._lie_to_the_learner,
            }
            self._attacking.append(self._attacks.submit(self._attack, attack[fault]))

    def _kill(self, what: str) -> None:
        index = self._rng.randrange(2)
        if what == "Redis":
            self.redis.kill()
            time.sleep(self._rng.uniform(0.0, 1.0))
            self.redis.start()
        elif what == "the learner":
            self.learner.kill()
            self.learner = self._learner(self.learner.address)
        elif what == "an actor":
            self.actors[index].kill()
            self.actors[index] = self._actor(index)
        else:
            self.replicas[index].kill()
            self.replicas[index] = self._replica(self.replicas[index].address)

    def _pause(self, what: str) -> None:
        index = self._rng.randrange(2)
        pids = {"Redis": self.redis.pid, "the learner": self.learner.pid, "an actor": self.actors[index].pid}
        pid = pids.get(what, self.replicas[index].pid)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._rng.uniform(0.5, 5.0))
        os.kill(pid, signal.SIGCONT)

    def _note_the_dead(self) -> None:
        """Starts actors again that gave up, after a minute without a learner, as Kubernetes does. Nothing else may end."""
        for each in (*self.replicas, self.learner, *self.actors):
            if not each.running:
                each.wait()
                if "no answer from the learner" not in each.lines[-1]:
                    raise RuntimeError("a service ended by itself:\n" + "\n".join(each.lines[-20:]))
        for index, each in enumerate(self.actors):
            if not each.running:
                self.tally["gave up"] += 1
                self.actors[index] = self._actor(index)

    # Clients that are as they should be.

    def _recount(self, channel: grpc.Channel, number: int, stop: threading.Event) -> None:
        while not stop.is_set():
            client = Recounter(channel, number, self._rng.randrange(1 << 32))
            try:
                client.play(stop)
            except AssertionError as error:
                print(error, file=sys.stderr, flush=True)
                self.tally["wrong"] += 1
            self.tally.update(client.tally)

    # Clients that are not.

    def _attack(self, attack: Callable[[], None]) -> None:
        try:
            attack()
        except (OSError, grpc.RpcError):  # it was killed meanwhile
            self.tally["cut short"] += 1

    def _unfinished(self, service: ServiceProcess, method: str, size: int) -> None:
        """In a process of its own: it would take this one's time."""
        command = [
            sys.executable,
            "-m",
            "support.raw_http2",
            service.address,
            method,
            "20",
            "40" if size else "20",
            str(size),
        ]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
            try:
                child.wait(ATTACK_SECONDS)
            except subprocess.TimeoutExpired:
                return
            finally:
                child.kill()
            raise ConnectionError

    def _idle(self) -> None:
        over = threading.Event()
        with grpc.insecure_channel(self.learner.address) as channel:
            run = _joined(channel).run

            def silent(index: int) -> Iterator[PushRequest]:
                yield PushRequest(hello=PushHello(run=run, incarnation=os.urandom(16), actor_name=f"idle-{index}"))
                over.wait()

            calls = [learner_pb2_grpc.LearnerServiceStub(channel).Push(silent(index)) for index in range(40)]
            time.sleep(ATTACK_SECONDS)
            over.set()
            for call in calls:
                call.cancel()

    def _lie_to_hashcount(self) -> None:
        good = CountRequest(run="lies", code_width=1, episodes=[EpisodeBatch(episode_id="e", size=2)], codes=b"AA")
        with grpc.insecure_channel(self.replicas[0].address) as channel:
            count: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(COUNT)
            for named, change in (
                ("codes", CountRequest(codes=b"A")),
                ("codes", CountRequest(code_width=2)),
                ("run", CountRequest(run="a b")),
                ("size", CountRequest(episodes=[EpisodeBatch(episode_id="f", size=1 << 31)])),
                ("size", CountRequest(episodes=[EpisodeBatch(episode_id="f")])),
            ):
                lie = CountRequest()
                lie.CopyFrom(good)
                lie.MergeFrom(change)
                self._refused(count, lie.SerializeToString(), named)
            self._refused(count, bytes([255] * 5000), "not the message")

    def _lie_to_the_learner(self) -> None:
        with grpc.insecure_channel(self.learner.address) as channel:
            run = _joined(channel)
            stub = learner_pb2_grpc.LearnerServiceStub(channel)
            changes: tuple[dict[str, object], ...] = (
                {"reward": np.full(run.unroll_length, np.nan, np.float32)},
                {"reward": np.zeros(run.unroll_length + 1, np.float32)},
                {"action": np.full(run.unroll_length, run.action_count, np.int32)},
                {"behaviour_logits": np.full((run.unroll_length, run.action_count), np.inf, np.float32)},
                {"parameters_version": 1 << 40},
                {"count": np.zeros(run.unroll_length, np.uint32)},
                {"observation": np.zeros((1, 1), np.uint8)},
            )
            for change in changes:
                hello = PushHello(run=run.run, incarnation=os.urandom(16), actor_name="liar\x1b[2J")
                lie = PushRequest(trajectory=trajectory_to_message(_made(run, **change)))
                sent = iter((PushRequest(hello=hello), lie))
                self._refused(lambda sent, timeout: list(stub.Push(sent, timeout=timeout)), sent, *change)

    def _refused(self, call: Callable[..., object], request: object, named: str) -> None:
        """Tells a lie; the answer must name what is wrong."""
        try:
            call(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
                raise
            if named not in (error.details() or ""):
                raise RuntimeError(f"a lie about {named} was refused with: {error.details()}") from error
            self.tally["lies refused"] += 1
        else:
            self.tally["lies believed"] += 1

    # What came of it.

    def _memory(self) -> dict[str, int]:
        return {
            "hashcount": max(each.memory_bytes() for each in self.replicas) >> 20,
            "learner": self.learner.memory_bytes() >> 20,
            "actor": max(each.memory_bytes() for each in self.actors) >> 20,
        }

    def _watch_memory(self, stop: threading.Event) -> None:
        while not stop.wait(0.5):
            with suppress(OSError, ValueError):  # one is being started
                self.most |= Counter(self._memory())

    def _trained(self) -> tuple[int, int]:
        """Trajectories in the parameters that there are now, and how many of these were there before.

        A learner that was killed goes on from its last checkpoint: what it had trained on since then is forgotten.
        """
        learners = [each for each in self.all if isinstance(each, TrainingProcess) and "learner" in each._command]  # noqa: SLF001
        trained: list[tuple[int, str]] = []
        for process, notes in zip(learners, self._lives, strict=True):
            [start] = [line["frames"] // FRAMES_OF_UPDATE for line in process.logged() if line["event"] == "serving"]
            trained = [each for each in trained if each[0] <= start]
            if notes.exists():
                for number, line in enumerate(notes.read_text().splitlines(), start + 1):
                    trained += [(number, name) for name in line.split()]
        names = [name for _, name in trained]
        return len(names), len(names) - len(set(names))

    def _rows(self, before: dict[str, int], after: dict[str, int]) -> list[tuple[str, object]]:
        tally = self.tally
        trained, twice = self._trained()
        unexpected = sum("failed unexpectedly" in line for each in self.all for line in each.lines)
        wrong: list[tuple[str, object]] = [
            ("wrong counts", tally["wrong"]),
            ("trajectories trained on twice", twice),
            ("lies believed", tally["lies believed"]),
            ("calls that failed unexpectedly", unexpected),
        ]
        self.broken = [f"{value} {what}" for what, value in wrong if value]
        compared = tally["counted"] + tally["repeated"]
        return [
            ("faults", sum(tally[fault] for fault in FAULTS)),
            *((f"- {fault}", tally[fault]) for fault in FAULTS),
            ("attacks cut short, because the service was killed or busy", tally["cut short"]),
            ("answers compared", f"{compared:,}"),
            ("- of them counted by a call whose answer was lost", f"{tally['recovered']:,}"),
            ("batches without an answer in 3 s, and repeated", f"{tally['unavailable']:,}"),
            ("episodes given up because Redis had lost them", f"{tally['lost']:,}"),
            ("trajectories trained on", f"{trained:,}"),
            ("actors that gave up on an absent learner, and were started again", tally["gave up"]),
            ("lies refused", tally["lies refused"]),
            *wrong,
            *(
                (f"memory of {name}, MiB: before, most, after", f"{before[name]}, {self.most[name]}, {after[name]}")
                for name in before
            ),
        ]


def _joined(channel: grpc.Channel) -> RunSpecification:
    request = JoinRequest(actor_name="chaos", software_version=version("leco"))
    return learner_pb2_grpc.LearnerServiceStub(channel).Join(request, timeout=ATTACK_SECONDS).specification


def _made(run: RunSpecification, **changes: object) -> Trajectory:
    """A trajectory as it should be, but for the changes."""
    steps, shape = run.unroll_length, tuple(run.observation_shape)
    parts: dict[str, object] = {
        "number": 1,
        "parameters_version": 1,
        "previous_action": -1,
        "previous_reward": 0.0,
        "observation": np.zeros((steps + 1, *shape), np.uint8),
        "start": np.arange(steps + 1) == 0,
        "terminal_observation": np.zeros((0, *shape), np.uint8),
        "action": np.zeros(steps, np.int32),
        "reward": np.zeros(steps, np.float32),
        "behaviour_logits": np.zeros((steps, run.action_count), np.float32),
        "core_state": np.zeros(tuple(run.core_state_shape), np.float32),
        "count": np.ones(steps, np.uint32),
        "episodes": (),
    }
    if run.coarse_levels:
        parts |= dict.fromkeys(("coarse_count", "coarse_code"), np.ones((steps, run.coarse_levels), np.uint32))
    return Trajectory(**parts | changes)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
