"""How soon a task is solved, beside other people's PPO: `python benchmarks/time_to_solve.py --help`.

Each contestant trains as its user would start it, on MiniGrid's partial view alone, and all have a bonus that counts first visits
in an episode. Measured are the seconds of the whole command, its start included, and of processors, until 90 of the last 100
training episodes were solved. Who is not there by the end of the budget is ended. One run at a time, seed after seed, so that
what else the machine does falls on all. Each run is a line of the CSV at once, and is not run again: the same command goes on.

The rivals, their settings and what was tried: benchmarks/rivals/README.md. They run from environments of their own, .venv-rivals
and .venv-sample-factory, which are set up the first time.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import end_to_end
from hashcount import RESULTS, Report, measured
from time_to_solve_table import Run, read_runs, solve_table
from trainings import cpu_seconds, folder, install, running, stop, tail

from leco.report.metrics import best_success, read_table, when_reached
from leco.words import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

TASKS = ("DoorKey-8x8", "KeyCorridorS3R3", "MultiRoom-N6")
HERE = Path(__file__).resolve().parent
VENV = HERE.parent / ".venv-rivals"
PACKAGES = (
    *(
        "--editable",
        f"{HERE.parent}[actor,hashcount,learner]",
    ),  # for leco.rewards, leco.load, and its torch and MiniGrid
    "stable-baselines3==2.9.2",
    "sb3-contrib==2.9.2",
    "envpool==1.2.5",
)
LECO, EXACT = "leco", "leco, exact counts"
SB3, ENVPOOL, FACTORY = "SB3 recurrent PPO", "recurrent PPO on EnvPool", "Sample Factory APPO"
CONTESTANTS = (LECO, EXACT, ENVPOOL, SB3, FACTORY)
LEFT_OUT = {  # what `--check` found
    (
        ENVPOOL,
        "MultiRoom-N6",
    ): "EnvPool's levels are not MiniGrid's: a policy that solves 99 % of those solves 33 % of them"
}
GLANCE = 0.2  # seconds between two looks at a run's metrics


class Job(NamedTuple):
    """One run."""

    task: str
    contestant: str
    seed: int


def main() -> None:
    """Runs what has not been run, prints the tables, and keeps them."""
    given = arguments()
    signal.signal(signal.SIGTERM, stop)
    if given.check:
        install(VENV, PACKAGES)
        subprocess.run(rival("same_tasks", VENV, *TASKS), check=True)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / f"time_to_solve_{os.cpu_count()}cpu.csv"
    for job in jobs(given.tasks, given.contestants, given.seeds, read_runs(kept), given.budget):
        keep(kept, measure(job, given.budget))
    report = Report()
    runs = read_runs(kept)
    report.say(heading(runs))
    for task in dict.fromkeys(run.task for run in runs):
        report.say(f"## {task}")
        report.table(*solve_table([run for run in runs if run.task == task], LECO))
        for (contestant, of), reason in LEFT_OUT.items():
            if of == task:
                report.say(f"Without {contestant}. {reason}.")
    path = kept.with_suffix(".md")
    path.write_text(report.text.rstrip() + "\n")
    print(f"kept in {path}")


def heading(runs: Sequence[Run]) -> str:
    """Where, when and what was measured."""
    dates, load = [run.date for run in runs], max((run.load for run in runs), default=0.0)
    return (
        f"# Seconds to 90 %\n\n{measured(shlex.join(['python', 'benchmarks/time_to_solve.py', *sys.argv[1:]]))}.\n"
        f"Runs from {min(dates, default='-')} to {max(dates, default='-')} UTC; load average before one: at most {load:.1f}.\n\n"
        "Until 90 of the last 100 training episodes were solved; the whole command, its start included. Median (each seed); "
        "ratios to leco: median (least to most) over seeds. `>`: not by the end of the budget.\n"
        "What the rivals are, and what was tried for them: [benchmarks/rivals](../rivals/README.md)."
    )


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="TASK", help=f"default: {', '.join(TASKS)}")
    parser.add_argument(
        "--contestants",
        nargs="+",
        default=list(CONTESTANTS),
        metavar="NAME",
        help=f"default: {'; '.join(CONTESTANTS)}. Flags of its own may follow a name: '{SB3} --epochs 2'",
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--budget", type=float, default=600.0, metavar="SECONDS", help="of each run (default: 600)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder for CSV and table (default: benchmarks/results)"
    )
    parser.add_argument("--check", action="store_true", help="only ask whether EnvPool's tasks are MiniGrid's")
    given = parser.parse_args(words)
    if given.seeds < 1 or given.budget <= 0:
        parser.error("--seeds and --budget must be more than 0")
    for name in given.contestants:
        if without_flags(name) not in CONTESTANTS:
            hint = did_you_mean(name, CONTESTANTS, f"there are: {'; '.join(CONTESTANTS)}")
            parser.error(f"there is no contestant {name!r}; {hint}")
    return given


def jobs(tasks: Sequence[str], contestants: Sequence[str], seeds: int, done: Sequence[Run], budget: float) -> list[Job]:
    """What is still to run: all that was neither solved nor given as much time. Seed after seed."""
    over = {Job(run.task, run.contestant, run.seed) for run in done if run.seconds is not None or run.budget >= budget}
    every = [Job(task, name, seed) for seed in range(1, seeds + 1) for task in tasks for name in contestants]
    return [job for job in every if job not in over and (without_flags(job.contestant), job.task) not in LEFT_OUT]


def without_flags(contestant: str) -> str:
    """The name of a contestant that may be followed by flags."""
    return contestant.partition(" --")[0]


def command(job: Job, run: Path) -> list[str]:
    """How its user would start it; it writes run/metrics.csv."""
    task, seed, name = job.task, str(job.seed), without_flags(job.contestant)
    flags = job.contestant.removeprefix(name).split()
    if name in (LECO, EXACT):
        words = [sys.executable, "-P", "-m", "leco", "train", "--task", task, "--until", "90%", "--frames", "1e9"]
        words += ["--seed", seed, "--run-dir", str(run)]
        same = ["--method", "exact", "--set", 'training.episodic_bonus="first-visit"']
        return words + same * (name == EXACT) + flags
    metrics = str(run / "metrics.csv")
    if name == FACTORY:
        install(end_to_end.VENV, end_to_end.PACKAGES)
        own = (f"--env=MiniGrid-{task}-v0", f"--seed={seed}", f"--train_dir={run}", "--experiment=run")
        return rival("sample_factory_counts", end_to_end.VENV, metrics, *own, *flags)
    install(VENV, PACKAGES)
    module = "sb3_recurrent" if name == SB3 else "envpool_ppo"
    return rival(module, VENV, metrics, "--task", task, "--seed", seed, *flags)


def rival(module: str, venv: Path, *words: str) -> list[str]:
    """A script of benchmarks/rivals in an environment of its own."""
    return [
        "env",
        f"PYTHONPATH={HERE}",
        str(venv / "bin/python"),
        "-P",
        "-W",
        "ignore",
        "-m",
        f"rivals.{module}",
        *words,
    ]


def measure(job: Job, budget: float) -> Run:
    """Runs until it is solved, or the budget is over."""
    load, date = os.getloadavg()[0], f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}"
    with folder() as run:
        words, begin = command(job, run), time.monotonic()
        with running(words, run / "log") as process:
            while True:
                time.sleep(GLANCE)
                ended, seconds = process.poll() is not None, time.monotonic() - begin
                table = read_table(run / "metrics.csv")
                found = when_reached(table)
                if found is not None or seconds > budget:
                    break
                if ended:
                    sys.exit(f"a training ended with code {process.returncode}; its last words:\n{tail(run)}")
            cpu = cpu_seconds(process)
    last = found or best_success(table)
    result = Run(
        *job,
        budget=budget,
        seconds=None if found is None else seconds,
        cpu_seconds=cpu,
        frames=int(table["frames"][-1]) if len(table.get("frames", ())) else 0,
        success=0.0 if last is None else last.success,
        load=load,
        date=date,
    )
    print(f"{date} {job.task}, seed {job.seed}, {job.contestant}: {result}", flush=True)
    return result


def keep(path: Path, run: Run) -> None:
    """One more line of the CSV."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(Run._fields)
        writer.writerow(["" if each is None else f"{each:.6g}" if isinstance(each, float) else each for each in run])


if __name__ == "__main__":
    main()
