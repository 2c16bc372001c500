"""Trained policies that come with leco: `leco zoo` lists them, `leco zoo add` makes one of a run."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leco.cli.sweep.folder import evaluation
from leco.cli.tables import print_table
from leco.config.experiment import ConfigError
from leco.evaluation.zoo import (
    CONFIG,
    EVALUATION,
    METRICS,
    POLICY,
    PROVENANCE,
    ZOO,
    ZooError,
    find_entries,
    is_entry,
    new_entry,
    read_entry,
    thinned,
    to_csv,
    to_json,
    zoo_folder,
)
from leco.report.metrics import GOAL, columns, read_metrics, when_reached
from leco.telemetry.timing import clock
from services.flags import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.evaluation.trained import Trained
    from leco.evaluation.zoo import Entry

USAGE = "leco zoo [-h] [--zoo FOLDER] [add RUN ...]"
DESCRIPTION = """\
Lists the trained policies in the folder zoo: how long each took to solve 90 % of 100 episodes, and how many of 100 fresh
episodes it solves. `leco eval zoo/NAME` plays one, `leco watch zoo/NAME` shows it in the browser, `leco zoo add RUN` makes one of
a run."""
ADD = """\
Makes an entry of a run's newest checkpoint: its policy and hash, its configuration, its curves thinned to 200 lines, an
evaluation over 100 fresh episodes (the run's own, if it has one of this checkpoint), and what trained it."""
EPISODES = 100
HEAD = ("entry", "task", "method", "seed", "frames to 90 %", "time", f"solved of {EPISODES}", "size")


def main(arguments: Sequence[str] | None = None) -> None:
    """Lists or adds."""
    parser = Parser("leco zoo", usage=USAGE, description=DESCRIPTION)
    where = "where the entries are (default: zoo here, or those that come with leco)"
    parser.add_argument("--zoo", type=Path, default=None, metavar="FOLDER", help=where)
    commands = parser.add_subparsers(dest="command", prog="leco zoo", metavar="add RUN")
    adding = commands.add_parser("add", help="make an entry of a run", description=ADD)
    adding.add_argument("run", type=Path, help="the run's folder")
    adding.add_argument("--name", help="of the entry (default: the task's)")
    adding.add_argument("--force", action="store_true", help="replace an entry of this name")
    adding.add_argument("--zoo", type=Path, default=argparse.SUPPRESS, metavar="FOLDER", help="default: zoo")
    given = parser.parse_args(arguments)
    try:
        if given.command == "add":
            add(given.run, given.zoo or ZOO, name=given.name, force=given.force)
        else:
            show(given.zoo or zoo_folder())
    except (ConfigError, ZooError, OSError, ValueError) as error:  # the last: a checkpoint, or no simulator
        parser.refuse(error)


def show(zoo: Path) -> None:
    """Prints the entries. Those that are damaged are named at the end, which is then an error.

    Raises:
        ZooError: there are none, or some are damaged.
    """
    entries, damaged = [], []
    for folder in find_entries(zoo):
        try:
            entries.append(read_entry(folder))
        except ZooError as error:
            damaged.append(str(error))
    if not entries and not damaged:
        raise ZooError(f"there are no entries in {zoo}: name a folder with --zoo. `leco zoo add RUN` makes an entry")
    print_table(HEAD, [_row(each) for each in entries])
    if damaged:
        raise ZooError("; ".join(damaged))


def _row(entry: Entry) -> tuple[str, ...]:
    learned = entry.learned
    solved = "-"
    if entry.success is not None and entry.low is not None and entry.high is not None:
        solved = f"{round(entry.success * entry.episodes)} ({100 * entry.low:.1f} to {100 * entry.high:.1f} %)"
    return (
        entry.name,
        entry.task,
        entry.method,
        str(entry.seed),
        "-" if learned is None else f"{learned.frames:,}",
        "-" if learned is None else clock(learned.seconds),
        solved,
        f"{entry.size / 1000:.0f} KB",
    )


def add(run: Path, zoo: Path, *, name: str | None, force: bool) -> Path:
    """Makes an entry of a run's newest checkpoint.

    Raises:
        ConfigError: it is no run, or has no checkpoint.
        SavedStateError: the checkpoint cannot be used.
        ZooError: the name is taken, or is none.
    """
    import torch  # noqa: PLC0415  # slow to import, and a list needs none of these

    from leco.checkpoint.snapshot import acting_params  # noqa: PLC0415
    from leco.checkpoint.state_file import save  # noqa: PLC0415
    from leco.evaluation.trained import trained_state  # noqa: PLC0415

    if is_entry(run):
        raise ZooError(f"{run} is an entry of the zoo already: name a run")
    torch.set_num_threads(1)
    trained = trained_state(run, "newest")
    name = trained.experiment.task if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ZooError(f"{name!r} is no name for an entry: use letters, digits, dots, dashes and underscores")
    with new_entry(zoo / name, replace=force) as place:
        found = _evaluation(run, trained)
        rows = read_metrics(run / METRICS)
        save(place / POLICY, acting_params(trained.state), trained.metadata)
        (place / CONFIG).write_bytes((run / CONFIG).read_bytes())
        (place / METRICS).write_text(to_csv(thinned(rows)), newline="")
        (place / EVALUATION).write_text(to_json(found))
        (place / PROVENANCE).write_text(to_json(_provenance(run, trained, rows)))
    entry = read_entry(zoo / name)
    print_table(HEAD, [_row(entry)])
    if entry.success is not None and entry.success < GOAL:
        sys.stdout.write(f"it solves less than {100 * GOAL:g} % of fresh episodes: train it longer, or leave it out\n")
    return zoo / name


def _evaluation(run: Path, trained: Trained) -> dict[str, Any]:
    """The run's own, if it is one of its newest checkpoint with drawn actions; otherwise fresh episodes are played."""
    from leco.cli.evaluate import evaluation_json  # noqa: PLC0415
    from leco.config.experiment import task_of  # noqa: PLC0415  # see above
    from leco.evaluation.rollout import evaluate  # noqa: PLC0415

    kept = evaluation(run, EPISODES)
    if kept is not None and not kept.get("greedy"):
        return kept
    sys.stdout.write(f"playing {EPISODES} fresh episodes of {trained.experiment.task}\n")
    sys.stdout.flush()
    task = task_of(trained.experiment)
    result = evaluate(trained.policy, task, episodes=EPISODES, seed=0, greedy=False)
    return evaluation_json(trained, result, {"seed": 0, "greedy": False})


def _provenance(run: Path, trained: Trained, rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """What trained a run, and for how long."""
    starts = _starts(run)
    learned = when_reached(columns(rows))
    return {
        "run": run.resolve().name,
        "command": starts[0].get("command") if starts else None,
        "commit": _commit(run, starts),
        "seed": trained.experiment.seed,
        "updates": trained.updates,
        "frames": trained.metadata.get("frames", 0),
        "seconds": trained.metadata.get("seconds", 0.0),
        "learned": None if learned is None else learned._asdict(),
        "starts": starts,
    }


def _starts(run: Path) -> list[dict[str, Any]]:
    """What versions.json says of each start: command, versions, hardware. Folders of the machine are left out of commands."""
    path = run / "versions.json"
    starts = [each for each in json.loads(path.read_text()) if isinstance(each, dict)] if path.exists() else []
    return [each | {"command": re.sub(r"(?<=[=\s])/\S*/", "", str(each.get("command", "")))} for each in starts]


def _commit(run: Path, starts: Sequence[dict[str, Any]]) -> str | None:
    """The code that trained a run, as far as it was noted: by its own starts, or by the sweep that it is part of."""
    noted = [each["commit"] for each in starts if each.get("commit")]
    sweep = run.resolve().parent / "sweep.toml"
    if not noted and sweep.exists():
        runs = tomllib.loads(sweep.read_text()).get("runs", [])
        noted = [commit for each in runs if each["name"] == run.resolve().name for commit in each["commits"]]
    return " ".join(dict.fromkeys(noted)) or None


if __name__ == "__main__":
    main()
