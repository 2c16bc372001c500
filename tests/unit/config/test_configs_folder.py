"""Tests of the files in configs/: each is an experiment, of the task that it is named after, with the paper's numbers."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, NamedTuple

import pytest

from leco.config.toml import parse
from leco.envs.registry import find_task
from leco.methods.table import METHODS
from support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "configs"
FILES = sorted(FOLDER.glob("*.toml"))


class Numbers(NamedTuple):
    frames: int
    gamma: float
    entropy: float
    batch: int
    unroll: int
    policy_learning_rate: float
    intrinsic_learning_rate: float


MINIGRID = Numbers(200_000_000, 0.99, 0.0005, 16, 96, 0.0003, 0.0003)
MAZE = MINIGRID._replace(gamma=0.8)
DMLAB = Numbers(200_000_000, 0.99, 0.003, 48, 96, 0.0001, 0.00003)

# From the paper's table of hyper-parameters and the text around it.
PAPER = {
    "MultiRoom-N6": MINIGRID,
    "KeyCorridorS4R3": MINIGRID,
    "KeyCorridorS6R3": MINIGRID,
    "ObstructedMaze-1Q": MAZE,
    "ObstructedMaze-2Q": MAZE,
    "ObstructedMaze-Full": MAZE._replace(frames=300_000_000),
    "MultiRoom-N7-S4-NoisyTV": MINIGRID,
    "lasertag_three_opponents_small": DMLAB,
    "lasertag_three_opponents_large": DMLAB,
}
NOT_IN_THE_PAPER = {"KeyCorridorS3R3": MINIGRID, "KeyCorridorS5R3": MINIGRID}
EXPECTED = PAPER | NOT_IN_THE_PAPER


def test_there_is_a_file_for_every_task_of_the_paper_and_a_test_for_every_file() -> None:
    assert {file.stem for file in FILES} == set(EXPECTED)
    assert all(find_task(name).name == name for name in EXPECTED)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_an_experiment_of_its_own_task_with_the_papers_numbers(file: Path) -> None:
    experiment = parse(file.read_text())
    training, learner = experiment.training, experiment.learner
    assert (experiment.task, experiment.method) == (file.stem, "leco")
    assert EXPECTED[file.stem] == Numbers(
        experiment.frames,
        training.gamma,
        training.entropy_cost,
        learner.batch_size,
        experiment.actors.unroll_length,
        training.policy_learning_rate,
        training.intrinsic_learning_rate,
    )
    # What is the same for all tasks.
    assert (training.alpha, training.lambda_, training.eps) == (0.01, 0.5, 1e-6)
    assert training.policy_betas == training.intrinsic_betas == (0.9, 0.999)
    assert (training.vtrace_lambda, training.reward_scale, training.max_gradient_norm) == (1, 1, None)
    assert (training.bootstrap_on_truncation, training.inner_loss, training.decoder_samples) == (
        False,
        "policy-gradient",
        None,
    )
    assert (training.epochs, training.minibatches, training.sequence_length, training.clip_range) == (1, 1, None, None)
    assert (training.normalize_advantages, training.episodic_bonus, training.center_bonus) == (
        False,
        "inverse-sqrt",
        False,
    )
    assert (training.penalty_on_revisits, training.earned_trust) == (False, False)
    assert (experiment.network.width, experiment.hash.kind) == (256, None)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_short_and_says_what_it_is(file: Path) -> None:
    first, *others = file.read_text().splitlines()
    assert first.startswith("# ")
    assert len(others) < 15
    assert tomllib.loads(file.read_text())["preset"] == "paper"


@pytest.mark.parametrize("method", METHODS)
def test_a_file_serves_every_method(method: str) -> None:
    text = (FOLDER / "KeyCorridorS4R3.toml").read_text()
    experiment = parse(text, {"method": method, "frames": 20e6})
    assert (experiment.method, experiment.frames, experiment.task) == (method, 20_000_000, "KeyCorridorS4R3")
