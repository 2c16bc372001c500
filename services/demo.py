"""The whole thing in a few minutes: `leco demo` trains LECO on a small task, plays with what it learned, and draws the curve."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from leco.config import parse
from leco.report.curves import overview
from leco.report.runs import read_curves
from leco.report.style import save_png, styled
from services.episodes import evaluate
from services.evaluate import trained_state
from services.local import train
from services.summary import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

from leco.envs.registry import find_task

# Not the laptop preset, which is for rewards that are rare at first: it solved 71 % of this task after as many frames.
EXPERIMENT = """\
task = "MultiRoom-N2-S4"
method = "leco"
frames = 6e5

[training]
policy_learning_rate = 7e-4
entropy = 1e-3
policy_betas = [0.0, 0.99]
inner_loss = "whole"
decoded = 96
"""
EPISODES = 100


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, evaluates, draws."""
    parser = argparse.ArgumentParser("leco demo", description=__doc__)
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="the run's folder (default: runs/demo-TIME)")
    parser.add_argument("--frames", type=float, help="actions to train on (default: 6e5)")
    given = parser.parse_args(arguments)
    folder: Path = given.run or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    experiment = parse(EXPERIMENT, {"frames": given.frames})
    code = train(experiment, folder, actors=1, store="memory", threads=1)
    if code != 0:
        sys.exit(code)
    trained = trained_state(folder, "newest")
    result = evaluate(trained.policy, find_task(experiment.task), episodes=EPISODES, seed=0, greedy=False)
    sys.stdout.write(f"\nafter {trained.updates:,} updates, {EPISODES} fresh episodes:\n{summary(result)}")
    picture = folder / "curve.png"
    run = read_curves(folder, task=experiment.task, label=experiment.method)
    with styled():
        save_png(overview(run, f"{experiment.method} on {experiment.task}"), picture)
    sys.stdout.write(f"\nthe learning curve: {picture}\nthe same in TensorBoard: tensorboard --logdir {folder}\n")


if __name__ == "__main__":
    main()
