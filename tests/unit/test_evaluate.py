"""`leco eval`: honest numbers, the same for the same seed, and errors that say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from leco.config import parse, to_toml
from leco.envs import registry
from leco.envs.registry import find_task
from leco.methods import find_method
from leco.nets.policy import MiniGridPolicy
from leco.networks import build
from leco.saving import save
from leco.training import start
from services import evaluate as module
from services.evaluate import FRESH, Result, evaluate, summary, trained_policy, wilson
from services.film import LAST_MILLISECONDS, MILLISECONDS, film

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leco.envs.registry import Task
    from leco.envs.vector import VectorEnv

TASK = find_task("Empty-5x5")  # 100 actions at most


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longer than all that is played here."""

    def make(task: Task | str, environments: int, seed: int) -> VectorEnv:
        return registry.make(task, environments, seed, compiled=False)

    monkeypatch.setattr(module, "make", make)


def policy(bias: Sequence[float] = (0.0, 0.0, 1.0, -3.0, -3.0, -3.0, -3.0)) -> MiniGridPolicy:
    torch.manual_seed(0)
    made = MiniGridPolicy(7)
    with torch.no_grad():
        made.policy_head.bias.copy_(torch.tensor(bias))
    return made


def test_wilson_against_known_values() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)


def naive(bias_policy: MiniGridPolicy, episodes: int, seed: int) -> list[tuple[float, int, bool]]:
    """The most probable actions in all environments for as long as an episode may be; of each the first end."""
    env = registry.make(TASK, episodes, FRESH + seed, compiled=False)
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
            for e in np.flatnonzero(steps.ended_E):
                found.setdefault(int(e), (float(return_E[e]), t + 1, bool(steps.success_E[e])))
                return_E[e] = 0
            observation_EO, start_E = steps.observation_EO, steps.ended_E
    return [found[e] for e in range(episodes)]


def test_each_episode_is_counted_once_as_it_was() -> None:
    wanderer = policy((0.0, 0.05, 0.0, -9.0, -9.0, -9.0, -9.0))
    for seed in (1, 2):
        result = evaluate(wanderer, TASK, episodes=6, seed=seed, greedy=True)
        expected = naive(wanderer, 6, seed)
        got = list(zip(result.returns_N, result.lengths_N, result.solved_N, strict=True))
        assert [(pytest.approx(r), int(n), bool(s)) for r, n, s in expected] == got


def test_drawn_actions_solve_some_and_short_episodes_are_not_preferred() -> None:
    result = evaluate(policy(), TASK, episodes=40, seed=0, greedy=False)
    assert len(result.returns_N) == len(result.lengths_N) == len(result.solved_N) == 40
    solved = result.solved_N
    assert solved.any()
    assert (result.lengths_N <= TASK.max_steps).all()
    # MiniGrid's own rule: 1 - 0.9 x actions / limit for a solution, otherwise nothing.
    expected = np.where(solved, 1 - 0.9 * result.lengths_N / TASK.max_steps, 0)
    np.testing.assert_allclose(result.returns_N, expected, atol=1e-6)
    assert (result.lengths_N[~solved] == TASK.max_steps).all()


def test_the_seed_decides_everything() -> None:
    one, same = (evaluate(policy(), TASK, episodes=10, seed=5, greedy=False) for _ in range(2))
    other = evaluate(policy(), TASK, episodes=10, seed=6, greedy=False)
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


def saved_run(folder: Path, *updates: int) -> Path:
    run = folder / "run"
    (run / "checkpoints").mkdir(parents=True)
    experiment = parse("", {"task": "Empty-5x5", "method": "no-int"})
    (run / "config.toml").write_text(to_toml(experiment))
    fresh = start(build(find_method("no-int"), TASK.observation_shape, TASK.actions))
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
    experiment, found, after = trained_policy(run, which)
    assert (experiment.task, after) == ("Empty-5x5", updates)
    assert all((parameter == updates / 1000).all() for parameter in found.parameters())


def test_it_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved_run(tmp_path, 1234)
    module.main([str(run), "--episodes=3", f"--gif={tmp_path / 'film.gif'}", "--seed=2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Empty-5x5, no-int, after 1,234 updates: 3 fresh episodes"
    assert [line.split()[0] for line in lines[1:4]] == ["success", "mean", "mean"]
    assert lines[4].startswith("an episode of ")
    assert (tmp_path / "film.gif").exists()


def test_errors_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            module.main(arguments)
        return capsys.readouterr().err if ended.value.code == 2 else str(ended.value.code)

    nowhere = str(tmp_path / "nowhere")
    assert error(nowhere) == f"leco eval: {nowhere} is not a run: it has no config.toml. `leco train` makes one"
    run = saved_run(tmp_path)
    assert "has no checkpoint yet: train longer, or end the training with Ctrl-C, which saves" in error(str(run))
    assert f"there is no checkpoint {run / 'checkpoints' / 'best.safetensors'}" in error(str(run), "--checkpoint=best")
    assert "there is no checkpoint other.file" in error(str(run), "--checkpoint=other.file")
    assert "--episodes is 0, expected at least 1" in error(str(run), "--episodes=0")
    (run / "checkpoints" / "000000001.safetensors").write_bytes(b"damaged")
    assert error(str(run)).startswith(f"leco eval: {run / 'checkpoints' / '000000001.safetensors'} ")


@pytest.mark.parametrize("greedy", [False, True])
def test_a_film_shows_an_episode_from_its_first_to_its_last_picture(tmp_path: Path, greedy: bool) -> None:
    walker = policy()
    actions = film(walker, TASK, tmp_path / "film.gif", seed=FRESH + 3, greedy=greedy)
    assert 1 <= actions <= TASK.max_steps
    with Image.open(tmp_path / "film.gif") as picture:
        assert picture.format == "GIF"
        durations = []
        for frame in range(picture.n_frames):  # type: ignore[attr-defined]
            picture.seek(frame)
            durations.append(picture.info["duration"])
    # Pillow shows a picture that does not change for longer, instead of twice.
    assert sum(durations) == actions * MILLISECONDS + LAST_MILLISECONDS
    assert len(durations) <= actions + 1
    if greedy:  # the first of the episodes that are evaluated
        assert evaluate(walker, TASK, episodes=2, seed=3, greedy=True).lengths_N[0] == actions
