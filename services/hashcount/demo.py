"""`leco count-demo`: the hash-count service as a child process, and a small client that shows exactly-once counting."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import SERVICE, CodeBatch, HashCountClient
from leco.v1.hash_count_pb2 import EpisodeStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

STOP_SECONDS = 30.0
SHOWN_METRICS = ("leco_hashcount_batches_total", "leco_hashcount_codes_total", "leco_hashcount_new_codes_total")


@contextmanager
def service(*flags: str) -> Iterator[dict[str, object]]:
    """Runs `leco hashcount` on free ports of this machine; gives its log line "serving", which names them."""
    command = [sys.executable, "-m", "services.hashcount", "--listen", "127.0.0.1:0", "--metrics-port", "0", *flags]
    child = subprocess.Popen([*command, "--log-format", "json"], stderr=subprocess.PIPE, text=True)  # noqa: S603  # our own command
    try:
        assert child.stderr is not None  # noqa: S101  # it is a pipe
        line = child.stderr.readline()
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            raise RuntimeError(f"the service did not start: {line}{child.stderr.read()}") from None
    finally:
        child.terminate()
        child.communicate(timeout=STOP_SECONDS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Counts a few codes and prints what comes back."""
    parser = argparse.ArgumentParser(prog="leco count-demo", description=__doc__)
    parser.add_argument("--store", default="memory", help="memory, or the address of a Redis server (default: memory)")
    store = parser.parse_args(arguments).store
    with service("--store", store) as serving, open_channel(str(serving["address"]), service=SERVICE) as channel:
        say(f"The hash-count service is up at {serving['address']}, its store is {serving['store']}.\n")
        run = f"demo-{time.time_ns()}"
        show_counting(HashCountClient(channel, run=run, code_width=1))
        show_speed(HashCountClient(channel, run=run, code_width=9))
        say("\nWhat the service says about itself, for Prometheus:")
        with urllib.request.urlopen(f"http://127.0.0.1:{serving['metrics_port']}/metrics", timeout=5) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(SHOWN_METRICS) and not line.endswith(" 0.0"):
                    say(f"  {line}")
    say("\nThe service has drained and stopped.")


def show_counting(client: HashCountClient) -> None:
    """One episode from its first batch to a retry after its end."""

    def send(what: str, sequence: int, letters: str, *, final: bool = False) -> None:
        codes = np.frombuffer(letters.encode(), np.uint8).reshape(-1, 1)
        [result] = client.count([CodeBatch("episode-1", sequence, codes, final)])
        status = EpisodeStatus.Name(result.status).removeprefix("EPISODE_STATUS_").lower()  # type: ignore[arg-type]  # an int
        answer = result.detail if result.counts is None else " ".join(map(str, result.counts))
        say(f"  {what:44} {sequence}  {' '.join(letters):10} {status:9} {answer}")

    say(f"  {'what the client does':44} #  {'codes':10} {'status':9} counts")
    send("counts the first observations", 0, "ABACA")
    send("did not hear the answer and asks again", 0, "ABACA")
    send("goes on: the counts go on too", 1, "ABD")
    send("a late duplicate of the first batch arrives", 0, "ABACA")
    send("a batch got lost on the way", 3, "E")
    send("ends the episode, which frees its table", 2, "A", final=True)
    send("asks for the last answer again", 2, "A", final=True)
    send("goes on after the end by mistake", 3, "A")


def show_speed(client: HashCountClient, *, calls: int = 50, episodes: int = 64, unroll: int = 96) -> None:
    """As many codes as an actor with 64 environments sends in 50 unrolls, each count compared with a dictionary's."""
    codes = np.random.default_rng(1).integers(0, 2, (calls, episodes, unroll, 9), dtype=np.uint8)
    seconds, equal = 0.0, True
    tables: list[dict[bytes, int]] = [{} for _ in range(episodes)]
    for sequence in range(calls):
        begin = time.perf_counter()
        results = client.count([CodeBatch(f"speed-{e}", sequence, codes[sequence, e]) for e in range(episodes)])
        seconds += time.perf_counter() - begin
        for table, batch, result in zip(tables, codes[sequence], results, strict=True):
            equal &= result.counts is not None and result.counts.tolist() == list(count_naively(table, batch))
    total = calls * episodes * unroll
    say(
        f"\n{calls} calls of {episodes} episodes x {unroll} codes: {total / seconds:,.0f} codes a second.\n"
        f"All {total:,} counts equal to those of a plain dictionary: {'yes' if equal else 'NO'}."
    )
    if not equal:
        sys.exit("leco count-demo: the service miscounted")


def count_naively(table: dict[bytes, int], codes: NDArray[np.uint8]) -> Iterator[int]:
    """What the service must answer."""
    for code in codes:
        key = code.tobytes()
        table[key] = table.get(key, 0) + 1
        yield table[key]


def say(text: str) -> None:
    """Prints a line now."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
