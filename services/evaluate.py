"""How good a trained policy is: `leco eval`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from leco.algo.sampling import draw_action
from leco.config import ConfigError, parse
from leco.envs.registry import find_task, make
from leco.files import replace_file
from leco.methods import find_method
from leco.nets.stepping import stepper
from leco.networks import build
from leco.saving import SavedStateError, load
from leco.training import start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.config import Experiment
    from leco.envs.registry import Task
    from leco.nets.policy import Policy
    from leco.saving import Fact

DESCRIPTION = """\
Plays fresh episodes with a trained policy and says how good it is, with 95 % confidence intervals. Actions are drawn from the
policy, as in training; --greedy takes the most probable ones."""
Z = 1.959964  # of 95 %
FRESH = 1 << 40  # seeds from here on; training has others


class Result(NamedTuple):
    """Of each episode: return, actions, solved or not."""

    returns_N: np.ndarray
    lengths_N: np.ndarray
    solved_N: np.ndarray


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluates and prints."""
    parser = argparse.ArgumentParser("leco eval", description=DESCRIPTION)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--checkpoint", default="newest", help="newest, best, or a file (default: newest)")
    parser.add_argument("--seed", type=int, default=0, help="of levels and actions (default: 0)")
    parser.add_argument("--greedy", action="store_true", help="the most probable action instead of a drawn one")
    parser.add_argument("--gif", type=Path, metavar="FILE", help="also draw one episode")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to a file")
    given = parser.parse_args(arguments)
    if given.episodes < 1:
        parser.error(f"--episodes is {given.episodes}, expected at least 1")
    torch.set_num_threads(1)
    try:
        experiment, policy, updates, facts = trained_state(given.run, given.checkpoint)
    except (ConfigError, SavedStateError, OSError) as error:
        sys.exit(f"leco eval: {error}")
    task = find_task(experiment.task)
    result = evaluate(policy, task, episodes=given.episodes, seed=given.seed, greedy=given.greedy)
    sys.stdout.write(f"{task.name}, {experiment.method}, after {updates:,} updates: {given.episodes} fresh episodes\n")
    sys.stdout.write(summary(result))
    if given.gif is not None:
        from services.film import film  # noqa: PLC0415  # needs more packages

        steps = film(policy, task, given.gif, seed=FRESH + given.seed, greedy=given.greedy)
        sys.stdout.write(f"an episode of {steps} actions: {given.gif}\n")
    if given.json is not None:
        of_run = {"updates": updates, "frames": facts.get("frames"), "seconds": facts.get("seconds")}
        how = {"seed": given.seed, "greedy": given.greedy}
        found = {name: None if math.isnan(value) else value for name, value in numbers(result).items()}
        replace_file(given.json, (json.dumps(of_run | how | found, indent=1) + "\n").encode())


def trained_policy(run: Path, checkpoint: str) -> tuple[Experiment, Policy, int]:
    """The experiment of a run, its policy, and after how many updates that is."""
    return trained_state(run, checkpoint)[:3]


def trained_state(run: Path, checkpoint: str) -> tuple[Experiment, Policy, int, dict[str, Fact]]:
    """The same, and what else was saved: the frames, and the seconds that they took."""
    config = run / "config.toml"
    if not config.exists():
        raise ConfigError(f"{run} is not a run: it has no config.toml. `leco train` makes one")
    experiment = parse(config.read_text())
    task = find_task(experiment.task)
    networks = build(find_method(experiment.method), task.observation_shape, task.actions, experiment.hash)
    state, facts = load(_checkpoint(run / "checkpoints", checkpoint), start(networks))
    networks.policy.load_state_dict(state.policy)
    return experiment, networks.policy, state.updates, facts


def _checkpoint(folder: Path, which: str) -> Path:
    if which == "best":
        path = folder / "best.safetensors"
    elif which == "newest":
        numbered = sorted(folder.glob("[0-9]*.safetensors"))
        if not numbered:
            raise ConfigError(
                f"{folder} has no checkpoint yet: train longer, or end the training with Ctrl-C, which saves"
            )
        path = numbered[-1]
    else:
        path = Path(which)
    if not path.exists():
        raise ConfigError(f"there is no checkpoint {path}")
    return path


@torch.inference_mode()
def evaluate(policy: Policy, task: Task, *, episodes: int, seed: int, greedy: bool) -> Result:
    """Plays each episode in an environment of its own, so that short ones are not preferred."""
    env = make(task, episodes, FRESH + seed)
    random = torch.Generator().manual_seed(seed)
    observation_EO = env.reset()
    start_E, action_E = np.ones(episodes, bool), np.full(episodes, -1)
    reward_E = np.zeros(episodes, np.float32)
    step, core = stepper(policy), policy.initial_state(episodes)
    returns_E, lengths_E = np.zeros(episodes), np.zeros(episodes, np.int64)
    solved_E, running_E = np.zeros(episodes, bool), np.ones(episodes, bool)
    while running_E.any():
        logits_EA, core = step(core, *map(torch.from_numpy, (observation_EO, start_E, action_E, reward_E)))
        action_E = (logits_EA.argmax(1) if greedy else draw_action(logits_EA, random)).numpy()
        steps = env.step(action_E)
        returns_E[running_E] += steps.reward_E[running_E]
        lengths_E[running_E] += 1
        solved_E |= running_E & steps.success_E
        running_E &= ~steps.ended_E
        observation_EO, start_E, reward_E = steps.observation_EO, steps.ended_E, steps.reward_E
        action_E = np.where(steps.ended_E, -1, action_E)
    env.close()
    return Result(returns_E, lengths_E, solved_E)


def summary(result: Result) -> str:
    """What people want to know."""
    found = numbers(result)
    success, low, high = (100 * found[name] for name in ("success", "success_low", "success_high"))
    return (
        f"  success rate  {success:.1f} %   (95 %: {low:.1f} to {high:.1f})\n"
        f"  mean return   {found['return']:.3f}   (95 %: {found['return_low']:.3f} to {found['return_high']:.3f})\n"
        f"  mean length   {found['length']:.1f} actions\n"
    )


def numbers(result: Result) -> dict[str, float]:
    """Means by name, with the ends of their 95 % intervals; that of a single return is nan."""
    count = len(result.returns_N)
    low, high = wilson(int(result.solved_N.sum()), count)
    mean = float(result.returns_N.mean())
    error = Z * float(result.returns_N.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return {
        "episodes": count,
        "success": float(result.solved_N.mean()),
        "success_low": low,
        "success_high": high,
        "return": mean,
        "return_low": mean - error,
        "return_high": mean + error,
        "length": float(result.lengths_N.mean()),
    }


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: sensible also near 0 and 1."""
    share, z2 = successes / count, Z * Z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(centre - half, 0.0), min(centre + half, 1.0)


if __name__ == "__main__":
    main()
