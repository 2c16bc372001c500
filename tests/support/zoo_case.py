"""Small runs to make entries of the zoo from: on disk as the learner leaves them, but with networks that nobody trained."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from leco.checkpoint.state_file import save
from leco.config.toml import parse, to_toml
from leco.evaluation.trained import build_networks
from leco.learning.state import init
from leco.report.statistics import wilson

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TASK = "Empty-5x5"
COMMAND = "leco train --task Empty-5x5"
WALKS = (
    -9.0,
    0.0,
    1.5,
    -9.0,
    -9.0,
    -9.0,
    -9.0,
)  # logits: on, or to the right, which leads to the goal of an empty room
STANDS = (-9.0, -9.0, -9.0, 0.0, -9.0, -9.0, -9.0)
LEARNED_LINE = 30


def saved_run(
    folder: Path,
    *,
    updates: int = 40,
    lines: int = 50,
    bias: Sequence[float] | None = None,
    solved: int | None = None,
    **settings: Any,
) -> Path:
    """A run with one checkpoint.

    metrics.csv has a line for every 10 seconds and 1,000 frames; from LEARNED_LINE on 95 % of the episodes were solved.

    Args:
        folder: Is made.
        updates: Of the checkpoint.
        lines: Of metrics.csv.
        bias: The logits that the policy draws from, whatever it sees; without them those of fresh networks.
        solved: How many of 100 fresh episodes were, says evaluation.json; without it there is no such file.
        settings: Keys of the experiment.
    """
    experiment = parse("", {"task": TASK, **settings})
    torch.manual_seed(updates)
    networks = build_networks(experiment)
    state = init(networks)._replace(updates=updates)
    for name, tensor in state.intrinsic.items():
        if name.startswith("modulator_out"):  # it begins at zero
            tensor.normal_(0, 0.3)
    for name, tensor in state.running.items():
        if name.endswith(("running_mean", "running_var")):  # they begin at 0 and 1
            tensor.uniform_(0.5, 1.5)
    if bias is not None:
        state.policy["policy_head.weight"].zero_()
        state.policy["policy_head.bias"].copy_(torch.tensor(bias))
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(experiment))
    (folder / "versions.json").write_text(json.dumps([{"command": COMMAND, "torch": "2.13.0"}]))
    (folder / "metrics.csv").write_text(_metrics(lines))
    (folder / "checkpoints").mkdir()
    if solved is not None:
        (folder / "evaluation.json").write_text(json.dumps(_evaluation(updates, solved)))
    metadata = {"frames": 1000 * lines, "seconds": 10.0 * lines}
    save(folder / "checkpoints" / f"{updates:09d}.safetensors", state, metadata)
    return folder


def _evaluation(updates: int, solved: int) -> dict[str, Any]:
    low, high = wilson(solved, 100)
    found = {"updates": updates, "seed": 7, "greedy": False, "episodes": 100, "success": solved / 100}
    return found | {"success_low": low, "success_high": high}


def _metrics(lines: int) -> str:
    rows = [
        f"{1000 * n},{n},{10 * n},{50 * n},{0.95 if n >= LEARNED_LINE else 0.5},0.7,0.1" for n in range(1, lines + 1)
    ]
    return "\n".join(["frames,updates,seconds,episodes,success,r_ep,r_ta", *rows]) + "\n"
