"""How fast leco learns the paper's MiniGrid tasks with its default preset, over seeds: the table and the figure of docs/results.

    python benchmarks/learning.py                     all tasks, about 40 minutes on two quiet cores; resumable
    python benchmarks/learning.py --tasks MultiRoom-N6,DoorKey-8x8

For each task it runs `leco sweep --tasks TASK --seeds 1-N --frames F`, one run at a time, each followed by 100 fresh levels. Then

    OUT/TASK/...               the sweep's folder: runs, results.md
    docs/results/learning.md   frames and seconds until 90 of the last 100 training episodes were solved, the lowest success rate
                               after 95 % was first reached, fresh levels solved; one line a task
    docs/results/learning_curves.csv, learning.png    the curves of all runs
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from leco.report.metrics import RECENT_EPISODES, median_reached, read_table, when_reached
from leco.report.style import COLOURS, save_png, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
KEPT = ("frames", "seconds", "episodes", "success", "return", "entropy", "r_ep", "r_ta")


HEADINGS = (
    *("frames to 90 %, median (each seed), M", "goal", "seconds to 90 %, median (each seed)", "goal"),
    *("lowest after 95 %", "fresh levels solved of 100", "least entropy before 50 %"),
)


class Task(NamedTuple):
    """A task, how long and how often it is trained, and the goals: frames and seconds to 90 % (median of seeds).

    solvable  the share of its levels that can be solved: 90 % means 90 % of those
    """

    name: str
    frames: float
    seeds: int
    goal_frames: float
    goal_seconds: float | None = None
    solvable: float = 1.0


TASKS = (
    Task("MultiRoom-N2-S4", 1.5e5, 5, 0.08e6, 15),
    Task("DoorKey-8x8", 2e5, 5, 0.3e6, 60),
    Task("KeyCorridorS3R3", 3e5, 5, 0.6e6, 90),
    Task("MultiRoom-N6", 3e5, 5, 0.4e6, 60),
    Task("KeyCorridorS4R3", 6e5, 5, 1e6, 120),
    Task("MultiRoom-N7-S4-NoisyTV", 2e5, 3, 0.3e6, 45),
    Task("KeyCorridorS6R3", 1.6e6, 3, 2e6, 300),
    Task("ObstructedMaze-1Dlhb", 4e5, 5, 0.5e6),
    Task("ObstructedMaze-1Q", 1.6e6, 3, 2e6, solvable=0.933),  # benchmarks/solvable.py
    Task("ObstructedMaze-2Q", 2.5e6, 3, 4e6, solvable=0.966),
    Task("ObstructedMaze-Full", 6e6, 1, 1e7),
)


class Run(NamedTuple):
    """What became of a run; None where it never was."""

    seed: int
    frames: int | None
    seconds: float | None
    lowest: float | None  # success rate after it had first reached 95 %
    least_entropy: float  # while fewer than half of the episodes were solved
    solved: float
    table: dict[str, np.ndarray]


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains what is not trained yet, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", help="of those above, by name (default: all)")
    parser.add_argument("--out", type=Path, default=Path("runs/results"), help="default: runs/results")
    given = parser.parse_args(arguments)
    chosen = TASKS if given.tasks is None else [each for each in TASKS if each.name in given.tasks.split(",")]
    for task in chosen:
        sweep(task, given.out)
    found = {task: runs for task in TASKS if (runs := read(task, given.out / task.name))}
    text = table(found)
    print(text)
    (RESULTS / "learning.md").write_text(text)
    write_curves(found)
    draw(found)


def sweep(task: Task, out: Path) -> None:
    """Trains a task with every seed, one after the other."""
    command = [sys.executable, "-P", "-m", "leco", "sweep", "--tasks", task.name, "--seeds", f"1-{task.seeds}"]
    command += ["--frames", str(task.frames), "--out", str(out / task.name), "--plain"]
    subprocess.run(command, check=True, cwd=Path.cwd())


def read(task: Task, folder: Path) -> list[Run]:
    """The runs of a sweep."""
    runs = []
    for run in sorted(folder.glob("*-[0-9]*/")):
        values = read_table(run / "metrics.csv")
        evaluation = run / "evaluation.json"
        if not values or not evaluation.exists():
            continue
        reached, learned = (when_reached(values, share * task.solvable) for share in (0.9, 0.95))
        success, frames = values["success"], values["frames"]
        lowest = None if learned is None else float(np.nanmin(success[frames >= learned.frames]))
        early = np.nan_to_num(success) < 0.5
        runs.append(
            Run(
                int(run.name.rpartition("-")[2]),
                None if reached is None else reached.frames,
                None if reached is None else reached.seconds,
                lowest,
                float(np.nanmin(values["entropy"][early])),
                float(json.loads(evaluation.read_text())["success"]),
                values,
            )
        )
    return runs


def table(found: dict[Task, list[Run]]) -> str:
    """The results as Markdown."""
    lines = [
        " | ".join(("| task", *HEADINGS, "")).rstrip(),
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, runs in found.items():
        frames, seconds = [run.frames for run in runs], [run.seconds for run in runs]
        middle, time = median_reached(frames), median_reached(seconds)
        each_frames = ", ".join("-" if f is None else f"{f / 1e6:.2f}" for f in frames)
        each_seconds = ", ".join("-" if s is None else f"{s:.0f}" for s in seconds)
        lowest = min((run.lowest for run in runs if run.lowest is not None), default=None)
        lines.append(
            f"| {task.name} "
            f"| **{'-' if middle is None else f'{middle / 1e6:.2f}'}** ({each_frames}) | {task.goal_frames / 1e6:g} "
            f"| **{'-' if time is None else f'{time:.0f}'}** ({each_seconds}) | {task.goal_seconds or '-'} "
            f"| {'-' if lowest is None else f'{100 * lowest:.0f} %'} "
            f"| {', '.join(f'{100 * run.solved:.0f}' for run in runs)} "
            f"| {min(run.least_entropy for run in runs):.2f} |"
        )
    return "\n".join(lines) + "\n"


def write_curves(found: dict[Task, list[Run]]) -> None:
    """The curves of all runs, at most some 100 lines each."""
    with (RESULTS / "learning_curves.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("task", "seed", *KEPT))
        for task, runs in found.items():
            for run in runs:
                count = len(run.table["frames"])
                for line in range(0, count, max(1, count // 100)):
                    writer.writerow((task.name, run.seed, *(f"{run.table[name][line]:.5g}" for name in KEPT)))


def draw(found: dict[Task, list[Run]]) -> None:
    """Success over frames, a panel a task, a line a seed."""
    with styled():
        figure = Figure(figsize=(2.6 * min(4, len(found)), 2.4 * -(-len(found) // 4)))
        axes = figure.subplots(-(-len(found) // 4), min(4, len(found)), squeeze=False).flatten()
        for axis in axes[len(found) :]:
            axis.set_axis_off()
        for axis, (task, runs) in zip(axes, found.items(), strict=False):
            for run, colour in zip(runs, COLOURS, strict=False):
                of_all = run.table["episodes"] >= RECENT_EPISODES  # before that, of the few there were
                frames, success = (run.table[name][of_all] for name in ("frames", "success"))
                axis.plot(frames / 1e6, 100 * success, color=colour, linewidth=1.2)
            middle = median_reached([run.frames for run in runs])
            if middle is not None:
                axis.axvline(middle / 1e6, color="#777777", linewidth=0.8, linestyle=":")
            axis.set_title(task.name, fontsize=9)
            axis.set_ylim(-2, 102)
            axis.set_xlabel("million frames", fontsize=8)
        axes[0].set_ylabel("success of the last\n100 episodes, %", fontsize=8)
        save_png(figure, RESULTS / "learning.png")


if __name__ == "__main__":
    main()
