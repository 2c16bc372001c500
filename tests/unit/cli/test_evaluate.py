"""`leco eval`: honest numbers, the same for the same seed, and errors that say what to do."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from leco.checkpoint.milestones import milestone_path, milestone_updates
from leco.checkpoint.state_file import save
from leco.cli import evaluate
from leco.config.experiment import ConfigError
from leco.config.toml import parse, to_toml
from leco.envs.dmlab import family as dmlab
from leco.envs.registry import TASKS, find_task
from leco.envs.vector import Steps
from leco.envs.vizdoom.scenarios import SCENARIOS
from leco.evaluation import rollout
from leco.evaluation.recording import read_recording
from leco.evaluation.rollout import FRESH, EvaluationError, Result
from leco.evaluation.rollout import evaluate as play
from leco.evaluation.summary import numbers, summary
from leco.evaluation.trained import trained_state
from leco.learning.state import init
from leco.methods.table import find_method
from leco.models.build import build
from leco.models.fused_step import make_step_fn
from leco.models.kinds.minigrid import MiniGridPolicy
from support.uncompiled import make_uncompiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from leco.envs.task import Task

TASK = find_task("Empty-5x5")  # 100 actions at most
ENGINES = dmlab.FAMILY.max_envs or 0
WITH_ENGINES = dataclasses.replace(TASK, family="dmlab")
LASERTAG = find_task("lasertag_three_opponents_small")


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longer than all that is played here."""

    monkeypatch.setattr(rollout, "make", make_uncompiled)


def policy(bias: Sequence[float] = (0.0, 0.0, 1.0, -3.0, -3.0, -3.0, -3.0)) -> MiniGridPolicy:
    torch.manual_seed(0)
    made = MiniGridPolicy(7)
    with torch.no_grad():
        made.policy_head.bias.copy_(torch.tensor(bias))
    return made


def naive(bias_policy: MiniGridPolicy, episodes: int, seed: int) -> list[tuple[float, int, bool]]:
    """The most probable actions in all environments for as long as an episode may be; of each the first end."""
    env = make_uncompiled(TASK, episodes, FRESH + seed)
    observation_EO, start_E = env.reset(), np.ones(episodes, bool)
    core = bias_policy.initial_state(episodes)
    found: dict[int, tuple[float, int, bool]] = {}
    return_E = np.zeros(episodes)
    with torch.no_grad():
        for t in range(TASK.max_steps):
            zeros = torch.zeros(1, episodes)
            output = bias_policy(
                torch.from_numpy(observation_EO)[None], torch.from_numpy(start_E)[None], zeros.long(), zeros, core
            )
            core = output.state
            steps = env.step(output.logits_TBA[0].argmax(1).numpy())
            return_E += steps.reward_E
            for e in np.flatnonzero(steps.done_E):
                found.setdefault(int(e), (float(return_E[e]), t + 1, bool(steps.success_E[e])))
                return_E[e] = 0
            observation_EO, start_E = steps.observation_EO, steps.done_E
    return [found[e] for e in range(episodes)]


def test_each_episode_is_counted_once_as_it_was() -> None:
    wanderer = policy((0.0, 0.05, 0.0, -9.0, -9.0, -9.0, -9.0))
    for seed in (1, 2):
        result = play(wanderer, TASK, episodes=6, seed=seed, greedy=True)
        expected = naive(wanderer, 6, seed)
        got = list(zip(result.returns_N, result.lengths_N, result.solved_N, strict=True))
        assert [(pytest.approx(r), int(n), bool(s)) for r, n, s in expected] == got


def test_drawn_actions_solve_some_and_short_episodes_are_not_preferred() -> None:
    result = play(policy(), TASK, episodes=40, seed=0, greedy=False)
    assert len(result.returns_N) == len(result.lengths_N) == len(result.solved_N) == 40
    solved = result.solved_N
    assert solved.any()
    assert (result.lengths_N <= TASK.max_steps).all()
    # MiniGrid's own rule: 1 - 0.9 x actions / limit for a solution, otherwise nothing.
    expected = np.where(solved, 1 - 0.9 * result.lengths_N / TASK.max_steps, 0)
    np.testing.assert_allclose(result.returns_N, expected, atol=1e-6)
    assert (result.lengths_N[~solved] == TASK.max_steps).all()


def test_the_seed_decides_everything() -> None:
    one, same = (play(policy(), TASK, episodes=10, seed=5, greedy=False) for _ in range(2))
    other = play(policy(), TASK, episodes=10, seed=6, greedy=False)
    assert one.lengths_N.tolist() == same.lengths_N.tolist()
    assert one.returns_N.tolist() == same.returns_N.tolist()
    assert one.lengths_N.tolist() != other.lengths_N.tolist()


def test_the_summary_by_hand() -> None:
    result = Result(np.array([0.0, 1.0, 0.5, 0.5]), np.array([10, 20, 30, 40]), np.array([False, True, True, True]))
    rate, mean, length = summary(result).splitlines()
    assert rate.split() == ["success", "rate", "75.0", "%", "(95", "%:", "30.1", "to", "95.4)"]
    # 1.96 x 0.40825 / 2
    assert mean.split() == ["mean", "return", "0.500", "(95", "%:", "0.100", "to", "0.900)"]
    assert length.split() == ["mean", "length", "25.0", "actions"]


def test_a_task_with_scores_is_normalised_and_one_without_success_says_so() -> None:
    returns_N = np.array([9.168 - 1, 9.168 + 1])  # in the mean half of the way from -0.214 to 18.55
    result = Result(returns_N, np.array([3600, 3600]), np.array([False, False]), dropped=3)
    rate, mean, normalised, length, dropped = summary(result, LASERTAG).splitlines()
    assert rate.strip() == "success rate  none: this task calls no episode solved, look at the return"
    assert mean.split()[:3] == ["mean", "return", "9.168"]
    # 1.96 x 1.4142 / 1.4142 of 18.764 on both sides
    assert normalised.split()[:8] == ["normalised", "50.0", "%", "(95", "%:", "39.6", "to", "60.4)"]
    assert normalised.endswith("0 % is random play (-0.214), 100 % are people (18.55)")
    assert length.split() == ["mean", "length", "3600.0", "actions"]
    assert dropped.split()[:2] == ["dropped", "3,"]
    found = numbers(result, LASERTAG)
    names = ("human_normalised", "human_normalised_low", "human_normalised_high", "dropped")
    assert [found[name] for name in names] == pytest.approx([50, 39.555, 60.445, 3], abs=1e-3)
    assert "human_normalised" not in numbers(result, TASK)


def test_what_has_no_success_has_none() -> None:
    without = {name for name, task in TASKS.items() if not task.solvable}
    assert without == {LASERTAG.name, "lasertag_three_opponents_large", "vizdoom-deathmatch"}
    assert {
        SCENARIOS[task.id].can_be_solved == task.solvable for task in TASKS.values() if task.family == "vizdoom"
    } == {True}
    result = Result(np.ones(3), np.ones(3, np.int64), np.zeros(3, bool), 0)
    assert all(math.isnan(numbers(result, LASERTAG)[f"success{end}"]) for end in ("", "_low", "_high"))
    assert numbers(result, TASK)["success"] == 0


class Scripted:
    """Environments whose episodes have given lengths, and of which given ones are dropped in their last step.

    The reward of every action is the number of its environment and episode: 100 e + k.
    """

    observation_shape, num_actions = TASK.observation_shape, TASK.num_actions

    def __init__(
        self, num_envs: int, length: Callable[[int, int], int], drops: Callable[[int, int], bool] = lambda *_: False
    ) -> None:
        self.num_envs, self.closed = num_envs, False
        self._length, self._drops = length, drops
        self.played = np.zeros(num_envs, int)
        self._time = np.zeros(num_envs, int)
        self.dropped_E = np.zeros(num_envs, bool)

    def reset(self, seed: int | None = None) -> np.ndarray:
        assert seed is None
        return np.zeros((self.num_envs, *self.observation_shape), np.uint8)

    def step(self, action_E: Any) -> Steps:
        assert action_E.shape == (self.num_envs,)
        self._time += 1
        now = list(enumerate(self.played))
        done_E = np.array([self._time[e] >= self._length(e, k) for e, k in now])
        reward_E = np.array([100 * e + k for e, k in now], np.float32)
        self.dropped_E = done_E & [self._drops(e, k) for e, k in now]
        self._time[done_E] = 0
        self.played[done_E] += 1
        observation_EO = self.reset()
        return Steps(observation_EO, reward_E, done_E, done_E & ~self.dropped_E, observation_EO[done_E])

    def close(self) -> None:
        self.closed = True


def scripted(monkeypatch: pytest.MonkeyPatch, *script: Any) -> list[Scripted]:
    """What `evaluate` will have made."""
    made: list[Scripted] = []

    def make(task: Task, environments: int, seed: int) -> Any:
        assert (task, seed) == (WITH_ENGINES, FRESH)
        made.append(Scripted(environments, *script))
        return made[0]

    monkeypatch.setattr(rollout, "make", make)
    return made


def length_of(e: int, k: int) -> int:
    """Environment 0 is done long before the others."""
    return 1 if e == 0 else 2 + (3 * e + 5 * k) % 7


@pytest.mark.parametrize("episodes", [1, 7, 8, 9, 30])
def test_few_engines_play_all_episodes_and_each_counts_once(monkeypatch: pytest.MonkeyPatch, episodes: int) -> None:
    made = scripted(monkeypatch, length_of)
    result = play(policy(), WITH_ENGINES, episodes=episodes, seed=0, greedy=False)
    [env] = made
    assert env.num_envs == min(episodes, ENGINES)
    assert env.closed
    # The first episodes of each environment, as if all were long: not more of those that end early.
    expected = [divmod(n, env.num_envs)[::-1] for n in range(episodes)]
    assert result.lengths_N.tolist() == [length_of(e, k) for e, k in expected]
    assert result.returns_N.tolist() == [(100 * e + k) * length_of(e, k) for e, k in expected]
    assert result.solved_N.all()
    assert result.dropped == 0


def test_another_episode_is_played_for_one_that_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {(0, 0), (0, 1), (3, 1), (5, 2)}
    scripted(monkeypatch, length_of, lambda e, k: (e, k) in lost)
    result = play(policy(), WITH_ENGINES, episodes=20, seed=0, greedy=False)
    expected = []
    for e in range(ENGINES):
        whole = [k for k in range(9) if (e, k) not in lost]
        expected += [(n, e, whole[n]) for n in range(3) if n * ENGINES + e < 20]
    assert result.lengths_N.tolist() == [length_of(e, k) for _, e, k in sorted(expected)]
    assert result.returns_N.tolist() == [(100 * e + k) * length_of(e, k) for _, e, k in sorted(expected)]
    assert result.solved_N.all()
    assert result.dropped == 3  # nobody waited for the third episode of environment 5


def test_engines_that_always_fail_are_an_error_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scripted(monkeypatch, length_of, lambda e, _: e == 2)
    with pytest.raises(EvaluationError, match="engines failed in 14 episodes, more than the 3 to be played"):
        play(policy(), WITH_ENGINES, episodes=3, seed=0, greedy=False)
    assert made[0].closed


def test_a_new_episode_knows_nothing_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, length_of)
    seen: list[tuple[np.ndarray, ...]] = []

    def noting_stepper(of: Any) -> Any:
        step = make_step_fn(of)

        def noting(core: Any, *inputs: Any) -> Any:
            seen.append(tuple(each.numpy().copy() for each in inputs[1:]))
            return step(core, *inputs)

        return noting

    monkeypatch.setattr(rollout, "make_step_fn", noting_stepper)
    play(policy(), WITH_ENGINES, episodes=30, seed=0, greedy=False)
    for start_E, action_E, reward_E in seen:
        assert ((action_E == -1) == start_E).all()
        assert (reward_E[start_E] == 0).all()
        assert (reward_E[1:][~start_E[1:]] > 0).all()
    assert sum(start_E.sum() for start_E, _, _ in seen) >= 30


def saved_run(folder: Path, *updates: int, task: Task = TASK) -> Path:
    run = folder / "run"
    (run / "checkpoints").mkdir(parents=True)
    experiment = parse("", {"task": task.name, "method": "no-int"})
    (run / "config.toml").write_text(to_toml(experiment))
    fresh = init(build(find_method("no-int"), task.observation_shape, task.num_actions))
    for each in updates:
        named = {name: torch.full_like(tensor, each / 1000) for name, tensor in fresh.policy.items()}
        state = fresh._replace(policy=named, updates=each)
        save(run / "checkpoints" / f"{each:09d}.safetensors", state, {})
        if each == 20:
            save(run / "checkpoints" / "best.safetensors", state, {})
    return run


@pytest.mark.parametrize(("which", "updates"), [("newest", 30), ("best", 20), ("FILE", 10)])
def test_the_checkpoint_that_was_asked_for_plays(tmp_path: Path, which: str, updates: int) -> None:
    run = saved_run(tmp_path, 10, 20, 30)
    which = str(run / "checkpoints" / "000000010.safetensors") if which == "FILE" else which
    found = trained_state(run, which)
    assert (found.experiment.task, found.updates) == ("Empty-5x5", updates)
    assert all((parameter == updates / 1000).all() for parameter in found.policy.parameters())


def test_it_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved_run(tmp_path, 1234)
    evaluate.main([str(run), "--episodes=3", "--seed=2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Empty-5x5, no-int, after 1,234 updates: 3 fresh episodes"
    assert [line.split()[0] for line in lines[1:4]] == ["success", "mean", "mean"]
    assert lines[4] == f"recorded: {run / 'recordings' / '000001234-seed2.npz'}"


def test_errors_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            evaluate.main(arguments)
        assert ended.value.code == 2
        return capsys.readouterr().err

    nowhere = str(tmp_path / "nowhere")
    assert error(nowhere) == (
        f"leco eval: {nowhere} is neither a run nor an entry of the zoo: it has no config.toml. `leco train` makes runs, "
        "`leco zoo` lists the entries\n"
    )
    run = saved_run(tmp_path)
    assert "has no checkpoint yet: train longer, or end the training with Ctrl-C, which saves" in error(str(run))
    assert f"there is no checkpoint {run / 'checkpoints' / 'best.safetensors'}" in error(str(run), "--checkpoint=best")
    assert "there is no checkpoint other.file" in error(str(run), "--checkpoint=other.file")
    assert "--episodes: must be a whole number of at least 1" in error(str(run), "--episodes=0")
    (run / "checkpoints" / "000000001.safetensors").write_bytes(b"damaged")
    assert error(str(run)).startswith(f"leco eval: {run / 'checkpoints' / '000000001.safetensors'} ")


def test_a_simulator_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LECO_DMLAB_PYTHON", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit):
        evaluate.main([str(saved_run(tmp_path, 7, task=LASERTAG))])
    said = capsys.readouterr().err
    assert re.fullmatch(r"leco eval: cannot run .*nowhere .*LECO_DMLAB_PYTHON names the interpreter.*\n", said)


def test_a_run_that_cannot_be_written_to_is_evaluated_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved_run(tmp_path, 1234)
    (run / "recordings").write_text("a file where the folder should be")
    evaluate.main([str(run), "--episodes=2"])
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("not recorded: ")


def test_milestones_are_evaluated_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved_run(tmp_path, 30)
    experiment = trained_state(run, "newest").experiment
    due = milestone_updates(experiment)
    assert list(due.values()) == ["25%", "50%", "75%", "100%"]
    for updates in list(due)[:3]:
        fresh = init(build(find_method("no-int"), TASK.observation_shape, TASK.num_actions))
        save(milestone_path(run / "checkpoints", updates), fresh._replace(updates=updates), {"frames": updates * 1536})
    assert trained_state(run, "50%").updates == list(due)[1]
    assert trained_state(run, "newest").updates == 30
    with pytest.raises(ConfigError, match=r"has no milestone 40%; it has 25%, 50%, 75%"):
        trained_state(run, "40%")
    evaluate.main([str(run), "--episodes=2", "--checkpoint=milestones"])
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Empty-5x5")]
    assert [f"after {updates:,} updates" in line for updates, line in zip(due, heads, strict=False)] == [True] * 3
    found = [read_recording(path).metadata for path in sorted((run / "recordings").iterdir())]
    assert [(each.checkpoint, each.updates) for each in found] == [(s, u) for u, s in list(due.items())[:3]]
    with pytest.raises(SystemExit) as ended:
        evaluate.main([str(run), "--checkpoint=milestones", "--json=x"])
    assert ended.value.code == 2
