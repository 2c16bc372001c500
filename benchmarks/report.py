"""How long `leco report` takes, and how much memory: 12 runs of 10 million frames each.

The runs are made up, but as large as real ones: four methods with three seeds on KeyCorridorS3R3, a line of metrics.csv for
every update (6,511 of them, where the default writes every twentieth), and a recording of 100 episodes at each of four
milestones, played by an untrained policy, which needs all 270 actions of nearly every episode. `leco report` runs as a process
of its own. The goal is less than a minute and less than 2 GB.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import datetime as dt
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from hashcount import RESULTS, Report, measured

from leco.checkpoint.milestones import milestone_updates
from leco.config.toml import parse, to_toml
from leco.envs.registry import find_task
from leco.evaluation.record import make_recording
from leco.evaluation.recording import FOLDER, Recording, recording_name, write_recording
from leco.evaluation.rollout import Keeper, evaluate
from leco.evaluation.trained import Trained
from leco.learning.state import init
from leco.methods.table import find_method
from leco.models.build import build
from services.learner.metrics_logger import COLUMNS

if TYPE_CHECKING:
    from leco.config.experiment import Experiment

METHODS = ("leco", "vq-only", "dsc", "no-int")
SEEDS = (1, 2, 3)
FRAMES = 10_000_000
EPISODES = 100


def main() -> None:
    """Makes the runs, reports on them, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        for method in METHODS:
            make_runs(runs, method)
            print(f"{method}: made", flush=True)
        out = Path(folder) / "report"
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-m", "leco", "report", runs, f"--out={out}"], check=True)
        seconds = time.perf_counter() - begin
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        figures = len(list((out / "figures").glob("*.png")))
        size = (out / "index.html").stat().st_size
    report = Report()
    report.say(
        f"# Reports\n\n{measured(shlex.join(['python', 'benchmarks/report.py', *sys.argv[1:]]))}. Load average of the minute "
        f"before: {os.getloadavg()[0]:.1f}.\n\n{len(METHODS) * len(SEEDS)} runs of {FRAMES:,} frames, how they are made: the "
        "beginning of the script."
    )
    report.table(
        ("figures", "page", "wall time", "processor time", "most memory"),
        [
            (
                figures,
                f"{size / 1e6:.1f} MB",
                f"{seconds:.1f} s",
                f"{used.ru_utime + used.ru_stime:.1f} s",
                f"{used.ru_maxrss / 2**20:.2f} GB",
            )
        ],
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"report_{os.cpu_count()}cpu_{dt.datetime.now(dt.UTC):%Y-%m-%d}.md"
    path.write_text(report.text.rstrip() + "\n")
    print(f"kept in {path}")


def make_runs(folder: Path, method: str) -> None:
    """The runs of a method: one recording, written for each of their milestones."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    experiment = parse("", {"task": "KeyCorridorS3R3", "method": method, "frames": FRAMES})
    task = find_task(experiment.task)
    networks = build(find_method(method), task.observation_shape, task.num_actions, experiment.hash)
    trained = Trained(experiment, networks.policy, 0, {}, networks, init(networks))
    keeper = Keeper(EPISODES)
    evaluate(networks.policy, task, episodes=EPISODES, seed=0, greedy=False, keeper=keeper)
    played = make_recording(trained, keeper.episodes, run="", checkpoint="newest", seed=0, greedy=False)
    for seed in SEEDS:
        run = folder / f"{task.name}-{method}-{seed}"
        run.mkdir(parents=True)
        ours = dataclasses.replace(experiment, seed=seed)
        (run / "config.toml").write_text(to_toml(ours))
        write_metrics(run / "metrics.csv", ours)
        for updates in milestone_updates(ours):
            metadata = dataclasses.replace(played.metadata, updates=updates, frames=updates * 1536)
            write_recording(run / FOLDER / recording_name(metadata), Recording(metadata, played.episodes))


def write_metrics(path: Path, experiment: Experiment) -> None:
    """A line for every update."""
    random = np.random.default_rng(experiment.seed)
    size = experiment.learner.batch_size * experiment.actors.unroll_length
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for updates in range(1, -(-FRAMES // size) + 1):
            done = updates * size / FRAMES
            row = {name: f"{random.normal(done, 0.05):.6g}" for name in COLUMNS}
            row |= {"frames": str(updates * size), "updates": str(updates), "seconds": f"{0.8 * updates:.6g}"}
            writer.writerow(row)


if __name__ == "__main__":
    main()
