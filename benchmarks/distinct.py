"""How much faster the VQ-VAE trains on the distinct observations of a batch: `python benchmarks/distinct.py --help`.

One training step (encode, quantise, decode, three losses, backward) on all 16 x 96 observations, against one on the distinct
observations with their multiplicities, which gives the same gradients; finding the distinct ones is part of the latter. Both are
measured alternately, on one thread; the median of the ratios counts.

The observations are real: 16 unrolls of random play in MiniGrid-KeyCorridorS4R3-v0, recorded once with minigrid 3.2.0 as

    rng, views = np.random.default_rng(0), np.empty((16, 96, 7, 7, 3), np.uint8)
    for i in range(16):
        env = gymnasium.make("MiniGrid-KeyCorridorS4R3-v0")
        view = env.reset(seed=i)[0]["image"]
        for t in range(-30 * i, 96):  # each unroll begins elsewhere in its episode
            if t >= 0:
                views[i, t] = view
            view, _, ended, cut, _ = env.step(int(rng.integers(7)))
            view = (env.reset()[0] if ended or cut else view)["image"]
    np.savez_compressed("benchmarks/data/keycorridor_s4r3_16x96.npz", observation_BT=views)
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from leco.algo.dedup import distinct
from leco.algo.losses import reconstruction_loss
from leco.models.intrinsic import HashModule, build_hash_module
from leco.models.kinds.table import MINIGRID

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

DATA = Path(__file__).parent / "data" / "keycorridor_s4r3_16x96.npz"


def main() -> None:
    """Measures, and prints the ratio."""
    parser = argparse.ArgumentParser(description="One VQ-VAE training step on all observations, against distinct ones.")
    parser.add_argument("--repeats", type=int, default=15, help="how often the pair is measured (default: 15)")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with np.load(DATA) as data:
        observation_N = torch.from_numpy(data["observation_BT"]).flatten(0, 1)
    net = build_hash_module(MINIGRID, 7)

    def on_all() -> None:
        step(net, observation_N, None)

    def on_distinct() -> None:
        found = distinct(observation_N)
        step(net, found.observation_UO, found.multiplicity_U)

    for function in (on_all, on_distinct):  # the first call compiles kernels
        function()
    times = [(seconds(on_all), seconds(on_distinct)) for _ in range(repeats)]
    finding = statistics.median(seconds(lambda: distinct(observation_N)) for _ in range(repeats))
    found = distinct(observation_N)
    ratios = sorted(a / b for a, b in times)
    print(f"{len(observation_N)} observations, {int((found.multiplicity_U > 0).sum())} distinct, ", end="")
    print(f"padded to {len(found.multiplicity_U)}; found in {finding * 1e3:.2f} ms")
    print(f"step on all       {statistics.median(a for a, _ in times) * 1e3:8.1f} ms")
    print(f"step on distinct  {statistics.median(b for _, b in times) * 1e3:8.1f} ms")
    print(
        f"ratio             {statistics.median(ratios):8.2f}    ({ratios[0]:.2f} to {ratios[-1]:.2f}, {repeats} pairs)"
    )


def step(net: HashModule, observation_N: Tensor, weight_N: Tensor | None) -> None:
    """One training step but for the optimiser's; every loss is a mean over all observations."""
    net.zero_grad()
    z_NDHW, loss = net.bottleneck(net.encode(observation_N, weight_N), weight_N)
    picture = net.decode(z_NDHW, weight_N)
    loss = loss + reconstruction_loss(picture, net.target(observation_N), weight_N)
    loss.backward()


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
