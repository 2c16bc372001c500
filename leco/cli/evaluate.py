"""How good a trained policy is: `leco eval`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from leco.checkpoint.atomic_file import atomic_write
from leco.checkpoint.milestones import find_milestones
from leco.checkpoint.state_file import SavedStateError
from leco.config.experiment import ConfigError, task_of
from leco.evaluation.record import make_recording, recorded_episodes
from leco.evaluation.recording import FOLDER, recording_name, write_recording
from leco.evaluation.rollout import EvaluationError, Keeper, Result, evaluate
from leco.evaluation.summary import numbers, summary
from leco.evaluation.trained import read_experiment, trained_state
from leco.evaluation.zoo import absent, find_run, is_entry
from leco.words import counted
from services.flags import Parser, new_file, whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from leco.config.experiment import Experiment
    from leco.evaluation.recording import Recording
    from leco.evaluation.trained import Trained

DESCRIPTION = """\
Plays fresh episodes with a trained policy and says how good it is, with 95 % confidence intervals. Actions are drawn from the
policy, as in training; --greedy takes the most probable ones. What was played is recorded in RUN/recordings for `leco report`.
An entry of the zoo (`leco zoo`) is played like a run, and only read: nothing is recorded in it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluates and prints."""
    parser = Parser("leco eval", description=DESCRIPTION)
    parser.add_argument(
        "run", type=Path, help="the run's folder, or an entry of the zoo, for example zoo/KeyCorridorS4R3"
    )
    parser.add_argument("--episodes", type=whole_number(1), default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument(
        "--checkpoint",
        default="newest",
        help="newest, best, a share of the training such as 50%%, a file, or milestones for one after the other "
        "(default: newest)",
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help="of levels and actions (default: 0)"
    )
    parser.add_argument("--greedy", action="store_true", help="the most probable action instead of a drawn one")
    parser.add_argument(
        "--video", type=_video, metavar="FILE", help="also draw the first episode: FILE.mp4 or FILE.gif"
    )
    parser.add_argument("--json", type=new_file, metavar="FILE", help="also write the numbers to a file")
    given = parser.parse_args(arguments)
    if given.checkpoint == "milestones" and (given.video or given.json):
        parser.error("--video and --json are of one checkpoint: name it, for example --checkpoint 50%")
    torch.set_num_threads(1)
    given.run = find_run(given.run)
    try:
        every = [given.checkpoint]
        if given.checkpoint == "milestones" and not is_entry(given.run):
            every = list(find_milestones(given.run, read_experiment(given.run)))
        for checkpoint in every:
            _evaluate(given, checkpoint)
    except (ConfigError, SavedStateError, EvaluationError, OSError, ValueError) as error:  # the last: no simulator
        parser.refuse(error)


def _video(text: str) -> Path:
    """Where a video can be made."""
    if not text.endswith((".mp4", ".gif")):
        raise ValueError(f"must be a name that ends in .mp4 or .gif, and not {text!r}")
    return new_file(text)


def _evaluate(given: argparse.Namespace, checkpoint: str) -> None:
    """Of one checkpoint: plays, says how it went, records, draws."""
    trained = trained_state(given.run, checkpoint)
    task = task_of(trained.experiment)
    keeper = Keeper(recorded_episodes(task, given.episodes))
    how = {"seed": given.seed, "greedy": given.greedy}
    result = evaluate(trained.policy, task, episodes=given.episodes, keeper=keeper, **how)
    sys.stdout.write(
        f"{task.name}, {trained.experiment.method}, after {counted(trained.updates, 'update')}: "
        f"{counted(given.episodes, 'fresh episode')}\n"
    )
    sys.stdout.write(summary(result, task))
    where = {"run": given.run.resolve().name, "checkpoint": checkpoint}
    recording = make_recording(trained, keeper.episodes, result=result, **where, **how)
    _record(given.run, recording, trained.experiment)
    if given.video is not None:
        from leco.evaluation.video import film  # noqa: PLC0415  # needs more packages

        film(recording, given.video)
        sys.stdout.write(f"an episode of {counted(len(recording.episodes[0].action_T), 'action')}: {given.video}\n")
    if given.json is not None:
        atomic_write(given.json, (json.dumps(evaluation_json(trained, result, how), indent=1) + "\n").encode())


def _record(run: Path, recording: Recording, experiment: Experiment) -> None:
    """Writes the recording; a run that cannot be written to can still be evaluated, and an entry of the zoo is only read."""
    if is_entry(run):
        sys.stdout.write(f"not recorded: an entry of the zoo is only read. {absent(experiment)}".rstrip() + "\n")
        return
    path = run / FOLDER / recording_name(recording.metadata)
    try:
        write_recording(path, recording)
    except OSError as error:
        sys.stdout.write(f"not recorded: {error}\n")
    else:
        sys.stdout.write(f"recorded: {path}\n")


def evaluation_json(trained: Trained, result: Result, how: Mapping[str, int]) -> dict[str, Any]:
    """What an evaluation found, as --json writes it.

    Args:
        trained: What played.
        result: How it went.
        how: The seed, and whether it was greedy.
    """
    metadata, task = trained.metadata, task_of(trained.experiment)
    of_run = {"updates": trained.updates, "frames": metadata.get("frames"), "seconds": metadata.get("seconds")}
    known = {name: None if math.isnan(value) else value for name, value in numbers(result, task).items()}
    return {**of_run, **how, **known}


if __name__ == "__main__":
    main()
