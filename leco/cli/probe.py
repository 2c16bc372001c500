"""What hashes see: `leco probe`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from leco.cli.tables import print_table
from leco.config.experiment import COUNTED_CELLS, ConfigError, method_of, task_of
from leco.config.toml import parse
from leco.envs.registry import family_of, find_task
from leco.evaluation.hash_probe import play_episodes, probe
from leco.evaluation.trained import build_networks, trained_state
from leco.methods.table import Hash
from leco.models.hash_function import make_hash_function
from leco.models.kinds.table import find_kind
from services.flags import Parser, whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from leco.models.hash_function import HashFunction
    from leco.types import ObservationLayout

DESCRIPTION = """\
Says in a minute what a training run says in an hour: what a hash sees. For views of play on a task of MiniGrid: how often its
code changes when a door is opened or closed, when an object is taken away, when a key is taken into the hand, when the agent
turns or takes a step; which share of steps are first visits of a code in the episode; and how many codes there are. A count
guides when some 10 to 40 % of steps are first visits of things that matter (docs/results)."""
HASHES = tuple(each for each in Hash if each is not Hash.NONE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Plays, hashes and prints."""
    parser = Parser("leco probe", description=DESCRIPTION)
    parser.add_argument("runs", nargs="*", type=Path, help="trained hashes: folders of runs, or entries of the zoo")
    parser.add_argument("--task", default="KeyCorridorS4R3", help="what is played (default: KeyCorridorS4R3)")
    parser.add_argument(
        "--hash",
        action="append",
        choices=[each.value for each in HASHES],
        help="also this hash as it is before any training; may be repeated (default: all, if no run is given)",
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="RUN",
        help="who plays: the policy of a run or of an entry of the zoo (default: actions are drawn evenly)",
    )
    parser.add_argument(
        "--episodes", type=whole_number(1), default=32, metavar="N", help="how many are played (default: 32)"
    )
    parser.add_argument(
        "--steps", type=whole_number(1), default=480, metavar="N", help="of each at most (default: 480)"
    )
    given = parser.parse_args(arguments)
    try:
        _probe(given)
    except (ConfigError, OSError, ValueError) as error:
        parser.refuse(error)


def _probe(given: argparse.Namespace) -> None:
    task = find_task(given.task)
    kind, draw = find_kind(task.layout), family_of(task).draw
    if not kind.has_cells and draw is None:
        raise ValueError(
            f"{task.name} shows {kind.title}: a probe needs views whose cells are known, as MiniGrid's are; for pictures name "
            "a task such as KeyCorridorS4R3-RGB"
        )
    torch.manual_seed(0)
    others = (Hash.VQ_PATCHES,) if kind.has_cells else COUNTED_CELLS
    every = [each.value for each in HASHES if each not in others]
    hashes = {name: _untrained(name, given.task) for name in given.hash or (() if given.runs else every)}
    hashes |= {str(run): _trained(run, task.layout) for run in given.runs}
    policy = None if given.policy is None else trained_state(given.policy).policy
    play = play_episodes(task, given.episodes, given.steps, policy=policy)
    found = {
        name: probe(each, play, draw) for whole, function in hashes.items() for name, each in _levels(whole, function)
    }
    rows = [(name, *(_share(x) for x in each[:6]), f"{each.codes:,}") for name, each in found.items()]
    views = next(iter(found.values())).views
    steps = sum(map(len, play.actions))
    who = "random play" if given.policy is None else str(given.policy)
    sys.stdout.write(f"{task.name}, {steps:,} steps of {who}, {views:,} different views\n\n")
    print_table(("hash", "door", "object", "carried", "turn", "step", "first visits", "codes"), rows)


def _levels(name: str, whole: HashFunction) -> list[tuple[str, HashFunction]]:
    """A hash of several levels level by level, the finest first."""
    if whole.levels == 1:
        return [(name, whole)]
    return [(f"{name}, level {number + 1}", whole.level(number)) for number in range(whole.levels)]


def _share(x: float) -> str:
    return "-" if math.isnan(x) else f"{100 * x:.0f} %"


def _untrained(name: str, task: str) -> HashFunction:
    experiment = parse("", {"task": task, "method": "leco", "hash.kind": name})
    networks, kind = build_networks(experiment), find_kind(task_of(experiment).layout)
    if networks.intrinsic is not None:
        networks.intrinsic.eval()
    made = make_hash_function(method_of(experiment), kind, networks.intrinsic, experiment.hash)
    assert made is not None  # noqa: S101  # leco counts
    return made


def _trained(run: Path, layout: ObservationLayout) -> HashFunction:
    trained = trained_state(run)
    method = method_of(trained.experiment)
    if task_of(trained.experiment).layout != layout:
        raise ValueError(f"{run} was trained on {trained.experiment.task}, which shows other observations")
    made = make_hash_function(method, find_kind(layout), trained.networks.intrinsic, trained.experiment.hash)
    if made is None:
        raise ValueError(f"{run} was trained by {method.name}, which counts nothing: it has no hash")
    made.load({**trained.state.intrinsic, **trained.state.running})
    return made
