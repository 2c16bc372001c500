"""A fleet of actors against the real services: `PYTHONPATH=tests python -W ignore benchmarks/fleet.py`, or with --help.

The learner, hashcount and Redis are real processes on 127.0.0.1; up to 240 light actors (light_actors.py) are one more. What is
measured of each service is its processor time (Linux counts it), which tells what more actors cost also while others use the
processors; latencies do not. The tables are kept in benchmarks/results; fleet_page.py brings them, a figure, and the
arithmetic on to larger fleets into docs/scale.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import redis
from fleet_page import (
    ACTORS,
    BATCH,
    FRAMES,
    MB,
    TOGETHER,
    UNROLL,
    Load,
    Measured,
    Return,
    figure_of,
    say,
    tables,
    write_page,
)
from hashcount import RESULTS, Report, measured, redis_server
from payload import play

from leco.config.toml import parse, to_toml
from leco.rpc.channel import open_channel
from leco.rpc.codec import trajectory_to_message
from leco.rpc.learner_client import SERVICE, LearnerClient
from leco.v1 import learner_pb2
from support.service_process import ServiceProcess
from support.training_services import TrainingProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = Path(__file__).parent.parent / "docs/scale.md"
STREAMS = (1, 15, 60, ACTORS)
SHARES = (0.25, 0.5)  # of FRAMES
TICKS = os.sysconf("SC_CLK_TCK")
SOFTWARE = metadata.version("leco")
# Trajectories without counts are taken in, checked, acknowledged and dropped, as when hashcount is away: so nothing is trained,
# and all that the learner does is to take in. The numbers are those of deploy/k8s/dmlab.
PIXELS = {
    "task": "vizdoom-my-way-home",
    "method": "leco",
    "actors.num_envs": 1,
    "learner.batch_size": BATCH,
    "learner.queue_capacity": BATCH + ACTORS,
    "frames": 10**12,
}
# The cheapest that is trained on.
SMALL = {
    "task": "KeyCorridorS3R3",
    "method": "no-int",
    "network.width": 16,
    "actors.num_envs": 1,
    "learner.batch_size": BATCH,
    "learner.queue_capacity": BATCH + ACTORS,
    "learner.checkpoint_every": 5,
    "frames": 10**12,
}


def main() -> None:
    """Measures everything, and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each measurement takes (default: 20)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the tables (default: benchmarks/results)")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to bring up to date (default: docs/scale.md)")
    arguments = parser.parse_args()
    busy = os.getloadavg()[0]
    found = measure(arguments.seconds)
    report = Report()
    command = " ".join(["PYTHONPATH=tests python -W ignore benchmarks/fleet.py", *sys.argv[1:]])
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("grpcio", "protobuf", "numpy", "torch"))
    began = f"Services and actors share these CPUs; the load average when it began was {busy:.1f}"
    beside = (
        f"{began}: other work ran beside it, and latencies would be shorter without it." if busy > 1 else f"{began}."
    )
    say(report, "", measured(command) + f", {packages}, {found.redis}.", beside)
    tables(report, found)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"fleet_{os.cpu_count()}cpu_{dt.datetime.now(dt.UTC):%Y-%m-%d}.md"
    path.write_text("# A fleet\n\n" + report.text.rstrip() + "\n")
    write_page(arguments.page, report.text, found)
    print(f"\nkept in {path}, {arguments.page} and {figure_of(arguments.page)}")


def measure(seconds: float) -> Measured:
    """Everything, in three runs: two that train nothing, and one that trains."""
    with system(PIXELS) as pixels:
        steady = [pixels.load(streams, streams, FRAMES, seconds) for streams in STREAMS]
        idle = [pixels.load(streams, STREAMS[1], FRAMES, seconds) for streams in STREAMS[1:]]
        rates = [pixels.load(ACTORS, ACTORS, share * FRAMES, seconds) for share in SHARES]
        nobody = [pixels.load(streams, 0, FRAMES, seconds) for streams in (0, ACTORS)]
        flat_out = pixels.load(ACTORS, ACTORS, 0, seconds)
        parameters = pixels.parameters(seconds / 2)
        cut = pixels.cut(FRAMES, max(3 * seconds, 20))
        most, size, version = pixels.learner.memory_bytes("VmHWM"), pixels.trajectory_bytes, pixels.redis_version
    with system(PIXELS | {"actors.num_envs": TOGETHER}) as few:
        together = few.load(ACTORS // TOGETHER, ACTORS // TOGETHER, FRAMES, seconds)
    with system(SMALL) as small:
        stream = small.stream_bytes(BATCH - 1)  # too few for an update
        trained = small.load(ACTORS, ACTORS, 0, seconds)
        kill = small.kill(max(3 * seconds, 30))
    return Measured(
        redis=version,
        unroll_bytes=size,
        steady=steady,
        idle=idle,
        rates=[*rates, steady[-1]],
        nobody=nobody,
        flat_out=flat_out,
        together=together,
        parameters=parameters,
        learner_bytes=most,
        stream_bytes=stream,
        returns=[cut, kill],
        trained=trained,
        small_bytes=small.trajectory_bytes,
    )


class Usage(NamedTuple):
    """Processor seconds and resident bytes of each process by now."""

    seconds: dict[str, float]
    bytes: dict[str, int]


@contextmanager
def system(settings: dict[str, Any]) -> Iterator[System]:
    """A system in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        yield System(stack, Path(folder), settings)


class System:
    """The services of a run, and the process of its light actors."""

    def __init__(self, stack: ExitStack, folder: Path, settings: dict[str, Any]) -> None:
        self._stack, self._folder = stack, folder
        port, self.redis_version = stack.enter_context(redis_server())
        self._redis = redis.Redis(port=port)
        self.hashcount = stack.enter_context(ServiceProcess("--store", f"redis://127.0.0.1:{port}/0"))
        experiment = parse("", settings)
        (folder / "experiment.toml").write_text(to_toml(experiment))
        self.learner = self._learner("127.0.0.1:0")
        self.environments = experiment.actors.num_envs
        self.trajectory_bytes = self._record(experiment.task)
        self.actors = stack.enter_context(children(self._first()))
        self.pids = {
            "learner": self.learner.pid,
            "hashcount": self.hashcount.pid,
            "Redis": int(self._redis.info("server")["process_id"]),
            "actors": self.actors.pid,
        }

    def _learner(self, address: str) -> TrainingProcess:
        flags = (f"--config={self._folder}/experiment.toml", f"--run-dir={self._folder}/run", f"--listen={address}")
        process = TrainingProcess("learner", *flags, "--metrics-port=0", "--threads=1")
        return self._stack.enter_context(process)

    def _record(self, task: str) -> int:
        """What actors send, one file for each unroll; returns the bytes of one."""
        with (
            open_channel(self.learner.address, service=SERVICE) as channel,
            LearnerClient(channel, actor_name="first", software_version=SOFTWARE, max_unacknowledged=1) as client,
        ):
            specification, _ = client.join(give_up_after=60)
        core_state = np.zeros(specification.trajectories.core_state_shape, np.float32)
        unrolls = self._folder / "unrolls"
        unrolls.mkdir()
        sizes = []
        for index, each in enumerate(play(task).trajectories):
            sent = replace(each, core_state=core_state, count=None)
            message = trajectory_to_message(sent)
            message.ClearField("number")
            message.ClearField("parameters_version")
            packed = learner_pb2.PushRequest(trajectory=message).SerializeToString()
            (unrolls / str(index)).write_bytes(packed)
            sizes.append(len(packed))
        return int(np.mean(sizes))

    def _first(self) -> dict[str, Any]:
        return {
            "learner": self.learner.address,
            "hashcount": self.hashcount.address,
            "unrolls": str(self._folder / "unrolls"),
            "environments": self.environments,
            "length": UNROLL,
            "software": SOFTWARE,
        }

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """What the light actors answer."""
        self.tell(do, **arguments)
        return self.answer()

    def tell(self, do: str, **arguments: Any) -> None:
        """Has the light actors do something."""
        assert self.actors.stdin is not None
        self.actors.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.actors.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Of what they were told last."""
        assert self.actors.stdout is not None
        if not (line := self.actors.stdout.readline()):
            sys.exit("the light actors ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def usage(self) -> Usage:
        """Of all processes, now."""
        seconds, sizes = {}, {}
        for name, pid in self.pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds[name] = (int(fields[11]) + int(fields[12])) / TICKS
            sizes[name] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        seconds["update"] = self._update_seconds()
        return Usage(seconds, sizes)

    def _update_seconds(self) -> float:
        """Of the learner's thread that trains: of those in Python that are not the event loop, the one that computed most."""
        pid, found = self.pids["learner"], [0.0]
        for thread in Path(f"/proc/{pid}/task").iterdir():
            name, _, rest = (thread / "stat").read_text().partition("(")[2].rpartition(")")
            if name.startswith(("python", "leco")) and thread.name != str(pid):
                found.append(sum(map(int, rest.split()[11:13])) / TICKS)
        return max(found)

    def load(self, streams: int, active: int, frames: float, seconds: float) -> Load:
        """What it costs when `active` of so many streams send so many frames a second in all; 0: as fast as they can."""
        self.ask("open", actors=streams)
        interval = active * self.environments * UNROLL / frames if frames else 0.0
        self.ask("play", active=active, interval=interval, seconds=min(1.0, seconds))
        before, begin = self.usage(), time.monotonic()
        found = self.ask("play", active=active, interval=interval, seconds=seconds)
        after, took = self.usage(), time.monotonic() - begin
        odd = {f"status {each}": n for each, n in found["statuses"].items() if each != "1"}
        print(
            f"{streams} streams, {active} of them play: {len(found['acknowledged']) / took:.1f} unrolls/s", flush=True
        )
        return Load(
            streams=streams,
            active=active,
            seconds=took,
            unrolls=len(found["acknowledged"]) / took,
            frames=UNROLL * len(found["acknowledged"]) / took,
            processors={name: (after.seconds[name] - before.seconds[name]) / took for name in after.seconds},
            bytes=after.bytes,
            acknowledged=median_and_most(found["acknowledged"]),
            counted=median_and_most(found["counted"]),
            jain=jain(found["took"]),
            least=min(found["took"], default=0) / max(1, *found["took"], 1),
            failures=found["lost"] | odd,
        )

    def stream_bytes(self, streams: int) -> float:
        """Of the learner's memory, what one more stream takes."""
        sizes = []
        for each in (1, streams):
            self.ask("open", actors=each)
            sizes.append(self.usage().bytes["learner"])
        return (sizes[1] - sizes[0]) / (streams - 1)

    def parameters(self, seconds: float) -> tuple[float, float, float]:
        """All actors fetch all parameters: megabytes of them, megabytes a second, and learner's processor seconds a megabyte."""
        before = self.usage().seconds["learner"]
        found = self.ask("fetch", seconds=seconds)
        moved = found["fetched_bytes"] / MB
        size = moved / len(found["fetched"])
        return size, moved / found["seconds"], (self.usage().seconds["learner"] - before) / moved

    def cut(self, frames: float, seconds: float) -> Return:
        """All lose their connections at once while they play."""
        interval = ACTORS * self.environments * UNROLL / frames if frames else 0.0
        found = self.ask("play", active=ACTORS, interval=interval, seconds=seconds, cut_after=seconds / 4, lost=True)
        return self._back("all connections cut", found, found["cut"], 0.0)

    def kill(self, seconds: float) -> Return:
        """The learner is killed while they play as fast as they can, and starts again."""
        self.tell("play", active=ACTORS, interval=0.0, seconds=seconds, lost=True)
        time.sleep(seconds / 4)
        self.learner.kill()
        killed = time.monotonic()
        self.learner = self._learner(self.learner.address)
        self.pids["learner"], serving = self.learner.pid, time.monotonic()
        return self._back("learner killed", self.answer(), killed, serving)

    def _back(self, what: str, found: dict[str, Any], lost: float, serving: float) -> Return:
        """What came of it. Of what this learner acknowledged, all must be there once."""
        told = found["taken"]
        if serving:  # another one; before it, the actors had this much acknowledged
            told -= sum(next(taken for when, taken in streams if when > lost) for streams in found["begun"])
        kept = [f"leco_learner_trajectories_dropped_total {reason}" for reason in ("lag", "uncounted")]
        kept += ["leco_learner_trajectories_taken_total", "leco_learner_queue_trajectories"]
        for _ in range(100):  # the trainer may be taking some just now
            page = self.learner.metrics()
            if (there := sum(page[name] for name in kept)) == told:
                break
            time.sleep(0.1)
        else:
            sys.exit(f"{what}: {told} trajectories were acknowledged, but {there:.0f} taken")
        return Return(
            what=what,
            away=max(serving - lost, 0.0),
            credited=[each - max(lost, serving) for each in found["credited"]],
            served=[each - max(lost, serving) for each in found["served"]],
            acknowledged=told,
            repeated=int(page["leco_learner_trajectories_dropped_total duplicate"]),
            too_old=int(page["leco_learner_trajectories_dropped_total lag"]),
            lost=found["lost"],
        )


@contextmanager
def children(first: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """The light actors, told who serves them."""
    command = [sys.executable, str(Path(__file__).with_name("light_actors.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(first) + "\n")
            yield process
        finally:
            process.kill()


def median_and_most(seconds: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds."""
    if not seconds:
        return 0.0, 0.0
    half, most = np.percentile(seconds, [50, 99]) * 1000
    return float(half), float(most)


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: (sum x)^2 / (n sum x^2)."""
    squares = sum(x * x for x in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


if __name__ == "__main__":
    main()
