"""What a sweep found: results.csv, a line a run; results.md, a line for what is compared; and a picture of each task."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from leco.checkpoint.atomic_file import atomic_write
from leco.checkpoint.trained import frames_of_update, trained_updates
from leco.cli.sweep.folder import evaluation, is_trained
from leco.config.experiment import ConfigError
from leco.config.toml import parse
from leco.report.metrics import median_reached, read_table, when_reached

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from leco.config.experiment import Experiment

BEFORE = ("run", "task", "method")  # the varied settings
EVALUATED = ("success", "success_low", "success_high", "return", "return_low", "return_high", "episodes")
REACHED = ("frames_to_90", "seconds_to_90")  # 90 % of the last 100 episodes of training
AFTER = ("seed", "frames", "updates", "wall_seconds", *REACHED, *EVALUATED, "version", "commit", "status")
Row = dict[str, Any]  # by column; None is not known


def gather(out: Path, asked: Iterable[Mapping[str, Any]], states: Mapping[str, str]) -> list[Row]:
    """A row for each run of the folder.

    Args:
        out: The sweep's folder.
        asked: The runs, as sweep.toml has them.
        states: Of those that the present command is about, by name.
    """
    rows = []
    for run in asked:
        folder = out / run["name"]
        experiment, updates = _experiment(folder, run), trained_updates(folder)
        frames = updates * frames_of_update(experiment) if experiment is not None else 0
        found, table = evaluation(folder), read_table(folder / "metrics.csv")
        ended = found is not None and experiment is not None and is_trained(folder, experiment)
        status = states.get(run["name"], "done" if ended else "waiting")
        row: Row = {"run": run["name"], "task": run["task"], "method": run["method"], **run["varied"]}
        row |= {"seed": run["seed"], "frames": frames, "updates": updates, "status": status}
        row |= {"wall_seconds": float(table["seconds"][-1]) if len(table.get("seconds", ())) else None}
        reached = when_reached(table)
        row |= dict(zip(REACHED, (None, None) if reached is None else (reached.frames, reached.seconds), strict=True))
        row |= {"version": " ".join(_versions(folder)), "commit": " ".join(run["commits"])}
        if found is not None and status == "done":
            row |= {name: found[name] for name in EVALUATED} | {"wall_seconds": found["seconds"]}
        rows.append(row)
    return rows


def _experiment(folder: Path, asked: Mapping[str, Any]) -> Experiment | None:
    """What a run was trained with, to end as was last asked for."""
    try:
        before = parse((folder / "config.toml").read_text())
    except (OSError, ConfigError):
        return None
    return dataclasses.replace(before, frames=asked["frames"], until=asked.get("until"))


def _versions(folder: Path) -> list[str]:
    """Of leco, at the starts of a run."""
    try:
        starts = json.loads((folder / "versions.json").read_text())
    except (OSError, ValueError):
        return []
    return list(dict.fromkeys(str(each["leco"]) for each in starts))


def varied_keys(rows: Sequence[Row]) -> list[str]:
    """The settings that were varied, in the order in which they came."""
    return [key for key in dict.fromkeys(key for row in rows for key in row) if key not in (*BEFORE, *AFTER)]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """One line a run."""
    text = io.StringIO()
    writer = csv.DictWriter(text, (*BEFORE, *varied_keys(rows), *AFTER), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    atomic_write(path, text.getvalue().encode())


class Group(NamedTuple):
    """Runs that differ only by their seed. Numbers are of those that are done, in the order of their seeds."""

    task: str
    method: str
    varied: tuple[tuple[str, str], ...]
    runs: list[str]
    seeds: list[int]
    frames: list[int]
    successes: list[float | None]
    returns: list[float]
    frames_to_90: list[int | None]
    seconds_to_90: list[float | None]


def grouped(rows: Sequence[Row]) -> list[Group]:
    """What is compared."""
    keys = varied_keys(rows)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        varied = tuple((key, row[key]) for key in keys if row.get(key) is not None)
        groups.setdefault((row["task"], row["method"], varied), []).append(row)
    made = []
    for (task, method, varied), members in groups.items():
        members.sort(key=lambda row: int(row["seed"]))
        done = [row for row in members if row["status"] == "done"]
        columns = [[row[name] for row in done] for name in ("seed", "frames", "success", "return", *REACHED)]
        made.append(Group(task, method, varied, [row["run"] for row in members], *columns))
    return made


def write_markdown(path: Path, groups: Sequence[Group]) -> None:
    """One line for what is compared: the mean or the median over seeds, and each seed's number."""
    keys = list(dict.fromkeys(key for group in groups for key, _ in group.varied))
    head = ["method", *keys, "seeds", "frames", "success, mean", "of each seed", "return, mean", "of each seed"]
    head += ["frames to 90 %, median", "of each seed", "seconds to 90 %, median", "of each seed"]
    lines = ["# Results", "", "Fresh episodes, played after training; results.csv has intervals and the rest."]
    lines += ["To 90 %: until 90 of the last 100 episodes of training were solved; `-` is never."]
    for task in dict.fromkeys(group.task for group in groups):
        lines += ["", f"## {task}", "", _line(head), _line(["---"] * len(head))]
        for group in (each for each in groups if each.task == task):
            varied = dict(group.varied)
            missing = len(group.runs) - len(group.seeds)
            seeds = ", ".join(map(str, group.seeds)) + (f" ({missing} not done)" if missing else "")
            frames = (
                " to ".join(f"{n:,}" for n in sorted({min(group.frames), max(group.frames)})) if group.frames else "-"
            )
            lines.append(
                _line(
                    [
                        group.method,
                        *(varied.get(key, "") for key in keys),
                        seeds.strip(),
                        frames,
                        *_means(group),
                        *_medians(group),
                    ]
                )
            )
        lines += ["", f"![success and return over frames]({task}.png)"]
    atomic_write(path, ("\n".join(lines) + "\n").encode())


def _means(group: Group) -> list[str]:
    if not group.seeds:
        return ["-"] * 4
    solved = [each for each in group.successes if each is not None]  # none of a task that calls no episode solved
    return [
        f"{100 * statistics.fmean(solved):.1f} %" if solved else "-",
        ", ".join(f"{100 * each:.1f}" for each in solved) or "-",
        f"{statistics.fmean(group.returns):.3f}",
        ", ".join(f"{each:.3f}" for each in group.returns),
    ]


def _medians(group: Group) -> list[str]:
    def told(values: Sequence[float | None]) -> list[str]:
        cells = ["-" if each is None else f"{each:,.0f}" for each in (median_reached(values), *values)]
        return [cells[0], "; ".join(cells[1:]) or "-"]  # there are commas in the numbers

    return [*told(group.frames_to_90), *told(group.seconds_to_90)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw_task(out: Path, task: str, groups: Sequence[Group]) -> None:
    """The picture of a task: a line for what is compared. Of a single method only what is varied is named."""
    from leco.report.curves import comparison  # noqa: PLC0415  # slow to import, and needed late
    from leco.report.runs import read_curves  # noqa: PLC0415  # see above
    from leco.report.style import save_png, styled  # noqa: PLC0415  # see above

    ours = [group for group in groups if group.task == task]
    one = ours[0].method if len({group.method for group in ours}) == 1 else None
    runs = []
    for group in ours:
        settings = [f"{key.rpartition('.')[2]} {value}" for key, value in group.varied]
        label = ", ".join(settings if one and settings else [group.method, *settings])
        runs += [read_curves(out / run, task=task, label=label) for run in group.runs]
    title = f"{one} on {task}" if one and len(ours) > 1 else task
    with styled():
        save_png(comparison(runs, title), out / f"{task}.png")
