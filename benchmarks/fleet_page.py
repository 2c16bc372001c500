"""What fleet.py found: its tables, the arithmetic on to larger fleets, a figure, and docs/scale.md, which has all three."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from leco.checkpoint.atomic_file import atomic_write
from leco.report.style import COLOURS, save_png, styled
from leco.rpc.server import MAX_CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hashcount import Report
    from matplotlib.axes import Axes

ACTORS, UNROLL, BATCH = 240, 96, 48
TOGETHER = 16  # environments of one actor, where it has more than one
FRAMES = 5000  # a second, of all actors: the most that the paper's runs made
SERVICES = ("learner", "hashcount", "Redis")
FLEETS = (240, 1000, 10_000)
NETWORK = 1250  # MB/s: 10 Gbit/s
MEMORY = 16  # GB
MB = 1e6
ENOUGH = 5  # unrolls of an actor, to speak of fairness
BLOCK = re.compile(r"(?<=<!-- measured -->\n).*(?=<!-- end -->)", re.DOTALL)


class Load(NamedTuple):
    """One measurement. Rates and processors (1 is a whole one) are a second's; latencies are milliseconds.

    streams, active        open ones, and those of them that play
    acknowledged, counted  median and 99th percentile
    jain, least            of unrolls of the active actors: Jain's index, 1 if all have as many; the fewest over the most
    """

    streams: int
    active: int
    seconds: float
    unrolls: float
    frames: float
    processors: dict[str, float]
    bytes: dict[str, int]
    acknowledged: tuple[float, float]
    counted: tuple[float, float]
    jain: float
    least: float
    failures: dict[str, int]


class Return(NamedTuple):
    """How actors came back, each in seconds from the loss, or from when the learner served again.

    away          seconds without a learner
    credited, served   until an actor had a credit, and an acknowledgement
    acknowledged, repeated, too_old   trajectories that the learner acknowledged; that came twice; that a learner before this had
    lost          calls that failed, by what they were and their status
    """

    what: str
    away: float
    credited: list[float]
    served: list[float]
    acknowledged: int
    repeated: int
    too_old: int
    lost: dict[str, int]


class Measured(NamedTuple):
    """All there is.

    steady      by streams, all of which play, at FRAMES
    idle        the same frames from the first few of more streams
    rates       by frames a second, with all actors
    nobody      no stream, and all, of which none plays
    flat_out    as fast as they can
    together    FRAMES by fewer actors, of TOGETHER environments each
    parameters  MB of them; MB/s that went out; processor seconds of the learner for one MB
    learner_bytes, stream_bytes   the most that it took; what a stream that sends hardly anything takes of it
    trained, small_bytes   as fast as they can into a learner that trains, and the bytes of an unroll there
    """

    redis: str
    unroll_bytes: int
    steady: list[Load]
    idle: list[Load]
    rates: list[Load]
    nobody: list[Load]
    flat_out: Load
    together: Load
    parameters: tuple[float, float, float]
    learner_bytes: int
    stream_bytes: float
    returns: list[Return]
    trained: Load
    small_bytes: int


class Cost(NamedTuple):
    """A straight line through `rates`: processor seconds of an unroll, and processors without any; the worst departure."""

    unroll: float
    still: float
    departure: float


def cost(found: Measured, service: str) -> Cost:
    """Of a service."""
    loads = [found.nobody[-1], *found.rates]
    x, y = (np.array(each) for each in zip(*((one.unrolls, one.processors[service]) for one in loads), strict=True))
    slope, still = np.polyfit(x, y, 1)
    return Cost(float(slope), float(still), float(np.abs(y - slope * x - still).max() / y.max()))


def tables(report: Report, found: Measured) -> None:
    """Everything that was measured, and what follows from it."""
    _loads(report, found)
    _costs(report, found)
    _returns(report, found)
    _trained(report, found)
    _arithmetic(report, found)


def say(report: Report, heading: str, *sentences: str) -> None:
    """A section, or a paragraph, wrapped."""
    text = textwrap.fill(" ".join(sentences), 100, break_long_words=False, break_on_hyphens=False)
    report.say(f"{heading}\n\n{text}" if heading else text)


def _loads(report: Report, found: Measured) -> None:
    say(
        report,
        "## By streams and by frames",
        f"Pixels, taken in and not trained on: unrolls of {UNROLL} actions, observations of 72x96x3,",
        f"{found.unroll_bytes / MB:.2f} MB each, one environment for each actor. Latencies are median / 99th percentile in",
        "milliseconds, as the actors see them: an acknowledgement from the send on, a count for the whole call.",
        "Processors: 1.000 is a whole one. Memory: resident MB of the three at the end of a row, in which there is",
        "something of the rows before.",
        "Fairness: Jain's index (1: all the same), and the fewest unrolls of an actor over the most; where actors",
        f"had at least {ENOUGH} in the mean.",
    )
    words = (
        *((f"{one.streams} play", one) for one in found.steady),
        *((f"{one.active} play, {one.streams - one.active} idle", one) for one in found.idle),
        *((f"{one.streams} play, fewer frames", one) for one in found.rates[:-1]),
        *((f"{one.streams} idle", one) for one in found.nobody),
        (f"{found.flat_out.streams} as fast as they can", found.flat_out),
        (f"{found.together.streams} of {TOGETHER} environments", found.together),
    )
    header = ("streams", "frames/s", "MB/s", "acknowledged", "counted", *SERVICES, "memory", "fairness")
    report.table(header, [(name, *_row(one, found.unroll_bytes)) for name, one in words])
    failures = {name: n for _, one in words for name, n in one.failures.items()}
    say(report, "", f"Calls that failed meanwhile: {failures or 'none'}.")


def _row(one: Load, size: int) -> tuple[str, ...]:
    latencies = (f"{half:.1f} / {most:.1f}" if most else "-" for half, most in (one.acknowledged, one.counted))
    return (
        f"{one.frames:,.0f}",
        f"{one.unrolls * size / MB:,.0f}",
        *latencies,
        *(f"{one.processors[name]:.3f}" for name in SERVICES),
        " / ".join(f"{one.bytes[name] / MB:,.0f}" for name in SERVICES),
        f"{one.jain:.3f}, {one.least:.2f}" if one.unrolls * one.seconds >= ENOUGH * max(one.active, 1) else "-",
    )


def _costs(report: Report, found: Measured) -> None:
    size, rate, second = found.parameters
    most = found.steady[-1]
    say(
        report,
        "## What a frame costs",
        f"A straight line through the rows of {ACTORS} streams, from none that plays to {FRAMES:,} frames/s. Departure: the",
        "worst of a row from that line, as a share of the largest. Last column: a frame's cost with that many",
        "streams over that with one, which sends as many frames.",
    )
    rows = []
    for name in SERVICES:
        line = cost(found, name)
        many, one = (load.processors[name] / load.unrolls for load in (most, found.steady[0]))
        unroll, frame = f"{1000 * line.unroll:.2f}", f"{1e6 * line.unroll / UNROLL:.1f}"
        rows.append((name, unroll, frame, f"{line.still:.4f}", f"{line.departure:.0%}", f"{many / one:.2f}"))
    header = (
        "service",
        "ms an unroll",
        "us a frame",
        "processors for none",
        "departure",
        f"{most.streams} : 1 streams",
    )
    report.table(header, rows)
    say(
        report,
        "",
        f"Parameters of {size:.1f} MB to {ACTORS} actors at once: {rate:,.0f} MB/s, {1000 * second:.2f} ms of the learner's",
        f"processor for a MB. The most memory that the learner took in all this: {found.learner_bytes / MB:,.0f} MB. A stream",
        f"whose unrolls are small takes {found.stream_bytes / 1000:,.0f} kB.",
    )


def _returns(report: Report, found: Measured) -> None:
    say(
        report,
        f"## {ACTORS} come back at once",
        f"Connections cut: all, to both services, while pixels come at {FRAMES:,} frames/s. Learner killed: while it trains",
        "and actors send as fast as they can. Seconds from the cut, or from when the new learner serves, until half",
        "of the actors, and all, have a credit and an acknowledgement (which waits for the actor's pace, too). What",
        "was acknowledged was held against what was taken; the run would have failed otherwise. Too old: sent to",
        "the learner before this one, and perhaps trained on by it; versions leap at a start, so it is dropped.",
    )
    rows = []
    for each in found.returns:
        halves = [f"{np.median(seconds):.1f} / {max(seconds):.1f}" for seconds in (each.credited, each.served)]
        away = f"{each.away:.1f}" if each.away else "-"
        rows.append((each.what, away, *halves, f"{each.acknowledged:,}", each.repeated, each.too_old))
    header = ("what", "without a learner, s", "a credit: half / all", "acknowledged: half / all", "acknowledged")
    report.table((*header, "came twice, dropped", "too old, dropped"), rows)
    for each in found.returns:
        calls = ", ".join(f"{n:,} {name}" for name, n in sorted(each.lost.items()))
        say(report, "", f"Calls that failed, {each.what}: {calls or 'none'}.")


def _trained(report: Report, found: Measured) -> None:
    one, update = found.trained, found.trained.processors["update"]
    rest = one.processors["learner"] - update
    say(
        report,
        "## With training",
        f"MiniGrid, no-int, {found.small_bytes / 1000:.0f} kB an unroll, {one.streams} actors as fast as they can into a learner",
        f"that trains on everything: {one.frames:,.0f} frames/s, of {one.processors['learner']:.2f} processors {update:.2f} for",
        f"updates and {rest:.2f} for all else, {1000 * rest / one.unrolls:.2f} ms an unroll. Acknowledged in",
        f"{one.acknowledged[0]:.0f} / {one.acknowledged[1]:.0f} ms (median / 99th percentile). Actors compete for credits here:",
        f"Jain's index {one.jain:.3f}, the fewest over the most {one.least:.2f}.",
    )


def _arithmetic(report: Report, found: Measured) -> None:
    pace, (size, _, second) = FRAMES / ACTORS / UNROLL, found.parameters
    learner, hashcount, store = (cost(found, name).unroll for name in SERVICES)
    # What, how much of it an actor takes, and how much there is.
    parts = [
        ("learner: parameters out, MB/s", pace * size, NETWORK, ",.0f"),
        ("learner: open connections", 1.0, MAX_CONNECTIONS, ",.0f"),
        ("learner: trajectories in, MB/s", pace * found.unroll_bytes / MB, NETWORK, ",.0f"),
        ("learner: processors, to take in and to send parameters", pace * (learner + size * second), 1, ".2f"),
        ("learner: processors, to take in alone", pace * learner, 1, ".2f"),
        ("learner: trajectories that may wait, GB", found.unroll_bytes / 1e9, MEMORY, ".1f"),
        ("hashcount: processors", pace * hashcount, 1, ".2f"),
        ("Redis: processors", pace * store, 1, ".2f"),
    ]
    say(
        report,
        "## On to larger fleets",
        f"Arithmetic from the tables above, for actors of one environment and {FRAMES / ACTORS:.1f} frames/s each:",
        f"{ACTORS} of the paper's make {FRAMES:,}. Each fetches the parameters after every unroll, because there always",
        "are newer ones.",
        "*There is*: 10 Gbit/s each way; the connections that a learner takes unless it is told otherwise; the",
        "memory that deploy/k8s/dmlab asks for; and one processor, because a learner's event loop, a replica of",
        "hashcount and a Redis server have hardly more. What is full first is first.",
    )
    rows = [
        (what, *(format(each * n, form) for n in FLEETS), f"{there:,}", f"{there / each:,.0f}")
        for what, each, there, form in sorted(parts, key=lambda part: part[2] / part[1])
    ]
    report.table(("what", *(f"{n:,} actors" for n in FLEETS), "there is", "enough for so many actors"), rows)


def write_page(page: Path, text: str, found: Measured) -> None:
    """Replaces what the page says between its two marks, and the figure beside it."""
    before = page.read_text()
    if not BLOCK.search(before):
        raise ValueError(f"{page} has no lines <!-- measured --> and <!-- end -->")
    atomic_write(page, BLOCK.sub(lambda _: f"\n{text.strip()}\n\n", before).encode())
    draw(found, figure_of(page))


def figure_of(page: Path) -> Path:
    """The picture of a page."""
    return page.with_suffix(".png")


def draw(found: Measured, path: Path) -> None:
    """Processors by frames, processors by streams, and how actors come back."""
    with styled():
        figure = Figure(figsize=(12, 3.6))
        by_frames, by_streams, back = figure.subplots(1, 3)
        rates = sorted([found.nobody[-1], *found.rates], key=lambda one: one.frames)
        _lines(by_frames, [one.frames for one in rates], rates)
        by_frames.set(xlabel=f"frames/s, {ACTORS} streams", ylabel="processors", title="By frames", ylim=(0, None))
        _lines(by_streams, [one.streams for one in found.steady], found.steady)
        for name, colour in zip(SERVICES, COLOURS, strict=False):
            x, y = [one.streams for one in found.idle], [one.processors[name] for one in found.idle]
            by_streams.plot(
                x, y, "x", color=colour, label=f"{found.idle[0].active} play" if name == SERVICES[0] else None
            )
        by_streams.set(xscale="log", xlabel=f"streams, {FRAMES:,} frames/s in all", title="By streams", ylim=(0, None))
        for each, colour in zip(found.returns, COLOURS[3:], strict=False):
            seconds = sorted(each.served)
            back.step([0, *seconds], np.arange(len(seconds) + 1), where="post", color=colour, label=each.what)
        back.set(xlabel="seconds", ylabel="actors served again", title="All come back at once", ylim=(0, None))
        for axes in (by_frames, by_streams, back):
            axes.legend()
        save_png(figure, path)


def _lines(axes: Axes, x: Sequence[float], loads: Sequence[Load]) -> None:
    for name, colour in zip(SERVICES, COLOURS, strict=False):
        axes.plot(x, [one.processors[name] for one in loads], "o-", color=colour, label=name)
