"""Methods, tasks, settings and seeds side by side: `leco sweep`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from leco.checkpoint.folder_lock import take
from leco.cli.environment_flags import add_environment
from leco.cli.sweep.folder import Asked, check_folder
from leco.cli.sweep.jobs import Job, Sweep, present_commit
from leco.cli.sweep.plan import plan
from leco.cli.sweep.results import draw_task, gather, grouped, write_csv, write_markdown
from leco.cli.sweep.view import View, overall, sentence
from leco.cli.train_flags import UNTIL_HELP, add_device, read_rate
from leco.config.experiment import ConfigError
from leco.config.presets import PRESETS
from leco.words import counted
from services.flags import Parser, existing_file, number, whole_number
from services.learner.device import find_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leco.cli.sweep.plan import Run

DESCRIPTION = """\
Trains every combination of tasks, methods and seeds as `leco train` does, plays fresh episodes with each as `leco eval` does,
and compares them: results.csv (a line a run), results.md (means over seeds), and for each task a picture of its curves.

Ctrl-C saves and stops. The same command goes on, and leaves out what is done; with more seeds, methods, tasks or frames it
adds to what is there."""
EXAMPLES = """\
examples:
  leco sweep --tasks KeyCorridorS3R3 --methods leco,no-int --seeds 1-3 --frames 3e6
  leco sweep --tasks MultiRoom-N2-S4 --seeds 1,2 --grid training.lambda=0,0.25,0.5 --out runs/lambda

the folder (--out) then has
  results.csv results.md TASK.png  what was found; also while it runs
  TASK-METHOD[-KEY=VALUE]-SEED/    a run each, for `leco eval`; logs/train.log and logs/eval.log tell what happened
  sweep.toml                       what was asked for

exit code: 0 if all is done, 1 if a run failed, 2 for a mistake in the flags, 130 after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a sweep until done or Ctrl-C."""
    typed = list(sys.argv[2:] if arguments is None else arguments)
    parser = Parser(
        "leco sweep",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _flags(parser)
    given = parser.parse_args(typed)
    if given.threads is None:
        given.threads = max((os.cpu_count() or 2) // given.parallel - 1, 1)
    with contextlib.ExitStack() as stack:
        try:
            runs = plan(given)
            given.device = find_device(given.device)
            given.out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_alone(given.out))
            check_folder(runs, given.out)
            asked = Asked(given.out, shlex.join(["leco", "sweep", *typed]), runs)
        except (ConfigError, OSError) as error:
            parser.refuse(error)
        code = sweep(runs, asked, given, sys.stdout)
    sys.exit(code)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", metavar="A,B", help="what to solve; `leco tasks` lists the names")
    add_environment(parser)
    parser.add_argument("--methods", metavar="A,B", help="how; `leco methods` lists the names (default: leco)")
    parser.add_argument("--seeds", default="1", metavar="1,2,5-7", help="of networks, actions and levels (default: 1)")
    parser.add_argument("--frames", type=number, help="actions to train each run on, for example 1e6 (default: 5e6)")
    parser.add_argument("--until", type=read_rate, metavar="RATE", help=UNTIL_HELP)
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        help="where settings begin, as for `leco train` (default: laptop, or what --config says)",
    )
    parser.add_argument("--config", type=existing_file, metavar="FILE", help="an experiment as TOML; flags win over it")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other key, the same in every run; repeatable",
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=V,V",
        help="a key with several values, each combined with all else, for example training.lambda=0,0.25,0.5; repeatable",
    )
    parser.add_argument(
        "--episodes",
        type=whole_number(1),
        default=100,
        metavar="N",
        help="fresh episodes for each evaluation (default: 100)",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/sweep"), metavar="DIR", help="default: runs/sweep")
    parser.add_argument("--parallel", type=whole_number(1), default=1, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument(
        "--actors", type=whole_number(1), default=1, metavar="N", help="actor processes of each run (default: 1)"
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1),
        metavar="N",
        help="processor threads of an update (default: a run's share of the processors, but one)",
    )
    add_device(parser)
    parser.add_argument("--plain", action="store_true", help="lines instead of a table that is redrawn")


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Two sweeps in one folder would train the same runs; the system takes the lock away when this process ends."""
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        take(folder, f"another `leco sweep` works in {out}; wait for it, or choose another folder with --out")
        yield
    finally:
        os.close(folder)


def sweep(runs: Sequence[Run], asked: Asked, given: argparse.Namespace, out: TextIO) -> int:
    """Trains and evaluates what is not done yet, and writes down what was found.

    Returns:
        The exit code: 0 if all is done, 130 after Ctrl-C, 1 if a run failed.
    """
    folder: Path = given.out
    commit = present_commit()
    jobs = [Job(run, folder / run.name) for run in runs]

    def changed(job: Job) -> None:
        if job.state == "running":
            asked.note_commit(job.run.name, commit)
        view.changed(job)
        if job.state in ("done", "failed"):
            write_results(folder, asked, jobs, tasks=[job.run.experiment.task])

    view = View(jobs, given.parallel, out, plain=given.plain)
    work = Sweep(
        jobs,
        episodes=given.episodes,
        parallel=given.parallel,
        actors=given.actors,
        threads=given.threads,
        device=given.device,
        on_change=changed,
        on_look=view.show,
    )

    def stop(_number: int, _frame: object) -> None:
        work.stopping = True

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        asked.write()
        out.write(f"{overall(jobs, given.parallel)}: {folder}\n")
        try:
            work.work()
            if work.active:
                view.say("stopping: what is being trained is saved")
        finally:
            work.stop()
        view.show(last=True)
        write_results(folder, asked, jobs)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return _conclude(work, folder, out, already_told=given.plain or not out.isatty())


def write_results(folder: Path, asked: Asked, jobs: Sequence[Job], tasks: Sequence[str] | None = None) -> None:
    """Writes the tables, and draws the pictures of some tasks or of all."""
    rows = gather(folder, asked.runs.values(), {job.run.name: job.state for job in jobs})
    groups = grouped(rows)
    write_csv(folder / "results.csv", rows)
    write_markdown(folder / "results.md", groups)
    for task in dict.fromkeys(group.task for group in groups) if tasks is None else tasks:
        draw_task(folder, task, groups)


def _conclude(work: Sweep, folder: Path, out: TextIO, *, already_told: bool) -> int:
    failed = [job for job in work.jobs if job.state == "failed"]
    if not already_told:
        out.writelines(f"{sentence(job)}\n" for job in failed)
    out.write(f"results: {folder / 'results.md'}, {folder / 'results.csv'}\n")
    if any(job.state == "waiting" for job in work.jobs):
        out.write("stopped: what was trained is saved, the same command goes on from here\n")
        return 130
    if failed:
        out.write(f"{len(failed)} of {counted(len(work.jobs), 'run')} failed; the same command tries again\n")
    return 1 if failed else 0


if __name__ == "__main__":
    main()
