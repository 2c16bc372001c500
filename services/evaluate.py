"""How good a trained policy is: `leco eval`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from leco.config import ConfigError, parse
from leco.envs.registry import find_task
from leco.experiment import method_of
from leco.files import replace_file
from leco.learning.state import init
from leco.methods import find_method
from leco.milestones import find_milestones
from leco.networks import build
from leco.publishing import acting_params, acting_state
from leco.report.recording import FOLDER, recording_name, write_recording
from leco.saving import SavedStateError, load
from leco.zoo import POLICY, absent, is_entry
from services.episodes import EvaluationError, Keeper, Result, evaluate
from services.recording import make_recording, recorded_episodes
from services.summary import numbers, summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leco.config import Experiment
    from leco.learning.state import Networks, TrainingState
    from leco.nets.policy import Policy
    from leco.report.recording import Recording
    from leco.saving import Fact

DESCRIPTION = """\
Plays fresh episodes with a trained policy and says how good it is, with 95 % confidence intervals. Actions are drawn from the
policy, as in training; --greedy takes the most probable ones. What was played is recorded in RUN/recordings for `leco report`.
An entry of the zoo (`leco zoo`) is played like a run, and only read: nothing is recorded in it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluates and prints."""
    parser = argparse.ArgumentParser("leco eval", description=DESCRIPTION)
    parser.add_argument(
        "run", type=Path, help="the run's folder, or an entry of the zoo, for example zoo/KeyCorridorS4R3"
    )
    parser.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    parser.add_argument(
        "--checkpoint",
        default="newest",
        help="newest, best, a share of the training such as 50%%, a file, or milestones for one after the other "
        "(default: newest)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of levels and actions (default: 0)")
    parser.add_argument("--greedy", action="store_true", help="the most probable action instead of a drawn one")
    parser.add_argument(
        "--video", "--gif", type=Path, metavar="FILE", help="also draw the first episode: FILE.mp4 or FILE.gif"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to a file")
    given = parser.parse_args(arguments)
    if given.episodes < 1:
        parser.error(f"--episodes is {given.episodes}, expected at least 1")
    if given.video is not None and given.video.suffix not in (".mp4", ".gif"):
        parser.error(f"--video is {given.video}, expected a name that ends in .mp4 or .gif")
    if given.checkpoint == "milestones" and (given.video or given.json):
        parser.error("--video and --json are of one checkpoint: name it, for example --checkpoint 50%")
    torch.set_num_threads(1)
    try:
        every = [given.checkpoint]
        if given.checkpoint == "milestones" and not is_entry(given.run):
            every = list(find_milestones(given.run, read_experiment(given.run)))
        for checkpoint in every:
            _evaluate(given, checkpoint)
    except (ConfigError, SavedStateError, EvaluationError, OSError, ValueError) as error:  # the last: no simulator
        sys.exit(f"leco eval: {error}")


def _evaluate(given: argparse.Namespace, checkpoint: str) -> None:
    """Of one checkpoint: plays, says how it went, records, draws."""
    trained = trained_state(given.run, checkpoint)
    task = find_task(trained.experiment.task)
    keeper = Keeper(recorded_episodes(task, given.episodes))
    how = {"seed": given.seed, "greedy": given.greedy}
    result = evaluate(trained.policy, task, episodes=given.episodes, keeper=keeper, **how)
    sys.stdout.write(
        f"{task.name}, {trained.experiment.method}, after {trained.updates:,} updates: {given.episodes} fresh episodes\n"
    )
    sys.stdout.write(summary(result, task))
    recording = make_recording(trained, keeper.episodes, run=given.run.resolve().name, checkpoint=checkpoint, **how)
    _record(given.run, recording)
    if given.video is not None:
        from services.film import film  # noqa: PLC0415  # needs more packages

        film(recording, given.video)
        sys.stdout.write(f"an episode of {len(recording.episodes[0].action_T)} actions: {given.video}\n")
    if given.json is not None:
        replace_file(given.json, (json.dumps(evaluation_json(trained, result, how), indent=1) + "\n").encode())


def _record(run: Path, recording: Recording) -> None:
    """Writes the recording; a run that cannot be written to can still be evaluated, and an entry of the zoo is only read."""
    if is_entry(run):
        sentence = absent(find_method(recording.facts.method))
        sys.stdout.write(f"not recorded: an entry of the zoo is only read. {sentence}".rstrip() + "\n")
        return
    path = run / FOLDER / recording_name(recording.facts)
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
    facts, task = trained.facts, find_task(trained.experiment.task)
    of_run = {"updates": trained.updates, "frames": facts.get("frames"), "seconds": facts.get("seconds")}
    known = {name: None if math.isnan(value) else value for name, value in numbers(result, task).items()}
    return {**of_run, **how, **known}


class Trained(NamedTuple):
    """A run at a checkpoint, or an entry of the zoo.

    policy    with the checkpoint's parameters
    updates   after how many it was saved
    facts     what else was saved: the frames, and the seconds that they took
    networks, state   all of it; an entry's state has only what acts (`leco.publishing.acting_state`)
    """

    experiment: Experiment
    policy: Policy
    updates: int
    facts: dict[str, Fact]
    networks: Networks
    state: TrainingState


def read_experiment(run: Path) -> Experiment:
    """What a run, or an entry of the zoo, is of."""
    config = run / "config.toml"
    if not config.exists():
        raise ConfigError(
            f"{run} is neither a run nor an entry of the zoo: it has no config.toml. `leco train` makes runs, `leco zoo` lists "
            "the entries"
        )
    return parse(config.read_text())


def trained_state(run: Path, checkpoint: str) -> Trained:
    """What a run had learned at a checkpoint, or what an entry of the zoo can do.

    Raises:
        ConfigError: it is neither, or has no such checkpoint.
        SavedStateError: the checkpoint, or the entry's policy, cannot be used.
    """
    experiment = read_experiment(run)
    networks = build_networks(experiment)
    if is_entry(run):
        params, facts = load(_policy(run, checkpoint), acting_params(init(networks)))
        state = acting_state(params, networks)
    else:
        state, facts = load(_checkpoint(run, checkpoint, experiment), init(networks))
    networks.policy.load_state_dict(state.policy)
    return Trained(experiment, networks.policy, state.updates, facts, networks, state)


def build_networks(experiment: Experiment) -> Networks:
    """Fresh networks, as an experiment says."""
    task = find_task(experiment.task)
    return build(method_of(experiment), task.observation_shape, task.actions, experiment.hash, experiment.network.width)


def _policy(entry: Path, checkpoint: str) -> Path:
    """The file of an entry."""
    if checkpoint != "newest":
        raise ConfigError(f"{entry} is an entry of the zoo, with one policy and no checkpoints: leave out --checkpoint")
    return entry / POLICY


def _checkpoint(run: Path, which: str, experiment: Experiment) -> Path:
    folder = run / "checkpoints"
    if which == "best":
        path = folder / "best.safetensors"
    elif which == "newest":
        numbered = sorted(folder.glob("[0-9]*.safetensors"))
        if not numbered:
            raise ConfigError(
                f"{folder} has no checkpoint yet: train longer, or end the training with Ctrl-C, which saves"
            )
        path = numbered[-1]
    elif which.endswith("%"):
        found = find_milestones(run, experiment)
        if which not in found:
            raise ConfigError(f"{run} has no milestone {which}; it has {', '.join(found)}")
        path = found[which]
    else:
        path = Path(which)
    if not path.exists():
        raise ConfigError(f"there is no checkpoint {path}")
    return path


if __name__ == "__main__":
    main()
