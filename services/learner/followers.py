"""Several ranks of one learner. Rank 0 is the learner of the README; the others know no actor and no file, and compute with it.

Rank 0 says what to do in JSON, by a group of gloo's own in which the others wait for as long as nothing is played. Batches go by
the group that updates use too, from GPU to GPU if there are any. Nothing is pickled.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import structlog
import torch
import torch.distributed as dist

from leco.algo import ranks
from leco.algo.ranks import rank, take_from_first, world_size
from leco.checkpoint.state_file import dumps, loads
from leco.config.experiment import ConfigError, method_of, task_of
from leco.config.toml import parse, to_toml
from leco.learning.policy_pass import reuse_of
from leco.learning.state import Batch, Networks, TrainingState, init
from leco.learning.update import update
from leco.models.build import build
from services.parent import end_with_parent

if TYPE_CHECKING:
    from leco.config.experiment import Experiment

log = structlog.get_logger("leco.learner")

UPDATE_SECONDS = 600  # in which a sum of all ranks must come about
A_YEAR = dt.timedelta(days=365)
MAX_MESSAGE_BYTES = 2**33


class LostRankError(OSError):
    """Another rank has gone, or does not answer."""


class Followers:
    """What rank 0 says to the others; nothing, if it is alone."""

    def __init__(self) -> None:
        self._words = _Words() if world_size() > 1 else None

    def begin(self, experiment: Experiment, state: TrainingState) -> None:
        """The run, and where training begins or goes on."""
        if self._words is not None:
            self._words.send(to_toml(experiment).encode())
            self._words.send(dumps(state, {}))

    def update(self, batch: Batch, progress: float) -> None:
        """They are to compute the update that this rank is about to compute."""
        if self._words is None:
            return
        tensors = {name: x for name, x in batch._asdict().items() if x is not None}
        shapes = {name: [str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in tensors.items()}
        self._words.send(json.dumps({"progress": progress, "batch": shapes}).encode())
        take_from_first(list(tensors.values()))

    def decide(self, *, kept: bool) -> None:
        """Whether the update is kept."""
        if self._words is not None:
            self._words.send(json.dumps({"kept": kept}).encode())

    def end(self) -> None:
        """There is no more."""
        if self._words is not None:
            self._words.send(b"{}")


def follow(device: torch.device) -> None:
    """The other ranks: updates, until rank 0 says that there are no more."""
    words = _Words()
    for number in (signal.SIGTERM, signal.SIGINT):  # all ranks get one; it is rank 0 that ends its update and saves
        signal.signal(number, signal.SIG_IGN)
    experiment = parse(words.receive().decode())
    torch.manual_seed(experiment.seed)  # as on rank 0
    task, method = task_of(experiment), method_of(experiment)
    networks = on_device(build(method, task.layout, task.num_actions, experiment.hash, experiment.network), device)
    state, _ = loads(words.receive(), init(networks))
    log.info("following", rank=rank(), ranks=world_size(), device=str(device), pid=os.getpid())
    while told := json.loads(words.receive()):
        batch = _receive_batch(told["batch"], device)
        after, _ = update(networks, state, batch, method, experiment.training, progress=told["progress"])
        kept = json.loads(words.receive())["kept"]
        state = after if kept else state._replace(updates=state.updates + 1)
    log.info("stopped", rank=rank())


def join(device: torch.device) -> None:
    """Joins the other ranks; torchrun's variables say where they are."""
    end_with_parent()  # torchrun
    # A handler in Python would not run while this waits for a rank that does not come.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    limit = dt.timedelta(seconds=UPDATE_SECONDS)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=limit, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=limit)
    ranks.join()


def check_shares(experiment: Experiment, ranks: int) -> None:
    """Refuses an experiment of which some of so many ranks would have nothing to compute.

    Raises:
        ConfigError: what is too small.
    """
    size, training = experiment.learner.batch_size, experiment.training
    reuse = reuse_of(training, experiment.actors.unroll_length)
    sequences = size * (experiment.actors.unroll_length // reuse.sequence_length)
    smallest = sequences // min(training.minibatches, sequences)
    if min(size, smallest) < ranks:
        raise ConfigError(
            f"there are {ranks} ranks, but learner.batch_size is {size}, of which the smallest minibatch has {smallest} "
            "sequences: expected at least as many of both as ranks; take fewer ranks, or larger batches"
        )


def on_device(networks: Networks, device: torch.device) -> Networks:
    """The same networks, there."""
    return Networks(*(net if net is None else net.to(device) for net in networks))  # type: ignore[arg-type]


def _receive_batch(shapes: dict[str, Any], device: torch.device) -> Batch:
    tensors = {
        name: torch.empty(shape, dtype=getattr(torch, type_), device=device) for name, (type_, shape) in shapes.items()
    }
    take_from_first(list(tensors.values()))
    return Batch(**{name: tensors.get(name) for name in Batch._fields})  # type: ignore[arg-type]


class _Words:
    """Bytes from rank 0 to all others, which wait for them as long as it takes."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo", timeout=A_YEAR)

    def send(self, data: bytes) -> None:
        self._broadcast(torch.tensor([len(data)]))
        self._broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def receive(self) -> bytes:
        [length] = self._broadcast(torch.tensor([0])).tolist()
        if not 0 < length <= MAX_MESSAGE_BYTES:
            raise LostRankError(
                f"rank 0 says that its next message has {length} bytes: it is no learner of this version"
            )
        return self._broadcast(torch.empty(length, dtype=torch.uint8)).numpy().tobytes()

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            dist.broadcast(tensor, 0, group=self._group)
        except RuntimeError as error:  # gloo's own
            raise LostRankError(f"another rank has gone, or does not answer ({str(error).splitlines()[0]})") from error
        return tensor
