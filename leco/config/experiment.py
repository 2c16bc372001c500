"""An experiment: what is trained, how, and on what; and what of it cannot be. `leco.config.toml` reads one from TOML."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from leco.config.training import HashConfig, NetworkConfig, TrainingConfig
from leco.envs.registry import family_of, find_task
from leco.envs.task import EnvironmentConfig  # noqa: TC001  # toml.py reads the annotation
from leco.methods.table import Hash, Method, find_method
from leco.models.kinds.table import KINDS, find_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from leco.envs.task import Task


class ConfigError(ValueError):
    """A configuration that cannot be used. The text says which key, and what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorConfig:
    """How actors play.

    num_envs       how many one actor steps side by side
    unroll_length  actions in a trajectory
    """

    num_envs: int = 16
    unroll_length: int = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How the learner runs. Everything is counted in updates, but the queue, which is in trajectories.

    batch_size        trajectories in a batch
    queue_capacity    trajectories received and not yet trained on, with those on their way: one batch, because what waits grows
                      old; with several actors at least a batch and the environments of all of them
    max_policy_lag    a trajectory of parameters older than this many versions is dropped
    publish_every     how often actors can get new parameters
    checkpoint_every  how often the state is saved
    keep_checkpoints  how many of the newest checkpoints are kept, beside the best
    milestones        how many are kept for good, after even shares of the frames (4: 25, 50, 75 and 100 %), for `leco report`
                      to show how behaviour changed; one of MiniGrid takes 17 MB
    log_every         how often a line is written to metrics.csv and TensorBoard, beside those of the first and the last update
    synchronous       actors play only when the learner waits for what they play, with the parameters of that moment: nothing is
                      older than it must be (a single actor with a batch of environments is on policy). Otherwise they play while
                      it learns, which is faster and older
    deterministic     one actor takes turns with the learner, and every run with the same seed gives the same numbers, also when
                      it is stopped and resumed; slower. It ends with the first checkpoint that has all frames, and what was
                      played before the last checkpoint is dropped by its version, whatever max_policy_lag is
    """

    batch_size: int = 16
    queue_capacity: int = 16
    max_policy_lag: int = 20
    publish_every: int = 1
    checkpoint_every: int = 500
    keep_checkpoints: int = 3
    milestones: int = 4
    log_every: int = 20
    synchronous: bool = False
    deterministic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """All there is to know about a run, but where it runs.

    task, method  by name; see `leco tasks` and `leco methods`
    seed          of networks, actions and levels
    frames        actions in the environments after which training ends
    until         the success rate of the last 100 episodes, above 0 and at most 1, at which training ends before that; left
                  out, it never does
    environment   how the environment is made, and what it is; None of a task that is known by name
    network       how the policy sees, and how large it is
    hash          which hash counts, and the size of codes, where they are not the method's and the paper's
    """

    task: str
    method: str = "leco"
    seed: int = 1
    frames: int = 5_000_000
    until: float | None = None
    actors: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: TrainingConfig
    hash: HashConfig = field(default_factory=HashConfig)
    environment: EnvironmentConfig | None = None


# Hashes of cells, and what each counts.
COUNTED_CELLS = {Hash.OBJECTS: "objects", Hash.CELLS: "cells", Hash.VQ_CELLS: "codes of cells"}
RESERVED_VERSIONS = 1000  # by which versions of parameters leap at every start of a learner
_POSITIVE = (
    *("frames", "actors.num_envs", "actors.unroll_length", "learner.batch_size", "learner.publish_every"),
    *("learner.checkpoint_every", "learner.keep_checkpoints", "learner.log_every", "network.width"),
    *("training.policy_learning_rate", "training.intrinsic_learning_rate", "training.novelty_learning_rate"),
    *("training.eps", "training.reward_scale", "training.epochs", "training.minibatches"),
)
_SHARES = ("training.gamma", "training.lambda", "training.vtrace_lambda")
_NOT_NEGATIVE = (
    *("seed", "learner.max_policy_lag", "learner.milestones"),
    *("training.alpha", "training.entropy_cost", "training.agac_coef"),
)
_OPTIONAL = {
    "training.max_gradient_norm": "more than 0; leave it out for no limit",
    "training.learning_rate_timescale": "at least 1 update; leave it out for a learning rate that stays",
    "training.modulator_learning_rate": "more than 0; leave it out for the intrinsic module's",
    "training.decoder_samples": "at least 1; leave it out to decode all",
    "training.clip_range": "more than 0; leave it out for the plain policy gradient",
    "training.sequence_length": "at least 1; leave it out for whole unrolls",
}


def check(experiment: Experiment) -> None:
    """Refuses what is out of its range, with the reason.

    Raises:
        ConfigError: which key, and what was expected.
    """
    _check_ranges(experiment)
    learner, training = experiment.learner, experiment.training
    for key, betas in (("policy_betas", training.policy_betas), ("intrinsic_betas", training.intrinsic_betas)):
        if not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"training.{key} is {list(betas)}, expected two numbers from 0 to below 1")
    if learner.max_policy_lag >= RESERVED_VERSIONS:
        raise ConfigError(
            f"learner.max_policy_lag is {learner.max_policy_lag}, expected less than {RESERVED_VERSIONS}: versions leap by that "
            "when a learner starts again, so that what was trained on before is too old, and is not trained on twice"
        )
    if learner.queue_capacity < learner.batch_size:
        raise ConfigError(
            f"learner.queue_capacity is {learner.queue_capacity}, expected at least learner.batch_size ({learner.batch_size}): "
            "a batch must fit in the queue, or training waits for ever"
        )
    _check_until(experiment)
    _check_reuse(experiment)
    _check_hash(experiment)
    _check_network(experiment)
    _check_turns(experiment)


def _check_ranges(experiment: Experiment) -> None:
    """Of each number by itself."""

    def expect(key: str, expected: str, holds: Callable[[Any], bool]) -> None:
        value = attrgetter(key.replace("training.lambda", "training.lambda_"))(experiment)
        if value is not None and not holds(value):
            raise ConfigError(f"{key} is {value}, expected {expected}")

    for key in _POSITIVE:
        expect(key, "more than 0", lambda value: value > 0)
    for key in _SHARES:
        expect(key, "0 to 1", lambda value: 0 <= value <= 1)
    for key in _NOT_NEGATIVE:
        expect(key, "0 or more", lambda value: value >= 0)
    for key, expected in _OPTIONAL.items():
        expect(key, expected, lambda value: value > 0)


def _check_until(experiment: Experiment) -> None:
    """That the success rate at which training ends can be reached."""
    if experiment.until is None:
        return
    if not 0 < experiment.until <= 1:
        raise ConfigError(
            f"until is {experiment.until}, expected more than 0 and at most 1: the success rate at which training ends, "
            "0.95 for 95 %"
        )
    if not task_of(experiment).solvable:
        raise ConfigError(
            f"until is {experiment.until}, but {experiment.task} calls no episode solved: leave it out, and end by frames"
        )


def _check_reuse(experiment: Experiment) -> None:
    """That a batch can be cut into sequences, and learned from more than once."""
    training, unroll = experiment.training, experiment.actors.unroll_length
    length = min(training.sequence_length or unroll, unroll)
    if unroll % length != 0:
        raise ConfigError(
            f"training.sequence_length is {length}, expected a divisor of actors.unroll_length ({unroll}), which is "
            "cut into sequences"
        )
    if training.epochs * training.minibatches > 1 and training.clip_range is None:
        raise ConfigError(
            "training.clip_range is left out, expected a number such as 0.2 because training.epochs or training.minibatches is "
            "more than 1: the plain policy gradient is right for one step only"
        )


def task_of(experiment: Experiment) -> Task:
    """What the experiment trains on. Nothing is imported for it."""
    return find_task(experiment.task, experiment.environment)


def method_of(experiment: Experiment) -> Method:
    """The row of the experiment's method, with the hash that it counts with.

    Raises:
        ConfigError: the method has no hash, and another one is asked for.
    """
    try:
        return find_method(experiment.method, experiment.hash.kind)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_hash(experiment: Experiment) -> None:
    """That codes can be as large as is asked for."""
    size, method = experiment.hash, method_of(experiment)
    if size.size is not None and not all(1 <= each <= 16 for each in size.size):
        raise ConfigError(f"hash.size is {list(size.size)}, expected a height and a width from 1 to 16")
    for name in ("codebook_size", "dsc_levels"):
        number = getattr(size, name)
        if number is not None and not 2 <= number <= 256:
            raise ConfigError(f"hash.{name} is {number}, expected 2 to 256: a place of a code is a byte")
    if size.bits is not None and not 1 <= size.bits <= 2048:
        raise ConfigError(f"hash.bits is {size.bits}, expected 1 to 2048: a code has at most 256 bytes")
    given = [name for name in ("size", "codebook_size", "dsc_levels", "bits") if getattr(size, name) is not None]
    unused = [name for name in given if method.hash not in (Hash.VQ_CELLS, Hash.VQ_PATCHES) or name != "codebook_size"]
    if unused and method.hash in (Hash.EXACT, Hash.VQ_PATCHES, *COUNTED_CELLS):
        raise ConfigError(
            f"hash.{unused[0]} is {getattr(size, unused[0])}, but the hash {method.hash.value} has no such size: leave it out, "
            "or choose another hash.kind"
        )
    kind = find_kind(task_of(experiment).layout)
    if method.hash in COUNTED_CELLS and not kind.has_cells:
        countable = " and ".join(each.title for each in KINDS if each.has_cells)
        raise ConfigError(
            f"{experiment.task} shows {kind.title}, and {COUNTED_CELLS[method.hash]} are counted in {countable}: choose another "
            "method or hash.kind"
        )
    if method.hash is Hash.VQ_PATCHES and not kind.has_patches:
        raise ConfigError(
            f"{experiment.task} shows {kind.title}, and patches are counted in pictures: choose another hash.kind"
            + (f", or the task {experiment.task}-RGB" if kind.has_cells else "")
        )
    if size.size is not None and method.learns_hash and size.size not in (kind.hash_sizes or (size.size,)):
        expected = " or ".join(str(list(each)) for each in kind.hash_sizes or ())
        raise ConfigError(f"hash.size is {list(size.size)}, expected {expected} for a learned hash of {kind.title}")


def _check_network(experiment: Experiment) -> None:
    kind = find_kind(task_of(experiment).layout)
    if experiment.network.encoder == "patches" and kind.hash_image is None:
        raise ConfigError(
            f'network.encoder is "patches", but {experiment.task} shows {kind.title}, which are no pictures: leave it out'
        )
    if experiment.network.encoder == "one-hot" and not kind.has_cells:
        raise ConfigError(
            f'network.encoder is "one-hot", but {experiment.task} shows {kind.title}, which are no categories: leave it out'
        )


def _check_turns(experiment: Experiment) -> None:
    """In a deterministic run an unroll of all environments is used up by whole updates, and then actors get new parameters."""
    actors, learner = experiment.actors, experiment.learner
    if not learner.deterministic:
        return
    if not family_of(task_of(experiment)).reproducible:
        raise ConfigError(
            f"learner.deterministic is true, but episodes of {experiment.task} do not follow from their seed: leave it out"
        )
    if actors.num_envs % learner.batch_size != 0:
        raise ConfigError(
            f"actors.num_envs is {actors.num_envs}, expected a multiple of learner.batch_size ({learner.batch_size}) because "
            "learner.deterministic is true: what is played in a turn must be used up by whole updates"
        )
    turn = actors.num_envs // learner.batch_size
    if turn % learner.publish_every != 0:
        raise ConfigError(
            f"learner.publish_every is {learner.publish_every}, expected a divisor of {turn}, the updates of a turn "
            "(actors.num_envs / learner.batch_size), because learner.deterministic is true: the actor waits for the parameters "
            "after each turn"
        )
    if learner.checkpoint_every % turn != 0:
        raise ConfigError(
            f"learner.checkpoint_every is {learner.checkpoint_every}, expected a multiple of {turn}, the updates of a turn "
            "(actors.num_envs / learner.batch_size), because learner.deterministic is true: a run can only go on from the end "
            "of a turn"
        )
