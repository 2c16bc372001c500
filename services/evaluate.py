"""How good a trained policy is: `leco eval`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from leco.algo.sampling import draw_action
from leco.config import ConfigError, parse
from leco.envs.registry import find_task, make
from leco.envs.scores import human_normalised
from leco.files import replace_file
from leco.methods import find_method
from leco.nets.stepping import stepper
from leco.networks import build
from leco.saving import SavedStateError, load
from leco.training import start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leco.config import Experiment
    from leco.envs.registry import Task
    from leco.envs.vector import Steps, VectorEnv
    from leco.nets.policy import Policy
    from leco.saving import Fact

DESCRIPTION = """\
Plays fresh episodes with a trained policy and says how good it is, with 95 % confidence intervals. Actions are drawn from the
policy, as in training; --greedy takes the most probable ones."""
Z = 1.959964  # of 95 %
FRESH = 1 << 40  # seeds from here on; training has others
ENGINES = 8  # at a time, where each environment is a process
PATIENCE = 10  # dropped episodes beyond as many as were asked for


class EvaluationError(Exception):
    """Nothing can be said about the policy."""


class Result(NamedTuple):
    """Of each episode: return, actions, solved or not. And how many more an engine's failure cut short, which are left out."""

    returns_N: np.ndarray
    lengths_N: np.ndarray
    solved_N: np.ndarray
    dropped: int = 0


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
        task = find_task(experiment.task)
        result = evaluate(policy, task, episodes=given.episodes, seed=given.seed, greedy=given.greedy)
    except (ConfigError, SavedStateError, EvaluationError, OSError, ValueError) as error:  # the last: no simulator
        sys.exit(f"leco eval: {error}")
    sys.stdout.write(f"{task.name}, {experiment.method}, after {updates:,} updates: {given.episodes} fresh episodes\n")
    sys.stdout.write(summary(result, task))
    if given.gif is not None:
        from services.film import film  # noqa: PLC0415  # needs more packages

        steps = film(policy, task, given.gif, seed=FRESH + given.seed, greedy=given.greedy)
        sys.stdout.write(f"an episode of {steps} actions: {given.gif}\n")
    if given.json is not None:
        of_run = {"updates": updates, "frames": facts.get("frames"), "seconds": facts.get("seconds")}
        how = {"seed": given.seed, "greedy": given.greedy}
        found = {name: None if math.isnan(value) else value for name, value in numbers(result, task).items()}
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


def evaluate(policy: Policy, task: Task, *, episodes: int, seed: int, greedy: bool) -> Result:
    """Plays episodes, how many in which environment being settled before, so that short ones are not preferred.

    MiniGrid has an environment for each. Of other simulators at most ENGINES run, and the first episodes of each count, as many
    in all as were asked for. One that was dropped because its engine failed is not counted: its environment plays one more.

    Raises:
        EvaluationError: engines fail so often that it would never end, or end with the episodes that they can play.
        ValueError: the task cannot be played here.
    """
    count = episodes if task.simulator == "minigrid" else min(episodes, ENGINES)
    returns_N, lengths_N = np.zeros(episodes), np.zeros(episodes, np.int64)
    solved_N, dropped = np.zeros(episodes, bool), 0
    with closing(make(task, count, FRESH + seed)) as env:
        now_E = np.arange(count)  # episode k of environment e is number k x count + e
        for steps in playing(policy, env, env.reset(), torch.Generator().manual_seed(seed), greedy=greedy):
            counted_E = now_E < episodes
            at = now_E[counted_E]
            returns_N[at] += steps.reward_E[counted_E]
            lengths_N[at] += 1
            solved_N[at] = steps.success_E[counted_E]
            again_E = counted_E & dropped_now(env)
            returns_N[now_E[again_E]], lengths_N[now_E[again_E]] = 0, 0
            dropped += int(again_E.sum())
            now_E[steps.ended_E & ~again_E] += count
            if (now_E >= episodes).all():
                break
            if dropped > episodes + PATIENCE:
                raise EvaluationError(
                    f"engines failed in {dropped} episodes, more than the {episodes} to be played: the warnings say why"
                )
    return Result(returns_N, lengths_N, solved_N, dropped)


def playing(
    policy: Policy, env: VectorEnv, observation_EO: np.ndarray, random: torch.Generator, *, greedy: bool
) -> Iterator[Steps]:
    """What the policy's actions lead to, from first observations on, without end."""
    count = env.environments
    start_E, action_E, reward_E = np.ones(count, bool), np.full(count, -1), np.zeros(count, np.float32)
    with torch.inference_mode():
        step, core = stepper(policy), policy.initial_state(count)
    while True:
        with torch.inference_mode():
            logits_EA, core = step(core, *map(torch.from_numpy, (observation_EO, start_E, action_E, reward_E)))
            action_E = (logits_EA.argmax(1) if greedy else draw_action(logits_EA, random)).numpy()
        steps = env.step(action_E)
        yield steps
        observation_EO, start_E = steps.observation_EO, steps.ended_E
        action_E = np.where(start_E, -1, action_E)
        reward_E = np.where(start_E, np.float32(0), steps.reward_E)


def dropped_now(env: VectorEnv) -> np.ndarray:
    """Bool [E]: the episode that ended in the last step ended because its engine failed. Not all environments have engines."""
    dropped_E: np.ndarray = getattr(env, "dropped_E", np.zeros(env.environments, bool))
    return dropped_E


def summary(result: Result, task: Task | None = None) -> str:
    """What people want to know. Of a task: what is particular to it as well."""
    found = numbers(result, task)

    def interval(name: str, digits: int, scale: float = 1.0) -> str:
        low, high = scale * found[f"{name}_low"], scale * found[f"{name}_high"]
        return f"(95 %: {low:.{digits}f} to {high:.{digits}f})"

    lines = [f"success rate  {100 * found['success']:.1f} %   {interval('success', 1, 100)}"]
    if task is not None and not task.solvable:
        lines = ["success rate  none: this task calls no episode solved, look at the return"]
    lines.append(f"mean return   {found['return']:.3f}   {interval('return', 3)}")
    if task is not None and task.scores is not None:
        random, human = task.scores
        lines.append(
            f"normalised    {found['human_normalised']:.1f} %   {interval('human_normalised', 1)}   "
            f"0 % is random play ({random:g}), 100 % are people ({human:g})"
        )
    lines.append(f"mean length   {found['length']:.1f} actions")
    if result.dropped:
        lines.append(f"dropped       {result.dropped}, because their engine failed; others were played in their place")
    return "".join(f"  {line}\n" for line in lines)


def numbers(result: Result, task: Task | None = None) -> dict[str, float]:
    """Means by name, with the ends of their 95 % intervals. Of a task with scores also normalised.

    What there is not is nan: the interval of a single return, and the success of a task that calls no episode solved.
    """
    count = len(result.returns_N)
    low, high = wilson(int(result.solved_N.sum()), count)
    share = float(result.solved_N.mean())
    if task is not None and not task.solvable:
        share = low = high = math.nan
    mean = float(result.returns_N.mean())
    error = Z * float(result.returns_N.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    found = {
        "episodes": count,
        "success": share,
        "success_low": low,
        "success_high": high,
        "return": mean,
        "return_low": mean - error,
        "return_high": mean + error,
        "length": float(result.lengths_N.mean()),
        "dropped": result.dropped,
    }
    if task is not None and task.scores is not None:
        for end in ("", "_low", "_high"):
            found[f"human_normalised{end}"] = human_normalised(found[f"return{end}"], *task.scores)
    return found


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: sensible also near 0 and 1."""
    share, z2 = successes / count, Z * Z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(centre - half, 0.0), min(centre + half, 1.0)


if __name__ == "__main__":
    main()
