"""What a trajectory weighs on the wire, and what it costs to make it lighter: `python benchmarks/payload.py`, or with --help.

Random play in ViZDoom's two scenarios, and in a task of MiniGrid for comparison, is packed as an actor packs it. Then several
compressors have a go at the same payloads, in turns and on one thread: as they are, and with each picture as its difference to
the one before. lz4 is not installed with leco; it is left out unless it is there (`pip install lz4`).
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import os
import re
import statistics
import sys
import time
import zlib
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zstandard
from hashcount import Report, alternately, measured, spread

from leco.envs.registry import make
from leco.rpc.codec import trajectory_from_message, trajectory_to_message
from leco.rpc.tensors import COMPRESSIONS, ZSTD_LEVEL
from leco.telemetry.malloc import keep_freed_memory
from leco.types import EpisodeSummary, Trajectory, TrajectorySpec
from leco.v1 import learner_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from leco.rpc.tensors import Compression

    Times = dict[
        tuple[str, Compression], tuple[float, float]
    ]  # of a task: milliseconds of the actor and of the learner

RESULTS = Path(__file__).parent / "results"
TASKS = ("vizdoom-my-way-home", "vizdoom-deathmatch", "KeyCorridorS3R3")
UNROLL, ENVIRONMENTS, UNROLLS = 96, 4, 2
ALL_ENVIRONMENTS = 240
FRAMES_PER_SECOND = (3000, 5000)  # of all environments together, in the paper, on two GPUs
GOAL = 300  # MB/s that the learner shall take
NETWORKS = {"1 Gbit/s": 125, "10 Gbit/s": 1250}  # MB/s
WAY_OF = {"none": "raw", "zstd": f"zstd {ZSTD_LEVEL}"}
MB = 1e6


class Played(NamedTuple):
    """Trajectories of one task."""

    spec: TrajectorySpec
    trajectories: list[Trajectory]


class Way(NamedTuple):
    """A compressor, and the opposite."""

    name: str
    squeeze: Callable[[bytes], bytes]
    expand: Callable[[bytes], bytes]


class Compressed(NamedTuple):
    """What became of a task's payloads in one way: mean bytes of an unroll, and MB/s (of what is raw) in each turn."""

    name: str
    size: float
    squeeze: list[float]
    expand: list[float]


def main() -> None:
    """Runs everything, prints the tables, and keeps them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="how often each way is measured (default: 9)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the table (default: benchmarks/results)")
    arguments = parser.parse_args()
    keep_freed_memory()  # as actor and learner do
    report = Report()
    report.say(heading())
    tasks = {name: play(name) for name in TASKS}
    squeezed = compressors(report, tasks, arguments.repeats)
    times = codec(report, tasks, arguments.repeats)
    stream(report, squeezed, times)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"payload_{os.cpu_count()}cpu_{dt.datetime.now(dt.UTC):%Y-%m-%d}.md"
    path.write_text(report.text)
    print(f"\nkept in {path}")


def heading() -> str:
    """Where and with what it was measured."""
    names = ["zstandard", "vizdoom", "minigrid", "numpy", "protobuf"] + ["lz4"] * bool(importlib.util.find_spec("lz4"))
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    zstd = ".".join(map(str, zstandard.ZSTD_VERSION))
    command = " ".join(["python benchmarks/payload.py", *sys.argv[1:]])
    return (
        f"# Trajectories on the wire\n\n{measured(command)}, {packages} (libzstd {zstd}, zlib {zlib.ZLIB_RUNTIME_VERSION}). "
        f"Processor time of one thread; others used the CPUs, too: the load average when it began was {os.getloadavg()[0]:.1f}. "
        "Numbers: median (least to most)."
    )


def play(name: str) -> Played:
    """Unrolls of random play. Logits and core state are noise, as incompressible as a policy's."""
    env, random = make(name, num_envs=ENVIRONMENTS, seed=0), np.random.default_rng(0)
    spec = TrajectorySpec(UNROLL, env.observation_shape, env.num_actions, (2, 2, 256 + env.num_actions + 1))
    trajectories: list[Trajectory] = []
    try:
        seen_EO, start_E = env.reset(), np.ones(ENVIRONMENTS, np.bool_)
        for _ in range(UNROLLS):
            observation_TEO = np.empty((UNROLL + 1, *seen_EO.shape), np.uint8)
            start_TE = np.empty((UNROLL + 1, ENVIRONMENTS), np.bool_)
            action_TE = random.integers(0, env.num_actions, (UNROLL, ENVIRONMENTS), np.int32)
            reward_TE = np.empty((UNROLL, ENVIRONMENTS), np.float32)
            last: list[list[npt.NDArray[np.uint8]]] = [[] for _ in range(ENVIRONMENTS)]
            observation_TEO[0], start_TE[0] = seen_EO, start_E
            for t, action_E in enumerate(action_TE):
                steps = env.step(action_E)
                seen_EO, start_E = steps.observation_EO, steps.done_E
                observation_TEO[t + 1], start_TE[t + 1], reward_TE[t] = seen_EO, start_E, steps.reward_E
                for ended, terminal_O in zip(np.flatnonzero(steps.done_E), steps.terminal_observation_FO, strict=True):
                    last[ended].append(terminal_O)
            for e in range(ENVIRONMENTS):
                trajectory = Trajectory(
                    number=1,
                    parameters_version=1,
                    previous_action=-1 if start_TE[0, e] else 0,
                    previous_reward=0.0,
                    observation=observation_TEO[:, e],
                    start=start_TE[:, e],
                    terminal_observation=np.array(last[e], np.uint8).reshape(-1, *spec.observation_shape),
                    action=action_TE[:, e],
                    reward=reward_TE[:, e],
                    behaviour_logits=random.standard_normal((UNROLL, spec.action_count), np.float32),
                    core_state=random.standard_normal(spec.core_state_shape, np.float32),
                    count=random.geometric(0.3, UNROLL).astype(np.uint32),
                    episodes=tuple(EpisodeSummary(0.0, 1, success=False) for _ in last[e]),
                )
                trajectories.append(trajectory)
    finally:
        env.close()
    return Played(spec, trajectories)


def ways() -> list[Way]:
    """All there are here. What they make is checked for damage where that is cheap, as the wire wants it."""

    def zstd(level: int) -> Way:
        return Way(
            f"zstd {level}",
            lambda raw: zstandard.ZstdCompressor(level=level, write_checksum=True).compress(raw),
            lambda small: zstandard.ZstdDecompressor().decompress(small),
        )

    found = [
        Way("zlib 1", lambda raw: zlib.compress(raw, 1), zlib.decompress),
        *map(zstd, (-3, -1, 1, 3)),
    ]
    if importlib.util.find_spec("lz4"):
        frame: Any = importlib.import_module("lz4.frame")
        found.insert(1, Way("lz4", lambda raw: frame.compress(raw, content_checksum=True), frame.decompress))
    return found


def of_differences(way: Way, spec: TrajectorySpec) -> Way:
    """The same after each observation was replaced by its difference to the one before. They lie first in the payload."""
    shape = (UNROLL + 1, int(np.prod(spec.observation_shape)))
    size = shape[0] * shape[1]

    def squeeze(raw: bytes) -> bytes:
        changed = np.frombuffer(raw, np.uint8).copy()
        seen_TO = np.frombuffer(raw, np.uint8, size).reshape(shape)
        np.subtract(seen_TO[1:], seen_TO[:-1], out=changed[:size].reshape(shape)[1:])
        return way.squeeze(changed.data)  # type: ignore[arg-type]

    def expand(small: bytes) -> bytes:
        changed = np.frombuffer(bytearray(way.expand(small)), np.uint8)
        seen_TO = changed[:size].reshape(shape)
        for t in range(1, len(seen_TO)):  # accumulate() would be slower
            seen_TO[t] += seen_TO[t - 1]
        return changed.tobytes()

    return Way(f"{way.name}, differences", squeeze, expand)


def timed(act: Callable[[Any], object], inputs: Sequence[Any]) -> Callable[[], float]:
    """Measures processor seconds for one of the inputs, each of which is used in turn, so that none is in a cache."""
    begin = time.process_time()
    for each in inputs:
        act(each)
    inner = max(1, round(0.02 / (time.process_time() - begin + 1e-6)))  # a clock that ticks needs something to measure

    def run() -> float:
        begin = time.process_time()
        for _ in range(inner):
            for each in inputs:
                act(each)
        return (time.process_time() - begin) / inner / len(inputs)

    return run


def compressors(report: Report, tasks: dict[str, Played], repeats: int) -> dict[str, list[Compressed]]:
    """Size and speed of each way on each task."""
    found: dict[str, list[Compressed]] = {}
    rows = []
    for task, (spec, trajectories) in tasks.items():
        payloads = [trajectory_to_message(each).tensors.payload for each in trajectories]
        raw = statistics.mean(map(len, payloads))
        found[task] = [Compressed("raw", raw, [], [])]
        plain = ways()
        chosen = [*plain, *(of_differences(way, spec) for way in plain if way.name in ("lz4", "zstd 1"))]
        small = [[way.squeeze(payload) for payload in payloads] for way in chosen]
        for way, pieces in zip(chosen, small, strict=True):
            assert [way.expand(piece) for piece in pieces] == payloads, way.name
        squeezing = [timed(way.squeeze, payloads) for way in chosen]
        expanding = [timed(way.expand, pieces) for way, pieces in zip(chosen, small, strict=True)]
        rates = [[raw / MB / each for each in seconds] for seconds in alternately(repeats, *squeezing, *expanding)]
        for i, way in enumerate(chosen):
            size = statistics.mean(map(len, small[i]))
            found[task].append(Compressed(way.name, size, rates[i], rates[len(chosen) + i]))
        rows.append((task, "raw", f"{raw / 1000:,.1f}", "1", "-", "-"))
        for name, size, squeeze, expand in found[task][1:]:
            rows.append((task, name, f"{size / 1000:,.1f}", f"{raw / size:.2f}", spread(squeeze), spread(expand)))
    report.say(
        f"## Compressors\n\nThe whole payload of an unroll of {UNROLL} actions ({UNROLL + 1} observations; of ViZDoom 72x96x3), "
        f"{ENVIRONMENTS * UNROLLS} unrolls of uniformly random play for each task; logits and core state are random floats. MB/s "
        f"of raw bytes, {repeats} times in turn, with checksums. Differences: each observation minus the one before, modulo 256."
    )
    report.table(("task", "way", "kB an unroll", "ratio", "compress, MB/s", "decompress, MB/s"), rows)
    return found


def codec(report: Report, tasks: dict[str, Played], repeats: int) -> Times:
    """What an actor and the learner spend on one trajectory, from numpy to the bytes of a message and back."""
    times: Times = {}
    rows = []
    for task, (spec, trajectories) in tasks.items():
        wires = {how: [encode(each, how) for each in trajectories] for how in COMPRESSIONS}
        packing = [timed(partial(encode, compression=how), trajectories) for how in COMPRESSIONS]
        unpacking = [timed(partial(decode, spec=spec), wires[how]) for how in COMPRESSIONS]
        found = [[1000 * each for each in seconds] for seconds in alternately(repeats, *packing, *unpacking)]
        for i, how in enumerate(COMPRESSIONS):
            actor, learner = found[i], found[len(COMPRESSIONS) + i]
            times[task, how] = statistics.median(actor), statistics.median(learner)
            size = statistics.mean(map(len, wires[how])) / 1000
            rows.append((task, how, f"{size:,.1f}", spread(actor, ".2f"), spread(learner, ".2f")))
    report.say(
        "## Through the codec\n\nMilliseconds for one trajectory. Actor: `trajectory_to_message` and SerializeToString. Learner: "
        "FromString and `trajectory_from_message` with its checks."
    )
    report.table(("task", "compression", "kB a message", "actor, ms", "learner, ms"), rows)
    return times


def encode(trajectory: Trajectory, compression: Compression) -> bytes:
    """What an actor does."""
    message = trajectory_to_message(trajectory, compression=compression)
    return learner_pb2.PushRequest(trajectory=message).SerializeToString()


def decode(wire: bytes, spec: TrajectorySpec) -> Trajectory:
    """What the learner does."""
    return trajectory_from_message(learner_pb2.PushRequest.FromString(wire).trajectory, spec)


def stream(report: Report, squeezed: dict[str, list[Compressed]], times: Times) -> None:
    """What a large run sends, against what there is to take it."""
    least, where = ingest()
    rows, flows = [], []
    for task in TASKS:
        sizes = {each.name: each.size for each in squeezed[task]}
        for how in COMPRESSIONS:
            for frames in FRAMES_PER_SECOND:
                unrolls = frames / UNROLL
                flow = unrolls * sizes[WAY_OF[how]] / MB
                if how == "none":
                    flows.append(flow)
                shares = [f"{flow / most:.1%}" for most in (GOAL, least, *NETWORKS.values())]
                busy = [f"{ms * unrolls / 1000:.1%}" for ms in times[task, how]]
                rows.append((task, how, f"{frames:,}", f"{flow:,.1f}", *shares, *busy))
    report.say(
        f"## {ALL_ENVIRONMENTS} environments\n\nArithmetic from the tables above. The paper's runs made {FRAMES_PER_SECOND[0]:,} "
        f"to {FRAMES_PER_SECOND[1]:,} frames a second in all on two GPUs; each is taken as one observation. Goal: {GOAL} MB/s. "
        f"Measured ingest: {least:,.0f} MB/s, the slowest turn with any number of clients, taken away and stacked, in "
        f"[{where}]({where}). A network counts its bits without overhead. Cores: how much of one the codec takes, in all "
        f"actors together and in the learner. The most that is sent raw is {max(flows):,.0f} MB/s; it fits the goal and the "
        f"measured ingest: {'yes' if max(flows) < min(GOAL, least) else 'no'}."
    )
    names = ("task", "compression", "frames/s", "MB/s", "of the goal", "of the ingest")
    report.table((*names, *(f"of {each}" for each in NETWORKS), "actors' core", "learner's core"), rows)
    report.say(
        "## What was chosen\n\nRaw bytes stay the default: they fit, and nothing costs less processor time. `leco actor "
        f"--compression zstd` (level {ZSTD_LEVEL}) is for networks that the raw stream would fill, such as 1 Gbit/s. lz4 is "
        "faster but leaves a third to two thirds more bytes of pixels; zlib is about as small at a third of the speed; level 3 "
        "of zstd is smaller, but slower by a third to a half. Differences make all of them larger."
    )


def ingest() -> tuple[float, str]:
    """The least MB/s that the newest result of benchmarks/stream.py saw taken away and stacked, and which file that is."""
    path = max(RESULTS.glob("stream_*.md"), key=lambda each: each.stem[-10:])
    found = re.findall(r"\| taken away and stacked +\| [\d,]+ \(([\d,]+) to", path.read_text())
    return min(float(each.replace(",", "")) for each in found), path.name


if __name__ == "__main__":
    main()
