"""The modulator's gradient by one forward-mode pass, against double back-propagation: `python benchmarks/bilevel.py`.

Each contestant computes the same thing from the same batch of 16 x 96 real observations (benchmarks/data): the gradient of the
outer loss (eq. 4) at theta', one Adam step away from theta, with respect to what the modulator adds to each reward. The intrinsic
module stays out of it. Before anything is timed, all of them must agree: to 1e-9 of the norm in float64, to 1e-3 in float32.

An *ordinary step* is what a method without modulator does: the policy forward at theta, V-trace, losses, backward, Adam. What
the modulator's gradient adds to it:

    leco     inner loss "policy-gradient": a backward pass of that term alone, and a virtual Adam step; inner loss "whole":
             nothing of the kind, the real step serves. Then forward and backward at theta', Adam's diagonal, a forward-mode
             pass at theta that reuses the hidden states of the first, and the backward pass of sum(w_A A + w_v v) through V-trace
    careful  double back-propagation as a careful person writes it. Instead of leco's core a loop that autograd can
             differentiate twice: input projections in one product, the loop over the recurrent part only, masks only where an
             episode starts. The gradient with create_graph=True (for "whole" it also serves the real step; for
             "policy-gradient" it is one more backward pass), Adam's step by hand, forward at theta', backward through all of it
    plain    the same with everything of the LSTM inside the loop, and masks at every step

The optimiser's step of the modulator is in none of them. "Every" observation goes through the encoder, or only each distinct one,
as `leco.learning.update` does; a contestant is compared with leco on the same observations. What is beyond an ordinary step is
given twice: beyond the contestant's own ordinary step, which for double back-propagation has a slower core, and beyond leco's,
which is what a learner would really pay.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from update import ACTIONS, real_batch

from leco.algo.dedup import distinct
from leco.algo.losses import entropy, log_prob
from leco.algo.meta import meta_gradient_weights, outer_loss
from leco.algo.optim import AdamState, adam, adam_jacobian_diag
from leco.algo.vtrace import VTrace, vtrace
from leco.config.toml import parse
from leco.models.kinds.minigrid import MiniGridPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leco.config.training import TrainingConfig
    from leco.learning.state import Batch

    Parameters = Mapping[str, Tensor]
    Hidden = tuple[Tensor, ...] | None
    Forward = Callable[
        [Parameters, Hidden], tuple[Tensor, Tensor, Hidden]
    ]  # logits of T actions, values of T+1 observations
    Step = Callable[[], Tensor]

InnerLoss = Literal["policy-gradient", "full"]
INNER_LOSSES: tuple[InnerLoss, ...] = ("policy-gradient", "full")
VIEWS = ("every", "distinct")
CORES = ("leco", "careful", "plain")
FASTER = 3.0
# Every tensor of a page or more is a mapping of its own, which goes back to the system when it is freed, so that what is
# resident is what is used. A loop over time makes many tensors of 16 KB: in the heap they would leave holes.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_MMAP_MAX_": "1000000", "MALLOC_TRIM_THRESHOLD_": "0"}


class Problem(NamedTuple):
    """What all contestants are given. r_ta_TB is what the modulator says, advantage_e_TB are the task's own advantages."""

    network: MiniGridPolicy
    parameters: dict[str, Tensor]
    moments: AdamState
    batch: Batch
    r_ta_TB: Tensor
    advantage_e_TB: Tensor
    settings: TrainingConfig


class Inner(NamedTuple):
    """The policy's losses at theta, and what they are made of."""

    gradient_loss: Tensor
    whole: Tensor
    log_pi_TB: Tensor
    trace: VTrace
    hidden: Hidden


def main() -> None:
    """Checks that all agree, measures time and memory, prints Markdown."""
    parser = argparse.ArgumentParser(
        description="The modulator's gradient: forward mode against double back-propagation."
    )
    parser.add_argument("--turns", type=int, default=9, help="how often each is timed (default: 9)")
    parser.add_argument("--children", type=int, default=3, help="how often memory is measured (default: 3)")
    parser.add_argument("--measure", nargs=3, metavar="WHAT", help=argparse.SUPPRESS)  # what a child is asked
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.measure:
        print(*measure(*arguments.measure))
        return
    print("# The modulator's gradient, against double back-propagation\n")
    print(
        f"`python benchmarks/bilevel.py`: T=95, B=16, one thread of {os.cpu_count()} CPUs, which other work shares, PyTorch "
        f"{torch.__version__}, {platform.machine()}. Goals: at least {FASTER:.0f} times as fast, at most a third of the memory.\n"
    )
    for inner_loss in INNER_LOSSES:
        agree(inner_loss)
        print_times(inner_loss, arguments.turns)
        print_memory(inner_loss, arguments.children)


def make_problem(inner_loss: InnerLoss, dtype: torch.dtype = torch.float32) -> Problem:
    """The same numbers in any dtype. Adam remembers something of every element, because sqrt(v) has no derivative at 0."""
    torch.manual_seed(0)
    network = MiniGridPolicy(ACTIONS)
    named = {name: p.detach() for name, p in network.named_parameters()}
    random = {name: torch.randn_like(p) for name, p in named.items()}
    moments = AdamState(
        {name: (1e-3 * r).to(dtype) for name, r in random.items()},
        {name: (1e-6 * (0.1 + r * r)).to(dtype) for name, r in random.items()},
        steps=100,
    )
    batch = real_batch(rewarded=True)
    batch = batch._replace(
        reward_TB=torch.rand(batch.reward_TB.shape).to(dtype),
        behaviour_logits_TBA=batch.behaviour_logits_TBA.to(dtype),
        previous_reward_B=batch.previous_reward_B.to(dtype),
        core_state=batch.core_state.to(dtype),
    )
    return Problem(
        network.to(dtype),
        {name: p.to(dtype) for name, p in named.items()},
        moments,
        batch,
        torch.randn(batch.reward_TB.shape).tanh().to(dtype),
        torch.randn(batch.reward_TB.shape).to(dtype),
        replace(parse('task = "KeyCorridorS3R3"').training, inner_loss=inner_loss),
    )


def make_forward(problem: Problem, core: str, view: str) -> Forward:
    """The policy on this batch, with leco's core or with one that can be differentiated twice."""
    network, batch = problem.network, problem.batch
    start_TB, observation, index_TB = batch.start_TB, batch.observation_TBO, None
    if view == "distinct":
        found = distinct(observation.flatten(0, 1))
        observation, index_TB = found.observation_UO, found.index_N.view(start_TB.shape)
    unused_TB = torch.zeros(start_TB.shape)

    def leco(parameters: Parameters, known: Hidden) -> tuple[Tensor, Tensor, Hidden]:
        inputs = (observation, start_TB, unused_TB, unused_TB, batch.core_state)
        output = functional_call(network, dict(parameters), inputs, {"index_TB": index_TB, "hidden": known})
        return output.logits_TBA[:-1], output.value_TB, output.hidden

    loop = careful_lstm if core == "careful" else plain_lstm
    image_NCHW = observation.flatten(0, -4).permute(0, 3, 1, 2).to(batch.reward_TB.dtype)

    def twice(parameters: Parameters, _known: Hidden) -> tuple[Tensor, Tensor, Hidden]:
        encoder = {name.removeprefix("encoder."): p for name, p in parameters.items() if name.startswith("encoder.")}
        feature_NF = functional_call(network.encoder, encoder, (image_NCHW,))
        h_TBH = loop(parameters, feature_NF, index_TB, start_TB, batch.core_state)
        logits_TBA = torch.nn.functional.linear(h_TBH, parameters["policy_head.weight"], parameters["policy_head.bias"])
        value_TB1 = torch.nn.functional.linear(h_TBH, parameters["value_head.weight"], parameters["value_head.bias"])
        return logits_TBA[:-1], value_TB1.squeeze(2), None

    return leco if core == "leco" else twice


def careful_lstm(
    parameters: Parameters, feature_NF: Tensor, index_TB: Tensor | None, start_TB: Tensor, state: Tensor
) -> Tensor:
    """Everything that need not be in the loop is outside of it. Returns h of every step."""
    gates_N = torch.nn.functional.linear(feature_NF, parameters["core.weight_ih.0"], parameters["core.bias.0"])
    if index_TB is not None:
        gates_N = gates_N.index_select(0, index_TB.flatten())
    gates_TB4H, weight_H4H = gates_N.view(*start_TB.shape, -1), parameters["core.weight_hh.0"].t()
    (h_BH, c_BH), outputs = state[0], []
    resets, alive_TB1 = start_TB.any(1).tolist(), (~start_TB).to(gates_TB4H.dtype).unsqueeze(2)
    for gates_x, reset, alive_B1 in zip(gates_TB4H, resets, alive_TB1, strict=True):
        if reset:
            h_BH, c_BH = h_BH * alive_B1, c_BH * alive_B1
        i, f, g, o = torch.addmm(gates_x, h_BH, weight_H4H).chunk(4, 1)
        c_BH = torch.addcmul(f.sigmoid() * c_BH, i.sigmoid(), g.tanh())
        h_BH = o.sigmoid() * c_BH.tanh()
        outputs.append(h_BH)
    return torch.stack(outputs)


def plain_lstm(
    parameters: Parameters, feature_NF: Tensor, index_TB: Tensor | None, start_TB: Tensor, state: Tensor
) -> Tensor:
    """One step after the other, as in a textbook. Returns h of every step."""
    x_NF = feature_NF if index_TB is None else feature_NF[index_TB.flatten()]
    weight_ih, weight_hh = parameters["core.weight_ih.0"], parameters["core.weight_hh.0"]
    (h_BH, c_BH), outputs = state[0], []
    for x_BF, start_B in zip(x_NF.view(*start_TB.shape, -1), start_TB, strict=True):
        alive_B1 = (~start_B).to(x_BF.dtype).unsqueeze(1)
        gates = x_BF @ weight_ih.t() + (h_BH * alive_B1) @ weight_hh.t() + parameters["core.bias.0"]
        i, f, g, o = gates.chunk(4, 1)
        c_BH = f.sigmoid() * (c_BH * alive_B1) + i.sigmoid() * g.tanh()
        h_BH = o.sigmoid() * c_BH.tanh()
        outputs.append(h_BH)
    return torch.stack(outputs)


def inner(problem: Problem, forward: Forward, policy: Parameters, r_ta_TB: Tensor, *, detach: bool) -> Inner:
    """The policy's losses; without `detach` they can be differentiated through the rewards too."""
    batch, settings = problem.batch, problem.settings
    logits_TBA, value_TB, hidden = forward(policy, None)
    log_pi_TB = log_prob(logits_TBA, batch.action_TB)
    trace = vtrace(
        log_rho_TB=log_pi_TB - log_prob(batch.behaviour_logits_TBA, batch.action_TB),
        reward_TB=batch.reward_TB + settings.alpha * settings.lambda_ * r_ta_TB,
        discount_TB=settings.gamma * (~batch.start_TB[1:]).to(value_TB.dtype),
        value_TB=value_TB[:-1],
        bootstrap_B=value_TB[-1],
    )
    weight_TB, target_TB = trace.rho_TB * trace.advantage_TB, trace.target_TB
    if detach:
        weight_TB, target_TB = weight_TB.detach(), target_TB.detach()
    gradient_loss = -(weight_TB * log_pi_TB).mean()
    critic_loss = 0.5 * (value_TB[:-1] - target_TB).square().mean()
    whole = gradient_loss + critic_loss - settings.entropy_cost * entropy(logits_TBA)
    return Inner(gradient_loss, whole, log_pi_TB, trace, hidden)


def ordinary(problem: Problem, forward: Forward) -> Tensor:
    """A step without modulator; returns a parameter after it."""
    policy = leaves(problem.parameters)
    said = inner(problem, forward, policy, problem.r_ta_TB, detach=True)
    after, _ = real_step(problem, policy, gradients(said.whole, policy))
    return after["policy_head.bias"]


def by_forward_mode(problem: Problem, forward: Forward) -> Tensor:
    """leco's way, in the order of `leco.learning.update`."""
    policy, r_ta_TB = leaves(problem.parameters), problem.r_ta_TB.clone().requires_grad_()
    said = inner(problem, forward, policy, r_ta_TB, detach=True)
    virtual = problem.settings.inner_loss == "policy-gradient"
    slopes = gradients(said.whole, policy, keep=virtual)
    after, moments = real_step(problem, policy, slopes)
    if virtual:
        slopes = gradients(said.gradient_loss, policy)
        after, moments = real_step(problem, policy, slopes)
    settings = problem.settings

    def judged(parameters: Parameters, known: Hidden = None) -> tuple[Tensor, Tensor]:
        logits_TBA, value_TB, _ = forward(parameters, known)
        return logits_TBA, value_TB[:-1]

    weights = meta_gradient_weights(
        judged,
        policy,
        after,
        adam_jacobian_diag(
            slopes, moments, learning_rate=settings.policy_learning_rate, betas=settings.policy_betas, eps=settings.eps
        ),
        jvp_forward=partial(judged, known=said.hidden),
        action_TB=problem.batch.action_TB,
        log_pi_TB=said.log_pi_TB.detach(),
        rho_TB=said.trace.rho_TB,
        advantage_e_TB=problem.advantage_e_TB,
    )
    outer = (weights.advantage_TB * said.trace.advantage_TB).sum()
    if not virtual:
        outer = outer + (weights.target_TB * said.trace.target_TB).sum()
    return torch.autograd.grad(outer, r_ta_TB)[0]


def by_double_backpropagation(problem: Problem, forward: Forward) -> Tensor:
    """The same, by automatic differentiation alone."""
    policy, r_ta_TB = leaves(problem.parameters), problem.r_ta_TB.clone().requires_grad_()
    said = inner(problem, forward, policy, r_ta_TB, detach=False)
    if problem.settings.inner_loss == "policy-gradient":
        real_step(problem, policy, gradients(said.whole, policy, keep=True))
        slopes = gradients(said.gradient_loss, policy, twice=True)
    else:  # what this moves to is the real step too
        slopes = gradients(said.whole, policy, twice=True)
    (beta1, beta2), steps = problem.settings.policy_betas, problem.moments.steps + 1
    after = {}
    for name, parameter in policy.items():
        g = slopes[name]
        mean = (beta1 * problem.moments.exp_avg[name] + (1 - beta1) * g) / (1 - beta1**steps)
        square = (beta2 * problem.moments.exp_avg_sq[name] + (1 - beta2) * g * g) / (1 - beta2**steps)
        after[name] = parameter - problem.settings.policy_learning_rate * mean / (square.sqrt() + problem.settings.eps)
    logits_TBA, *_ = forward(after, None)
    outer = outer_loss(logits_TBA, said.log_pi_TB.detach(), problem.batch.action_TB, problem.advantage_e_TB)
    return torch.autograd.grad(outer, r_ta_TB)[0]


def leaves(tensors: Parameters) -> dict[str, Tensor]:
    """Of a new graph."""
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def gradients(loss: Tensor, policy: Parameters, *, keep: bool = False, twice: bool = False) -> dict[str, Tensor]:
    """Zero for a parameter that the loss does not depend on. `keep`: the graph is needed again. `twice`: so is one of these."""
    found = torch.autograd.grad(
        loss, list(policy.values()), allow_unused=True, retain_graph=keep or twice, create_graph=twice
    )
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(policy.items(), found, strict=True)}


def real_step(problem: Problem, policy: Parameters, slopes: Parameters) -> tuple[dict[str, Tensor], AdamState]:
    """Adam's, with nothing to differentiate."""
    settings = problem.settings
    options = {"learning_rate": settings.policy_learning_rate, "eps": settings.eps}
    return adam(policy, slopes, problem.moments, betas=settings.policy_betas, **options)


def contestant(problem: Problem, core: str, view: str) -> tuple[Step, Step]:
    """Its ordinary step, and its step with the modulator's gradient."""
    forward = make_forward(problem, core, view)
    whole = by_forward_mode if core == "leco" else by_double_backpropagation
    return partial(ordinary, problem, forward), partial(whole, problem, forward)


def agree(inner_loss: InnerLoss) -> None:
    """All contestants compute the same gradient, which is not zero; otherwise the comparison means nothing."""
    errors = {}
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        problem = make_problem(inner_loss, dtype)
        found = {way: contestant(problem, *way)[1]() for way in itertools.product(CORES, VIEWS)}
        expected = found["plain", "every"]
        assert expected.norm() > 0
        errors[dtype] = max(((g - expected).norm() / expected.norm()).item() for g in found.values())
        assert errors[dtype] <= tolerance, f"{inner_loss}, {dtype}: they differ by {errors[dtype]:.1e}"
    print(f"## Inner loss: {inner_loss}\n")
    print("All six gradients agree, relative to the norm of double back-propagation's, to ", end="")
    print(f"{errors[torch.float64]:.0e} in float64 and {errors[torch.float32]:.0e} in float32.\n")


def print_times(inner_loss: InnerLoss, turns: int) -> None:
    """Alternately, each turn beginning with another contestant; the first turn warms up and is not counted."""
    problem = make_problem(inner_loss)
    ways = list(itertools.product(VIEWS, CORES))
    steps = {way: contestant(problem, way[1], way[0]) for way in ways}
    plain: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    whole: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            for kind, step in zip((plain, whole), steps[way], strict=True):
                begin = time.process_time()
                step()
                if turn > 0:
                    kind[way].append(1e3 * (time.process_time() - begin))
    print(f"Milliseconds of processor time, {turns} turns: median (least to most). Ratios: of each turn.\n")
    print("| observations | way | ordinary step | with the gradient | beyond its own | beyond leco's | times leco's |")
    print("|---|---|---|---|---|---|---|")
    for view, core in ways:
        leco, way = (view, "leco"), (view, core)
        own, real = differences(whole[way], plain[way]), differences(whole[way], plain[leco])
        base = differences(whole[leco], plain[leco])
        ratios = " / ".join(spread([a / b for a, b in zip(each, base, strict=True)], ".1f") for each in (own, real))
        cells = [spread(each, ".0f") for each in (plain[way], whole[way], own, real)]
        print(f"| {view} | {core} | {' | '.join(cells)} | {ratios if core != 'leco' else '1'} |")
    print(f"\nThe last column: beyond its own ordinary step / beyond leco's. Goal: at least {FASTER:.0f}.")
    ours, theirs = ("distinct", "leco"), ("every", "plain")
    pairs = zip(differences(whole[theirs], plain[theirs]), differences(whole[ours], plain[ours]), strict=True)
    print(
        f"As built (leco, distinct) against plain on every observation: {spread([a / b for a, b in pairs], '.1f')}.\n"
    )


def differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Of each turn."""
    return [x - y for x, y in zip(a, b, strict=True)]


class Peak(NamedTuple):
    """MB above what is held before the step: what the process takes, and what its tensors take."""

    resident: float
    tensors: float


def print_memory(inner_loss: InnerLoss, children: int) -> None:
    """Each number from a process of its own, `children` times."""
    ways = list(itertools.product(VIEWS, CORES))
    found = {way: [in_child(inner_loss, way[1], way[0]) for _ in range(children)] for way in ways}
    print(
        f"Peak memory in MB above what is held before the step, each from a process of its own, {children} times: median "
        "(least to most). Resident: the process runs the step once, sets back the kernel's peak (/proc/self/clear_refs) and "
        "runs it again; freed memory goes back to the system at once "
        f"({', '.join(f'{name}={value}' for name, value in MALLOC.items())}), at the price of whole pages, which favours large "
        "tensors. Tensors: the bytes that torch.profiler saw allocated and freed.\n"
    )
    for part, title in enumerate(("resident", "tensors")):
        print(
            f"| {title} | way | ordinary step | with the gradient | beyond leco's ordinary step | leco's share of that |"
        )
        print("|---|---|---|---|---|---|")
        for view, core in ways:
            plain, whole = ([peaks[i][part] for peaks in found[view, core]] for i in (0, 1))
            base = statistics.median(peaks[0][part] for peaks in found[view, "leco"])
            ours = statistics.median(peaks[1][part] for peaks in found[view, "leco"]) - base
            cells = [spread(each, ".1f") for each in (plain, whole, [each - base for each in whole])]
            share = ours / (statistics.median(whole) - base)
            print(f"| {view} | {core} | {' | '.join(cells)} | {share:.2f} |")
        print()
    print("Goal: leco's share is at most 0.33.\n")


def in_child(inner_loss: str, core: str, view: str) -> tuple[Peak, Peak]:
    """Of the ordinary step, and of the step with the modulator's gradient."""
    command = [sys.executable, __file__, "--measure", inner_loss, core, view]
    environment = {**os.environ, **MALLOC, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    numbers = [float(word) for word in output.split()]
    return Peak(*numbers[:2]), Peak(*numbers[2:])


def measure(inner_loss: InnerLoss, core: str, view: str) -> list[float]:
    """What `in_child` asks for, in this process."""
    steps = contestant(make_problem(inner_loss), core, view)
    resident = [resident_peak(step) for step in steps]  # before any profiler runs, which takes memory too
    tensors = [tensor_peak(step) for step in steps]
    return [number for pair in zip(resident, tensors, strict=True) for number in pair]


def resident_peak(step: Step) -> float:
    """What the kernel saw."""
    step()  # what is loaded or made once, code included, is there now
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    step()
    return (status("VmHWM") - before) / 1e6


def tensor_peak(step: Step) -> float:
    """What torch's profiler saw."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    memory = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return float(max(itertools.accumulate(change for _, change in memory))) / 1e6


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def spread(values: Sequence[float], form: str) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
