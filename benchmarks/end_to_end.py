"""How fast leco trains as a whole, beside Sample Factory's APPO: `python benchmarks/end_to_end.py --help`.

Every contestant trains as its user would start it, one after the other, turn after turn. Counted are actions trained on, in the
time after a warm-up that begins with the first update. Sample Factory runs from an environment of its own,
.venv-sample-factory, which is set up the first time. It plays MiniGrid itself, with leco's policy network, unroll and batch; it
has no intrinsic reward, so the run to compare it with is no-int. leco runs as `leco train` does, with the compiled environments.
On KeyCorridorS4R3 nobody is rewarded in this time, and LECO leaves out the part of an update that is zero until then. On
KeyCorridorS3R1 random play is rewarded now and then, so that it does everything.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import os
import re
import shlex
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from hashcount import RESULTS, Report, measured, spread
from trainings import check, descendants, folder, install, running, stop, tail

from leco.report.metrics import read_metrics

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

TASK, REWARDED = "KeyCorridorS4R3", "KeyCorridorS3R1"
HERE = Path(__file__).parent
VENV = HERE.parent / ".venv-sample-factory"
PACKAGES = (  # the same torch and MiniGrid as leco's
    "sample-factory==2.1.1",
    f"torch=={metadata.version('torch').partition('+')[0]}",
    f"minigrid=={metadata.version('minigrid')}",
    "gymnasium==0.29.1",  # it wants one before 1.0,
    "numpy==1.26.4",  # and before 2.0
)
LECO = {
    "no-int": ("no-int", "paper"),
    "leco": ("leco", "paper"),
    "leco, laptop": ("leco", "laptop"),
}  # method and preset
THEIRS, FEWER = "Sample Factory", "Sample Factory, half as many environments"
CONTESTS = {TASK: (*LECO, THEIRS, FEWER), REWARDED: ("no-int", "leco, laptop", THEIRS)}
UNROLL, BATCH = 96, 16  # as sample_factory_minigrid.py has them
# Sample Factory's (workers, environments of each, splits). The first two run; --layouts measures all of them. Each measured once
# for 20 s on a quiet machine, in this order: 3,110, 2,655, 1,963, 971, 1,589, 2,350, 2,450 and 1,771 frames/s. Torch's threads
# are as Sample Factory sets them.
LAYOUTS = ((2, 32, 2), (2, 16, 2), (1, 32, 2), (2, 8, 2), (1, 16, 1), (1, 64, 2), (2, 16, 1), (4, 8, 2))
WARM_UP = 10.0  # seconds after the first update
RECORD_EVERY = 5  # updates, so that a line of metrics.csv is never far from the end of the warm-up
PATIENCE = 180.0  # seconds until the next update, the first one included
SAMPLE_SECONDS, SETTLED_MINUTES = 10.0, 2.0
SERVICES = ("hashcount", "learner", "actor")
MEANS = ("waiting_share", "updating_share", "policy_lag")


@dataclass(frozen=True)
class Run:
    """What was seen of one run: frames/s, MB resident of each service, and means over the measured time of leco's metrics.csv."""

    rate: float
    memory: dict[str, float]
    means: dict[str, float]


def main() -> None:
    """Runs everything, prints the tables, and keeps them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="how often each contestant runs (default: 3)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="measured of each run, after a warm-up (default: 60)"
    )
    parser.add_argument(
        "--soak",
        type=float,
        default=10.0,
        metavar="MINUTES",
        help="of the run whose memory is watched; 0 for none (default: 10)",
    )
    parser.add_argument(
        "--layouts",
        action="store_true",
        help="only measure Sample Factory's layouts of workers, each once, and print them",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the tables (default: benchmarks/results)")
    arguments = parser.parse_args()
    if arguments.turns < 1 or arguments.seconds <= 0:
        parser.error("--turns and --seconds must be more than 0")
    if arguments.soak != 0 and arguments.soak < SETTLED_MINUTES + 1:
        parser.error(
            f"--soak looks at what comes after minute {SETTLED_MINUTES:g}: at least {SETTLED_MINUTES + 1:g}, or 0"
        )
    signal.signal(signal.SIGTERM, stop)
    install(VENV, PACKAGES)
    report = Report()
    report.say(heading())
    if arguments.layouts:
        layouts(report, arguments.seconds)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"end_to_end_{os.cpu_count()}cpu_{dt.datetime.now(dt.UTC):%Y-%m-%d}.md"
    compare(report, arguments.turns, arguments.seconds)
    path.write_text(report.text)
    if arguments.soak:
        soak(report, arguments.soak)
        path.write_text(report.text)
    print(f"kept in {path}")


def heading() -> str:
    """Where and with what it was measured."""
    command = shlex.join(["python", "benchmarks/end_to_end.py", *sys.argv[1:]])
    return (
        f"# Training as a whole\n\n{measured(command)}, "
        f"PyTorch {metadata.version('torch')}; {', '.join(PACKAGES)}. "
        f"Load average of the minute before: {os.getloadavg()[0]:.1f}."
    )


def compare(report: Report, turns: int, seconds: float) -> None:
    """Every contestant in turn."""
    found: dict[tuple[str, str], list[Run]] = {(task, name): [] for task, names in CONTESTS.items() for name in names}
    for turn in range(turns):
        for (task, name), runs in found.items():
            layout = LAYOUTS[name == FEWER]
            run = leco_run(task, name, seconds) if name in LECO else sample_factory_run(task, layout, seconds)
            runs.append(run)
            print(f"turn {turn + 1}, {task}, {name}: {run.rate:,.0f} frames/s", flush=True)
    print()
    (workers, environments, splits), (_, fewer, _) = LAYOUTS[:2]
    report.say(
        f"Actions trained on, {seconds:g} s of each run after a warm-up, {turns} turns: median (least to most). Ratios: of each "
        f"turn. All: unrolls of {UNROLL}, batches of {BATCH}, the same policy network. leco: one actor with 16 environments. "
        f"Sample Factory: {workers} workers with {environments} (half as many: {fewer}) environments each in {splits} splits, "
        "MiniGrid itself, no intrinsic reward. "
        f"On {TASK} nobody is rewarded in this time and LECO leaves out its outer loss, which is then zero; on {REWARDED} it "
        "does not."
    )
    for task, names in CONTESTS.items():
        report.say(f"## Frames per second on {task}")
        rivals = [name for name in names if name not in LECO]
        rows: list[tuple[str, ...]] = []
        for name in names:
            rates = [run.rate for run in found[task, name]]
            others = [[run.rate for run in found[task, rival]] for rival in rivals]
            ratios = [[ours / theirs for ours, theirs in zip(rates, each, strict=True)] for each in others]
            rows.append((name, spread(rates, ",.0f"), *(spread(each, ".2f") for each in ratios)))
        report.table(("contestant", "frames/s", *(f"times {rival}" for rival in rivals)), rows)
    report.say(
        f"## leco's services on {TASK}\n\nResident memory at the end of the run, in MB (shared libraries count in each service); "
        "how the learner's time is shared, and how many versions old the policy of a trajectory is, over the measured time."
    )
    rows = []
    for name in LECO:
        held = [[run.memory.get(each) for run in found[TASK, name]] for each in SERVICES]
        spent = [[run.means[each] for run in found[TASK, name]] for each in MEANS]
        rows.append((name, *(cell(each, ",.0f") for each in held), *(spread(each, ".2f") for each in spent)))
    report.table(("method", *SERVICES, *MEANS), rows)


def layouts(report: Report, seconds: float) -> None:
    """Sample Factory with each layout, once."""
    report.say(f"## Sample Factory's layouts on {TASK}\n\nEach measured once, for {seconds:g} s after a warm-up.")
    rows = [(*layout, f"{sample_factory_run(TASK, layout, seconds).rate:,.0f}") for layout in LAYOUTS]
    report.table(("workers", "environments of each", "splits", "frames/s"), rows)


def soak(report: Report, minutes: float) -> None:
    """The memory of leco's services over a longer run."""
    samples: list[tuple[float, dict[str, float]]] = []  # (minutes since the warm-up, MB of each service)
    seen: set[int] = set()
    with folder() as run, running(leco_command(TASK, "leco", "paper", run), run / "log") as process:
        wait(process, run, 0)
        begin = time.monotonic()
        while not samples or samples[-1][0] < minutes:
            time.sleep(min(SAMPLE_SECONDS, max(begin + 60 * minutes - time.monotonic(), 0)))
            check(process, run)
            seen.update(services(process).values())
            samples.append(((time.monotonic() - begin) / 60, memory(process)))
        frames = int(read_metrics(run / "metrics.csv")[-1]["frames"])
    report.say(
        f"## Memory over {minutes:g} minutes\n\n`leco train`, method leco, {frames:,} frames. Resident, in MB, every "
        f"{SAMPLE_SECONDS:g} s; the slope is of least squares from minute {SETTLED_MINUTES:g} on. Services that ended and "
        f"were started again: {len(seen) - len(SERVICES)}."
    )
    rows = []
    for name in SERVICES:
        settled = [(minute, held[name]) for minute, held in samples if minute >= SETTLED_MINUTES and name in held]
        times, values = zip(*settled, strict=True)
        slope = statistics.linear_regression(times, values).slope
        rows.append((name, *(f"{value:,.1f}" for value in (values[0], values[-1], max(values))), f"{slope:+.2f}"))
    report.table(("service", f"at minute {SETTLED_MINUTES:g}", "at the end", "most", "MB a minute"), rows)


def leco_run(task: str, name: str, seconds: float) -> Run:
    """One run of `leco train`."""
    with folder() as run, running(leco_command(task, *LECO[name], run), run / "log") as process:
        rows = wait(process, run, seconds)
        held = memory(process)
    return Run(rate(rows), held, means(rows))


def leco_command(task: str, method: str, preset: str, run: Path) -> list[str]:
    """`leco train` without an end."""
    command = [sys.executable, "-P", "-m", "leco", "train", "--task", task, "--method", method, "--frames", "1e9"]
    command += ["--preset", preset, "--run-dir", str(run)]
    settings = (f"learner.log_every={RECORD_EVERY}", f"actors.unroll_length={UNROLL}", f"learner.batch_size={BATCH}")
    return [*command, *(f"--set={each}" for each in settings)]


def sample_factory_run(task: str, layout: tuple[int, int, int], seconds: float) -> Run:
    """One run of Sample Factory."""
    workers, environments, splits = layout
    with folder() as run:
        command = [str(VENV / "bin/python"), "-W", "ignore", str(HERE / "sample_factory_minigrid.py")]
        command += [str(run / "metrics.csv"), f"--env=MiniGrid-{task}-v0", f"--train_dir={run}", "--experiment=run"]
        command += [
            f"--num_workers={workers}",
            f"--num_envs_per_worker={environments}",
            f"--worker_num_splits={splits}",
        ]
        with running(command, run / "log") as process:
            return Run(rate(wait(process, run, seconds)), {}, {})


def wait(process: subprocess.Popen[bytes], run: Path, seconds: float) -> list[dict[str, str]]:
    """Waits until the warm-up and then so many seconds are over. Returns the lines from the end of the warm-up on."""
    last, seen = time.monotonic(), 0
    while True:
        time.sleep(0.2)
        check(process, run)
        path = run / "metrics.csv"
        rows = [row for row in read_metrics(path) if int(row["frames"])] if path.exists() else []
        if len(rows) > seen:
            last, seen = time.monotonic(), len(rows)
        warm = [row for row in rows if float(row["seconds"]) >= float(rows[0]["seconds"]) + WARM_UP]
        if warm and float(warm[-1]["seconds"]) >= float(warm[0]["seconds"]) + seconds:
            return warm
        if time.monotonic() - last > PATIENCE:
            sys.exit(f"no update for {PATIENCE:g} s; its last words:\n{tail(run)}")


def rate(rows: list[dict[str, str]]) -> float:
    """Frames per second from the first line to the last."""
    frames, seconds = (float(rows[-1][name]) - float(rows[0][name]) for name in ("frames", "seconds"))
    return frames / seconds


def means(rows: list[dict[str, str]]) -> dict[str, float]:
    """Of the columns MEANS, each line weighted by the time since the one before it."""
    times = [float(row["seconds"]) for row in rows]
    weights = [after - before for before, after in itertools.pairwise(times)]
    return {name: statistics.fmean([float(row[name]) for row in rows[1:]], weights) for name in MEANS}


def memory(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """MB resident of each service that `leco train` runs."""
    found: dict[str, float] = {}
    for name, pid in services(process).items():
        with contextlib.suppress(OSError):  # it may end meanwhile
            if resident := re.search(r"VmRSS:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
                found[name] = int(resident[1]) * 1024 / 1e6
    return found


def services(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """The id of each service that `leco train` runs."""
    found: dict[str, int] = {}
    for pid in descendants(process.pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            found |= {name: pid for name in SERVICES if name in words}
    return found


def cell(values: Sequence[float | None], form: str) -> str:
    """Median and range, as a cell of a table; a dash for what is not there."""
    known = [value for value in values if value is not None]
    return spread(known, form) if known else "-"


if __name__ == "__main__":
    main()
