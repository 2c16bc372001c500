"""Our LSTM core against `torch.nn.LSTMCell` in a Python loop, forward and backward, on one thread.

`python benchmarks/recurrent.py` prints a Markdown table. All are measured alternately, several times; the median counts. The
unit is this process's CPU time, so that other work on the machine disturbs less (it still takes its share of the caches).
`torch.nn.LSTM` stands beside them for comparison: it is faster, but has no resets.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from leco.models.lstm import LstmCore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31, help="how often each one is measured (default: 31)")
    parser.add_argument("--steps", type=int, default=96, help="length of the unroll (default: 96)")
    parser.add_argument("--batch", type=int, default=16, help="unrolls at once (default: 16)")
    parser.add_argument("--size", type=int, default=256, help="width of input and state (default: 256)")
    arguments = parser.parse_args()
    steps, batch, size = arguments.steps, arguments.batch, arguments.size
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"T={steps}, B={batch}, input {size}, hidden {size}, float32, one thread, PyTorch {torch.__version__}, "
        f"{platform.machine()}; CPU milliseconds for forward and backward, {arguments.repeats} repeats: median (least to most).\n"
    )
    print("| input needs a gradient | LSTMCell in a loop | leco, 1 % of steps start | torch.nn.LSTM | loop / leco |")
    print("|---|---|---|---|---|")
    for needs in (True, False):
        x_TBI = torch.randn(steps, batch, size, requires_grad=needs)
        loop, ours, fused = alternately(arguments.repeats, *contestants(x_TBI, size))
        ratios = [a / b for a, b in zip(loop, ours, strict=True)]
        cells = [spread([1000 * s for s in seconds], ".0f") for seconds in (loop, ours, fused)]
        print(f"| {'yes, as in the policy' if needs else 'no'} | {' | '.join(cells)} | {spread(ratios, '.2f')} |")


def contestants(x_TBI: Tensor, size: int) -> list[Callable[[], float]]:
    """Functions that run forward and backward once and return the seconds it took."""
    steps, batch, width = x_TBI.shape
    cell, core, lstm = nn.LSTMCell(width, size), LstmCore(width, size), nn.LSTM(width, size)
    start_TB, no_state = torch.rand(steps, batch) < 0.01, torch.zeros(batch, size)
    grad_TBH = torch.randn(steps, batch, size)

    def loop() -> Tensor:
        h_BH, c_BH, out = no_state, no_state, []
        for x_BI in x_TBI:
            h_BH, c_BH = cell(x_BI, (h_BH, c_BH))
            out.append(h_BH)
        return torch.stack(out)

    def ours() -> Tensor:
        out_TBH, *_ = core(x_TBI, start_TB, core.initial_state(batch))
        assert isinstance(out_TBH, Tensor)
        return out_TBH

    def fused() -> Tensor:
        out_TBH, _ = lstm(x_TBI)
        assert isinstance(out_TBH, Tensor)
        return out_TBH

    def timed(module: nn.Module, forward: Callable[[], Tensor]) -> Callable[[], float]:
        def once() -> float:
            module.zero_grad()
            x_TBI.grad = None
            begin = time.process_time()
            torch.autograd.backward(forward(), grad_TBH)
            return time.process_time() - begin

        once()  # warms up
        return once

    return [timed(cell, loop), timed(core, ours), timed(lstm, fused)]


def alternately(repeats: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Measures all in turn, each time beginning with another one; returns the seconds of each."""
    seconds: list[list[float]] = [[] for _ in measures]
    for turn in range(repeats):
        for i in range(len(measures)):
            which = (turn + i) % len(measures)
            seconds[which].append(measures[which]())
    return seconds


def spread(values: Sequence[float], form: str) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
