"""Updates in float64 that several ranks make together: `torchrun --nproc-per-node N tests/support/ranks_case.py FOLDER`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from leco.algo import ranks
from leco.checkpoint.state_file import save
from leco.config.toml import parse
from leco.learning.state import TrainingState, init
from leco.learning.update import update
from leco.methods.table import find_method
from support.training_case import B, T, make_batch, networks

if TYPE_CHECKING:
    from leco.config.training import TrainingConfig
    from leco.learning.state import Batch

# Name of a method, its hash if it is another one, and a preset.
CASES = [
    *((name, None, preset) for preset in ("paper", "laptop") for name in ("no-int", "leco", "noveld", "agac")),
    ("leco", "vq-cells", "laptop"),
    ("leco-ae-lsh", None, "paper"),
    ("leco-naive", None, "laptop"),
    ("rnd", None, "paper"),
    ("ride", None, "laptop"),
]
UPDATES = 3


def case_name(method: str, hash_kind: str | None, preset: str) -> str:
    return "-".join(filter(None, (method, hash_kind, preset)))


def settings(method: str, preset: str) -> TrainingConfig:
    """A preset's, with parts of a small batch that no number of ranks divides."""
    training = parse("", {"task": "KeyCorridorS3R3", "method": method, "preset": preset}).training
    training = dataclasses.replace(training, alpha=0.3, policy_learning_rate=0.01)
    if preset == "paper":
        return training
    return dataclasses.replace(training, sequence_length=2, minibatches=2, epochs=2, decoder_samples=4)


def batch_of(seed: int) -> Batch:
    """With coarse codes too."""
    generator = torch.Generator().manual_seed(seed)
    return make_batch(seed)._replace(
        coarse_count_TBM=torch.randint(1, 4, (T, B, 1), generator=generator),
        coarse_code_TBM=torch.randint(0, 9, (T, B, 1), generator=generator),
    )


def trained(method: str, hash_kind: str | None, preset: str) -> tuple[TrainingState, dict[str, float]]:
    """The state after a few updates, and what the last one had to plot."""
    nets = networks(method, hash_kind)
    state = init(nets)
    state = state._replace(trust=torch.full_like(state.trust, 0.5))
    stats: dict[str, float] = {}
    for turn in range(UPDATES):
        state, stats = update(
            nets, state, batch_of(turn), find_method(method, hash_kind), settings(method, preset), progress=0.25
        )
    return state, stats


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    ranks.join()
    for case in CASES:
        state, stats = trained(*case)
        save(folder / f"{case_name(*case)}-{dist.get_rank()}.safetensors", state, stats)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
