"""What a run has learned, or what an entry of the zoo can do: its networks, from its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from leco.checkpoint.milestones import find_milestones
from leco.checkpoint.snapshot import acting_params, acting_state
from leco.checkpoint.state_file import load
from leco.config.experiment import ConfigError, method_of, task_of
from leco.config.toml import parse
from leco.evaluation.zoo import POLICY, is_entry
from leco.learning.state import init
from leco.models.build import build

if TYPE_CHECKING:
    from leco.checkpoint.state_file import MetadataValue
    from leco.config.experiment import Experiment
    from leco.learning.state import Networks, TrainingState
    from leco.models.policy import Policy


class Trained(NamedTuple):
    """A run at a checkpoint, or an entry of the zoo.

    policy    with the checkpoint's parameters
    updates   after how many it was saved
    metadata     what else was saved: the frames, and the seconds that they took
    networks, state   all of it; an entry's state has only what acts (`leco.checkpoint.snapshot.acting_state`)
    """

    experiment: Experiment
    policy: Policy
    updates: int
    metadata: dict[str, MetadataValue]
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


def trained_state(run: Path, checkpoint: str = "newest") -> Trained:
    """What a run had learned at a checkpoint, or what an entry of the zoo can do.

    Raises:
        ConfigError: it is neither, or has no such checkpoint.
        SavedStateError: the checkpoint, or the entry's policy, cannot be used.
    """
    experiment = read_experiment(run)
    networks = build_networks(experiment)
    if is_entry(run):
        params, metadata = load(_policy(run, checkpoint), acting_params(init(networks)))
        state = acting_state(params, networks)
    else:
        state, metadata = load(_checkpoint(run, checkpoint, experiment), init(networks))
    networks.policy.load_state_dict(state.policy)
    return Trained(experiment, networks.policy, state.updates, metadata, networks, state)


def build_networks(experiment: Experiment) -> Networks:
    """Fresh networks, as an experiment says."""
    task = task_of(experiment)
    return build(method_of(experiment), task.layout, task.num_actions, experiment.hash, experiment.network)


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
