"""What updates cost on a GPU, or on several: `python benchmarks/gpu.py`, `torchrun --nproc-per-node N benchmarks/gpu.py`.

One table, of batches as the presets have them: MiniGrid's in epochs of minibatches (laptop) and in a single pass (paper), real
observations of KeyCorridorS4R3, and pixels as DMLab has them, made up and all distinct. Each update is rewarded, so that all of
LECO's work is done; nothing is played, so this is how fast a learner could be if actors never kept it waiting.

`kernels` is how many an update starts, and `busy` the share of its time in which they run: what is missing to 100 % are gaps
between them, most of them in the loop over time of the modulator's tangents. `memory` is the most that torch held, on rank 0.
With --device cpu these three are empty.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from leco.algo.ranks import rank, world_size
from leco.config.experiment import Experiment, method_of, task_of
from leco.config.toml import parse
from leco.learning.state import Batch, init
from leco.learning.update import update
from leco.models.build import build
from leco.telemetry.malloc import keep_freed_memory
from services.learner.device import find_device, joins_others
from services.learner.followers import join, on_device

DATA = Path(__file__).parent / "data" / "keycorridor_s4r3_16x96.npz"
MINIGRID, PIXELS = "KeyCorridorS4R3", "lasertag_three_opponents_small"
WAYS = {
    f"{task}, {preset}, {method}": {"task": task, "preset": preset, "method": method}
    for task, preset in ((MINIGRID, "laptop"), (MINIGRID, "paper"), (PIXELS, "paper"))
    for method in ("no-int", "leco")
}


class Cost(NamedTuple):
    """Of an update: seconds, kernels and the share of time in which they run (None on processors), and bytes."""

    seconds: float
    kernels: float | None
    busy: float | None
    memory: int


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto (default)")
    parser.add_argument("--updates", type=int, default=20, help="how many of each are measured (default: 20)")
    parser.add_argument("--only", default="", help="those whose names have this in them, for example minigrid's: Key")
    given = parser.parse_args()
    device = torch.device(find_device(given.device))
    if joins_others():
        join(device)
    keep_freed_memory()
    say(f"# Updates on {name_of(device)}, {world_size()} of it, torch {torch.__version__}\n")
    say("| batch | frames/s | ms an update | kernels | busy | memory |")
    say("|---|---|---|---|---|---|")
    for name, way in WAYS.items():
        if given.only in name:
            experiment = parse("", way)
            cost = measured(experiment, device, given.updates)
            frames = experiment.learner.batch_size * experiment.actors.unroll_length
            told = (
                ("-", "-", "-") if cost.busy is None else (f"{cost.kernels:,.0f}", f"{cost.busy:.0%}", gigabytes(cost))
            )
            say(f"| {name} | {frames / cost.seconds:,.0f} | {1e3 * cost.seconds:.1f} | {' | '.join(told)} |")
    if joins_others():
        dist.destroy_process_group()


def measured(experiment: Experiment, device: torch.device, updates: int) -> Cost:
    """What an update costs, the first three left out: they choose kernels and take memory."""
    task, method = task_of(experiment), method_of(experiment)
    torch.manual_seed(0)
    networks = build(method, task.layout, task.num_actions, experiment.hash, experiment.network)
    networks = on_device(networks, device)
    batch, state = (
        made_batch(experiment, networks.policy.initial_state(experiment.learner.batch_size), device),
        init(networks),
    )

    def some(count: int) -> float:
        nonlocal state
        wait_for(device)
        begin = time.perf_counter()
        for _ in range(count):
            state, _ = update(networks, state, batch, method, experiment.training)
        wait_for(device)
        return (time.perf_counter() - begin) / count

    some(3)
    if device.type != "cuda":
        return Cost(some(updates), None, None, 0)
    torch.cuda.reset_peak_memory_stats(device)
    seconds = some(updates)
    # Apart, because the profiler slows what it looks at: it is asked only how long kernels run.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        some(3)
    events = profile.key_averages()
    busy = sum(each.self_device_time_total for each in events) / 3e6
    return Cost(
        seconds, sum(each.count for each in events) / 3, busy / seconds, torch.cuda.max_memory_allocated(device)
    )


def made_batch(experiment: Experiment, core_state: torch.Tensor, device: torch.device) -> Batch:
    """Observations of the task's kind; everything else made up, since no cost depends on it but on a reward."""
    task, steps, size = task_of(experiment), experiment.actors.unroll_length, experiment.learner.batch_size
    generator = torch.Generator().manual_seed(0)
    shape = (steps + 1, size)
    start_TB = torch.rand(shape, generator=generator) < 1 / 480
    batch = Batch(
        observation_TBO=observations(experiment.task, shape, task.observation_shape, generator),
        start_TB=start_TB,
        action_TB=torch.randint(task.num_actions, (steps, size), generator=generator),
        reward_TB=(torch.rand(steps, size, generator=generator) < 0.01).float(),
        behaviour_logits_TBA=torch.zeros(steps, size, task.num_actions),
        previous_action_B=torch.zeros(size, dtype=torch.int64),
        previous_reward_B=torch.zeros(size),
        core_state=core_state,
        count_TB=torch.randint(1, 9, (steps, size), generator=generator),
        coarse_count_TBM=torch.randint(1, 9, (steps, size, 1), generator=generator),
        coarse_code_TBM=torch.randint(0, 2**31, (steps, size, 1), generator=generator),
    )
    return Batch(*(each if each is None else each.to(device) for each in batch))  # type: ignore[arg-type]


def observations(
    task: str, shape: tuple[int, int], observation: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    """[T + 1, B, O...]: what random play saw, in turn, as often as it takes; or noise."""
    if task != MINIGRID:
        return torch.randint(256, (*shape, *observation), generator=generator, dtype=torch.uint8)
    seen_BTO = torch.from_numpy(np.load(DATA)["observation_BT"])
    steps, size = shape
    repeated = seen_BTO.repeat(-(-size // len(seen_BTO)), -(-steps // seen_BTO.shape[1]), 1, 1, 1)
    return repeated[:size, :steps].transpose(0, 1).contiguous()


def name_of(device: torch.device) -> str:
    """Of a GPU; of processors how many."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} processors"


def wait_for(device: torch.device) -> None:
    """Until the GPU has done what it was given, and all ranks are here."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if joins_others():
        dist.barrier()


def gigabytes(cost: Cost) -> str:
    """Of memory."""
    return f"{cost.memory / 2**30:.2f} GB"


def say(line: str) -> None:
    """On rank 0."""
    if rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
