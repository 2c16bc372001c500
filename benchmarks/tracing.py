"""What tracing costs for one unroll, off and on: `python benchmarks/tracing.py --help`.

Everything that the actor's two threads ask of tracing for one unroll, the learner's spans for its 16 trajectories and the update,
and those of the hash-count service. On: spans are made and queued for a collector that is not there. One process and one thread.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import time
from itertools import pairwise

from leco.telemetry import tracing

ENVIRONMENTS = 16
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def main() -> None:
    """Measures, and prints both."""
    parser = argparse.ArgumentParser(description="What tracing costs for one unroll, off and on.")
    parser.add_argument("--unrolls", type=int, default=2000, help="in one measurement (default: 2000)")
    parser.add_argument("--repeats", type=int, default=9, help="measurements of each (default: 9)")
    arguments = parser.parse_args()
    logging.disable()  # of spans that nobody takes
    off = measured(arguments.unrolls, arguments.repeats)
    os.environ[ENDPOINT] = "http://127.0.0.1:1"
    stop = tracing.start_tracing("benchmark")
    on = measured(arguments.unrolls, arguments.repeats)
    stop()
    print(f"{ENVIRONMENTS} environments, {arguments.repeats} x {arguments.unrolls} unrolls; microseconds for an unroll")
    for name, each in (("off", off), ("on", on)):
        print(f"{name:4}{statistics.median(each):8.1f}    ({min(each):.1f} to {max(each):.1f})")


def measured(unrolls: int, repeats: int) -> list[float]:
    """Microseconds of processor time of an unroll, in each of `repeats` measurements after a first one."""
    clock = []
    for _ in range(repeats + 2):
        clock.append(time.thread_time())  # other processes do not count
        for _ in range(unrolls):
            one_unroll()
    return [(end - begin) / unrolls * 1e6 for begin, end in pairwise(clock[1:])]


def one_unroll() -> None:
    """What is asked of tracing for one unroll, in all services."""
    journey = tracing.begin("unroll", parameters_version=1)
    with tracing.span("play", parent=journey.traceparent):
        pass
    with journey:
        with tracing.span("code"):
            pass
        with tracing.span("count", kind="client", batches=ENVIRONMENTS):
            metadata = tracing.calling()
            with tracing.answering("Count", lambda: metadata), tracing.span("store", episodes=ENVIRONMENTS):
                pass
        with tracing.span("send", kind="producer", trajectories=ENVIRONMENTS):
            place = tracing.traceparent()
            for number in range(ENVIRONMENTS):
                with tracing.span("accept", parent=place, kind="consumer", number=number):
                    pass
    with tracing.span("train", parent=place, links=[], kind="consumer", trajectories=ENVIRONMENTS):
        pass


if __name__ == "__main__":
    main()
