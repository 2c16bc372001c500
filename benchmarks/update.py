"""What a training step costs, by method: `python benchmarks/update.py`.

One thread of torch's, interleaved, on a batch of 16 x 96 real observations of KeyCorridorS4R3 (benchmarks/data). First
processor time; goal: a LECO step costs at most 3.0 no-int steps. Then how long a step takes, with the hash in a thread beside
the policy, as it is, and with everything in turn. "Unrewarded" is a step before the task has first rewarded.

    python benchmarks/update.py --pictures 72 96 3 --unrolls 48 --repeats 1

measures a step of `leco` on random pictures, no two of which are equal, with the paper's settings: processor time and the most
memory that the process ever had. Each precision has processes of its own, which take turns; `--against FOLDER` adds another
checkout of leco.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the learner does

from dataclasses import replace

import numpy as np
import torch

import leco.learning.intrinsic_pass
from leco.config.toml import parse
from leco.learning.state import Batch, Networks, init
from leco.learning.update import update
from leco.methods.table import find_method
from leco.models.build import build
from leco.models.intrinsic import build_hash_module
from leco.models.kinds.minigrid import MiniGridPolicy
from leco.models.kinds.table import MINIGRID
from leco.telemetry.malloc import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parent / "data" / "keycorridor_s4r3_16x96.npz"
ACTIONS = 7
PAPER = parse('task = "KeyCorridorS3R3"').training
LAPTOP = replace(PAPER, inner_loss="full", decoder_samples=96)
WAYS = {  # method, settings, and whether the batch has a reward
    "no-int": ("no-int", PAPER, True),
    "vq-only": ("vq-only", PAPER, True),
    "leco, inner loss: policy gradient": ("leco", PAPER, True),
    "leco, inner loss: policy gradient, unrewarded": ("leco", PAPER, False),
    "leco, inner loss: whole": ("leco", replace(PAPER, inner_loss="full"), True),
    "leco, inner loss: whole, 96 decoded": ("leco", LAPTOP, True),
    "leco, inner loss: whole, 96 decoded, unrewarded": ("leco", LAPTOP, False),
}


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="how often each way is measured (default: 9)")
    parser.add_argument(
        "--pictures", type=int, nargs=3, metavar=("HEIGHT", "WIDTH", "CHANNELS"), help="a step on pictures instead"
    )
    parser.add_argument("--unrolls", type=int, default=16, help="of the pictures' batch (default: 16)")
    parser.add_argument("--steps", type=int, default=96, help="of an unroll of pictures (default: 96)")
    parser.add_argument("--threads", type=int, default=1, help="torch's, for pictures (default: 1)")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, for pictures")
    parser.add_argument("--alone", metavar="PRECISION", help=argparse.SUPPRESS)  # what a process of `pictures` is told
    given = parser.parse_args()
    if given.alone:
        one_step(given)
    elif given.pictures:
        pictures(given)
    else:
        minigrid(given.repeats)


def minigrid(repeats: int) -> None:
    """The tables of MiniGrid."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as the learner does
    torch.manual_seed(0)
    networks = Networks(MiniGridPolicy(ACTIONS), build_hash_module(MINIGRID, ACTIONS))
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(repeats + 1):
        for name, (method, settings, rewarded) in WAYS.items():
            nets = networks if method != "no-int" else Networks(networks.policy, None)
            state, batch = init(nets), real_batch(rewarded=rewarded)
            begin = time.process_time()
            update(nets, state, batch, find_method(method), settings)
            if turn > 0:  # the first turn warms up
                seconds[name].append(time.process_time() - begin)
    print("# A training step\n")
    print(f"`python benchmarks/update.py`, one thread of {os.cpu_count()} CPUs, processor time, {repeats} turns.\n")
    print("| method | ms, median (least to most) | no-int steps |")
    print("|---|---|---|")
    plain = seconds["no-int"]
    for name, each in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(each, plain, strict=True))
        print(f"| {name} | {spread(each)} | {ratio:.2f} |")
    beside(networks, repeats)


def beside(networks: Networks, repeats: int) -> None:
    """How long a step takes with the hash beside the policy, and in turn."""
    aside = leco.learning.intrinsic_pass._HASH_THREAD  # noqa: SLF001  # what is compared
    ways = {name: way for name, way in WAYS.items() if way[0] != "no-int"}
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ways}
    for turn in range(repeats + 1):
        for name, (method, settings, rewarded) in ways.items():
            for executor, found in zip((aside, InTurn()), seconds[name], strict=True):
                leco.learning.intrinsic_pass._HASH_THREAD = executor  # type: ignore[assignment]  # noqa: SLF001
                state, batch = init(networks), real_batch(rewarded=rewarded)
                begin = time.perf_counter()
                update(networks, state, batch, find_method(method), settings)
                if turn > 0:
                    found.append(time.perf_counter() - begin)
    leco.learning.intrinsic_pass._HASH_THREAD = aside  # noqa: SLF001
    print(f"\nHow long a step takes, {repeats} turns, load average {os.getloadavg()[0]:.1f}:\n")
    print("| method | ms, hash beside the policy | ms, in turn | times as fast |")
    print("|---|---|---|---|")
    for name, (together, apart) in seconds.items():
        ratio = statistics.median(b / a for a, b in zip(together, apart, strict=True))
        print(f"| {name} | {spread(together)} | {spread(apart)} | {ratio:.2f} |")


def pictures(given: argparse.Namespace) -> None:
    """The table of pictures."""
    here = Path(__file__).parents[1]
    ways = {"float32": (here, "float32"), "auto": (here, "auto")}
    if given.against is not None:
        ways = {given.against.name: (given.against, "its own"), **ways}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(given.repeats):
        for name, (folder, precision) in ways.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--alone", precision]
            printed = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(folder)}, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
            found[name].append(json.loads(printed))
    frames, shape = given.unrolls * given.steps, " x ".join(map(str, given.pictures))
    print(f"# A training step on {given.unrolls} x {given.steps} pictures of {shape}\n")
    print(f"`python {' '.join(sys.argv)}`, {given.threads} threads of {os.cpu_count()} CPUs, {given.repeats} turns.\n")
    print("| way | s of processor time, median (least to most) | of it system | ms a frame | peak GB |")
    print("|---|---|---|---|---|")
    for name, each in found.items():
        seconds = [one["user"] + one["system"] for one in each]
        median, system = statistics.median(seconds), statistics.median(one["system"] for one in each)
        peak = max(one["peak"] for one in each)
        print(
            f"| {name} | {median:.1f} ({min(seconds):.1f} to {max(seconds):.1f}) | {system:.1f} | {median / frames * 1e3:.1f} "
            f"| {peak:.2f} |"
        )


def one_step(given: argparse.Namespace) -> None:
    """A step in this process: prints its seconds and the process's peak memory."""
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    torch.manual_seed(0)
    shape, actions = tuple(given.pictures), 9
    settings = PAPER if given.alone == "its own" else replace(PAPER, precision=given.alone)
    networks = build(find_method("leco"), shape, actions)
    state, batch = init(networks), picture_batch(shape, given.steps, given.unrolls, actions)
    state = state._replace(intrinsic={name: each + 1e-3 for name, each in state.intrinsic.items()})  # an awakened V^e
    batch = batch._replace(core_state=networks.policy.initial_state(given.unrolls))
    before = resource.getrusage(resource.RUSAGE_SELF)
    update(networks, state, batch, find_method("leco"), settings)
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = {"user": after.ru_utime - before.ru_utime, "system": after.ru_stime - before.ru_stime}
    print(json.dumps(spent | {"peak": after.ru_maxrss / 1e6}))


class InTurn(Executor):
    """Does at once what it is given, in the thread that gives it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As an executor does."""
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def spread(seconds: list[float]) -> str:
    """Median and range, in milliseconds."""
    return f"{statistics.median(seconds) * 1e3:.0f} ({min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f})"


def real_batch(*, rewarded: bool) -> Batch:
    """Observations as they were seen in random play; everything else made up, since no cost depends on it but on a reward."""
    observation_TBO = torch.from_numpy(np.load(DATA)["observation_BT"]).transpose(0, 1).contiguous()
    batch = batch_around(observation_TBO, ACTIONS, rewarded=rewarded)
    return batch._replace(core_state=MiniGridPolicy(ACTIONS).initial_state(observation_TBO.shape[1]))


def picture_batch(shape: tuple[int, ...], steps: int, unrolls: int, actions: int) -> Batch:
    """Random pictures, with a reward."""
    generator = torch.Generator().manual_seed(0)
    observation_TBO = torch.randint(256, (steps + 1, unrolls, *shape), dtype=torch.uint8, generator=generator)
    return batch_around(observation_TBO, actions, rewarded=True)


def batch_around(observation_TBO: torch.Tensor, actions: int, *, rewarded: bool) -> Batch:
    """What else is in a batch, but the core's state."""
    steps, batch = len(observation_TBO) - 1, observation_TBO.shape[1]
    generator = torch.Generator().manual_seed(0)
    reward_TB = torch.zeros(steps, batch)
    reward_TB[-1, 0] = float(rewarded)
    return Batch(
        observation_TBO=observation_TBO,
        start_TB=torch.rand(steps + 1, batch, generator=generator) < 1 / 480,
        action_TB=torch.randint(actions, (steps, batch), generator=generator),
        reward_TB=reward_TB,
        behaviour_logits_TBA=torch.zeros(steps, batch, actions),
        previous_action_B=torch.zeros(batch, dtype=torch.int64),
        previous_reward_B=torch.zeros(batch),
        core_state=torch.empty(0),
        count_TB=torch.randint(1, 9, (steps, batch), generator=generator),
    )


if __name__ == "__main__":
    main()
