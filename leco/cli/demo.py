"""The whole thing in a few minutes: `leco demo` trains LECO until it solves MultiRoom-N6, plays and films what it learned, and
then plays KeyCorridorS6R3 with a policy of the zoo."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from leco.checkpoint.state_file import SavedStateError
from leco.cli.training import train
from leco.config.experiment import ConfigError, task_of
from leco.config.toml import parse
from leco.evaluation.record import make_recording
from leco.evaluation.rollout import Keeper, evaluate
from leco.evaluation.summary import summary
from leco.evaluation.trained import trained_state
from leco.evaluation.video import film
from leco.evaluation.zoo import ZOO, is_entry
from leco.report.curves import overview
from leco.report.metrics import GOAL, read_table, when_reached
from leco.report.runs import read_curves
from leco.report.style import save_png, styled
from leco.telemetry.provenance import process_start
from leco.words import counted
from services.flags import Parser, number, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.config.experiment import Experiment

EXPERIMENT = """\
task = "MultiRoom-N6"
preset = "laptop"
frames = 1.2e6
until = 0.98
"""
EPISODES = 100
OF_THE_ZOO, ZOO_EPISODES = "KeyCorridorS6R3", 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, evaluates, draws, and plays an entry of the zoo."""
    parser = Parser("leco demo", description=__doc__)
    parser.add_argument("--run-dir", type=Path, metavar="FOLDER", help="the run's folder (default: runs/demo-TIME)")
    parser.add_argument("--frames", type=number, help="actions to train on at most (default: 1.2e6)")
    parser.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="of networks, actions and levels (default: 1)"
    )
    given = parser.parse_args(arguments)
    folder: Path = given.run_dir or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    try:
        experiment = parse(EXPERIMENT, {"frames": given.frames, "seed": given.seed})
    except ConfigError as error:
        parser.refuse(error)
    torch.set_num_threads(1)
    task = task_of(experiment)
    goal = f"until {100 * (experiment.until or 1):g} % of the last 100 episodes are solved"
    sys.stdout.write(f"Training {goal}. {task.name} is {task.description}.\n")
    try:
        code = train(experiment, folder, actors=1, store="memory", threads=1, began=process_start())
    except (ConfigError, OSError) as error:  # of the folder: nothing has begun
        parser.refuse(error)
    if code != 0:
        sys.exit(code)
    try:
        play(folder, EPISODES, folder / "episode.gif")
        draw_curve(folder, experiment)
        if when_reached(read_table(folder / "metrics.csv")) is None:
            sys.exit(
                f"leco demo: training ended before {100 * GOAL:g} % of 100 episodes were solved; try another --seed"
            )
        play_zoo(folder / f"{OF_THE_ZOO}.gif")
    except (ConfigError, SavedStateError, OSError) as error:
        sys.exit(f"leco demo: {error}")


def play(folder: Path, episodes: int, picture: Path) -> None:
    """Plays fresh episodes with a run or an entry of the zoo, says how they went, and draws the first that was solved."""
    trained, keeper = trained_state(folder, "newest"), Keeper(episodes)
    task = task_of(trained.experiment)
    sys.stdout.write(
        f"\n{task.name}, after {counted(trained.updates, 'update')}: {counted(episodes, 'fresh episode')}\n"
    )
    sys.stdout.flush()
    sys.stdout.write(summary(evaluate(trained.policy, task, episodes=episodes, seed=0, greedy=False, keeper=keeper)))
    solved = [each for each in keeper.episodes if each.solved][:1]
    if solved:
        name = folder.resolve().name
        film(make_recording(trained, solved, run=name, checkpoint="newest", seed=0, greedy=False), picture)
        sys.stdout.write(f"one that was solved: {picture}\n")


def draw_curve(folder: Path, experiment: Experiment) -> None:
    """Draws the learning curve of a run into its folder, and says where."""
    picture = folder / "curve.png"
    run = read_curves(folder, task=experiment.task, label=experiment.method)
    with styled():
        save_png(overview(run, f"{experiment.method} on {experiment.task}"), picture)
    sys.stdout.write(f"the learning curve: {picture}\nthe same in TensorBoard: tensorboard --logdir {folder}\n")


def play_zoo(picture: Path, zoo: Path = ZOO) -> None:
    """Plays a task that takes longer to learn than anybody waits for a demonstration, if the zoo has a policy for it."""
    entry = zoo / OF_THE_ZOO
    if is_entry(entry):
        sys.stdout.write(f"\nA policy of the zoo, {entry}, which `leco zoo` lists with the others:")
        play(entry, ZOO_EPISODES, picture)
    else:
        sys.stdout.write(f"\nThere is no {entry} here: the policies of the zoo come with leco's repository.\n")


if __name__ == "__main__":
    main()
