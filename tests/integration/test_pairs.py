"""Every method for every task of the registry that it can be asked for: settings, networks, codes and one step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leco.checkpoint.snapshot import load_snapshot, make_snapshot
from leco.config.experiment import Experiment, method_of
from leco.config.toml import parse
from leco.envs.registry import TASKS, find_task
from leco.learning.state import Batch, init
from leco.learning.update import update
from leco.methods.table import METHODS
from leco.models.build import build
from leco.models.hash_function import make_hash_function
from leco.models.kinds.table import find_kind

T, B = 2, 2
SHAPE = (7, 7, 3)
# Objects are counted in MiniGrid alone; tests/unit/config/test_toml.py has the refusal.
PAIRS = [
    (task, method)
    for task in TASKS
    for method in METHODS
    if method != "objects" or TASKS[task].observation_shape == SHAPE
]
ON_A_LAPTOP = [pair for pair in PAIRS if pair[0] in ("KeyCorridorS3R3", "vizdoom-my-way-home")]


def batch(shape: tuple[int, ...], actions: int, core: torch.Tensor, *, counted: bool) -> Batch:
    generator = torch.Generator().manual_seed(0)
    highest = torch.tensor([10, 5, 2] if shape == SHAPE else [255, 255, 255])
    observation = (torch.rand(T + 1, B, *shape, generator=generator) * (highest + 1)).floor().to(torch.uint8)
    start_TB = torch.zeros(T + 1, B, dtype=torch.bool)
    start_TB[1, 0] = True
    return Batch(
        observation_TBO=observation,
        start_TB=start_TB,
        action_TB=torch.randint(actions, (T, B), generator=generator),
        reward_TB=torch.rand(T, B, generator=generator),
        behaviour_logits_TBA=torch.randn(T, B, actions, generator=generator),
        previous_action_B=torch.zeros(B, dtype=torch.int64),
        previous_reward_B=torch.zeros(B),
        core_state=core,
        count_TB=torch.ones(T, B, dtype=torch.int64) if counted else None,
        terminal_observation_FO=observation[0, :1],
    )


@pytest.mark.parametrize(("task", "method"), PAIRS)
def test_a_method_takes_a_step_on_a_task(task: str, method: str) -> None:
    experiment = parse("", {"task": task, "method": method})
    known, row = TASKS[task], METHODS[method]
    assert experiment.training.gamma == known.gamma
    assert experiment.training.alpha == row.alpha_of(find_kind(known.observation_shape).name)
    assert experiment.training.reward_shaping == ("soft-asymmetric" if known.family == "dmlab" else "none")
    assert method_of(experiment) == row
    take_a_step(experiment)


@pytest.mark.parametrize(("task", "method"), ON_A_LAPTOP)
def test_a_method_takes_a_step_on_a_laptop(task: str, method: str) -> None:
    take_a_step(parse("", {"task": task, "method": method, "preset": "laptop"}))


@pytest.mark.parametrize("kind", ["vq", "ae-lsh", "dsc", "exact", "objects", "cells", "vq-cells"])
@pytest.mark.parametrize("method", ["leco", "leco-naive", "lirpg", "dsc", "ride"])
def test_a_method_takes_a_step_with_another_hash(method: str, kind: str) -> None:
    take_a_step(parse("", {"task": "KeyCorridorS3R3", "method": method, "hash.kind": kind, "preset": "laptop"}))


@pytest.mark.parametrize("kind", [None, "vq", "exact"])
@pytest.mark.parametrize("method", ["leco", "leco-naive", "lirpg", "noveld", "no-int"])
def test_a_method_takes_a_step_on_small_pictures(method: str, kind: str | None) -> None:
    if method == "no-int" and kind is not None:
        return
    overrides = {"task": "KeyCorridorS3R3-RGB", "method": method, "preset": "laptop"}
    experiment = parse("", overrides if kind is None else overrides | {"hash.kind": kind})
    assert (method_of(experiment).hash.value == "vq-patches") == (method == "leco" and kind is None)
    assert experiment.network.encoder == "patches"
    take_a_step(experiment)


def take_a_step(experiment: Experiment) -> None:
    known, row = find_task(experiment.task), method_of(experiment)
    torch.manual_seed(0)
    networks = build(row, known.observation_shape, known.num_actions, experiment.hash, experiment.network)
    coder = make_hash_function(
        row, find_kind(known.observation_shape), networks.intrinsic and networks.intrinsic.eval(), experiment.hash
    )
    assert (coder is not None) == row.counts
    state = init(networks)
    data = batch(known.observation_shape, known.num_actions, networks.policy.initial_state(B), counted=row.counts)
    after, stats = update(networks, state, data, row, experiment.training)
    assert all(np.isfinite(value) for value in stats.values())
    assert any(not torch.equal(after.policy[name], state.policy[name]) for name in state.policy)
    load_snapshot(make_snapshot(after, 1), networks)  # an actor of this run could play with it
    if coder is not None:
        assert coder.codes(data.observation_TBO.flatten(0, 1).numpy()).shape == (
            (T + 1) * B,
            coder.levels * coder.width,
        )
