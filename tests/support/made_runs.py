"""Made-up run folders for tests, as `leco train`, `leco sweep` and `leco eval` leave them."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from leco.config.toml import parse, to_toml
from leco.evaluation.recording import Recording, recording_name, write_recording
from services.learner.metrics_logger import COLUMNS
from support.made_episodes import episode, metadata

if TYPE_CHECKING:
    from pathlib import Path

START: dict[str, str | int] = {
    "started": "2026-11-16T00:00:00Z",
    "command": "leco train --task Empty-5x5",
    "python": "3.11.7",
    "leco": "0.1.0",
    "processor": "A Processor",
    "processors": 2,
    "memory_bytes": 24 * 2**30,
    "machine": "x86_64",
}


def make_run(
    folder: Path,
    *,
    method: str = "leco",
    task: str = "Empty-5x5",
    seed: int = 1,
    lines: int = 12,
    settings: dict[str, Any] | None = None,
    recordings: int = 2,
) -> Path:
    """A run with curves that depend on method and seed, and recordings of so many checkpoints."""
    folder.mkdir(parents=True)
    experiment = parse("", {"task": task, "method": method, "seed": seed, "frames": 1_000_000, **(settings or {})})
    (folder / "config.toml").write_text(to_toml(experiment))
    (folder / "versions.json").write_text(json.dumps([START]))
    random = np.random.default_rng([seed, len(method)])
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for n in range(1, lines + 1):
            writer.writerow(_line(n, lines, method, random))
    for n in range(recordings):
        updates = 300 * (n + 1)
        counted = 9 if method != "no-int" else 0
        episodes = tuple(episode(10 * n + i, 12 + i, level=i, width=counted) for i in range(3))
        made = Recording(metadata(method=method, updates=updates, frames=updates * 1536), episodes)
        write_recording(folder / "recordings" / recording_name(made.metadata), made)
    return folder


def _line(n: int, lines: int, method: str, random: np.random.Generator) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    success = min(1.0, n / lines + 0.1 * random.random())
    row |= {"frames": 30_720 * n, "updates": 20 * n, "seconds": 9.5 * n, "frames_per_second": 3000 + 10 * n}
    row |= {"policy_lag": 2, "entropy": 1.5, "r_e": 0.1, "queue": 16, "episodes": 100 * n}
    if n > 1:  # no episode has ended before
        row |= {"success": f"{success:.6g}", "return": f"{0.9 * success:.6g}", "length": 20}
    if method != "no-int":
        row |= {"r_ep": f"{0.5 + 0.3 * n / lines:.6g}", "new_code_share": 0.3, "r_i": 0.4}
    if method == "leco":
        row |= {"r_ta": f"{-0.4 * n / lines:.6g}"}
    return row


def make_sweep(folder: Path) -> Path:
    """Two methods, two tasks, three seeds; and sweep.toml."""
    for task in ("Empty-5x5", "DoorKey-5x5"):
        for method in ("leco", "no-int"):
            for seed in (1, 2, 3):
                first = (task, seed) == ("Empty-5x5", 1)
                name = f"{task}-{method}-{seed}"
                make_run(folder / name, method=method, task=task, seed=seed, recordings=2 if first else 0)
    (folder / "sweep.toml").write_text('command = "leco sweep --tasks Empty-5x5,DoorKey-5x5"\n')
    (folder / "notes").mkdir()
    return folder
