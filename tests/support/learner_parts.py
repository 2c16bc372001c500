"""Small trajectories and states, for tests of the learner's parts."""

from __future__ import annotations

import functools

import numpy as np
import torch

from leco.learning.state import Networks, TrainingState, init
from leco.methods.table import find_method
from leco.models.build import build
from leco.types import EpisodeSummary, Trajectory

T, A = 3, 7


@functools.cache
def networks(method: str = "no-int") -> Networks:
    torch.manual_seed(0)
    return build(find_method(method), (7, 7, 3), A)


def state(updates: int, shift: float = 0.0) -> TrainingState:
    """A state that can be told from others."""
    fresh = init(networks())
    policy = {name: tensor + shift for name, tensor in fresh.policy.items()}
    return fresh._replace(policy=policy, updates=updates)


def trajectory(number: int, *, counted: bool = True, version: int = 1) -> Trajectory:
    """One of random numbers, by its number."""
    random = np.random.default_rng(number)
    start_T = random.random(T + 1) < 0.3
    return Trajectory(
        number=number,
        parameters_version=version,
        previous_action=int(random.integers(A)),
        previous_reward=float(random.random()),
        observation=random.integers(3, size=(T + 1, 7, 7, 3)).astype(np.uint8),
        start=start_T,
        terminal_observation=random.integers(3, size=(int(start_T[1:].sum()), 7, 7, 3)).astype(np.uint8),
        action=random.integers(A, size=T).astype(np.int32),
        reward=random.random(T).astype(np.float32),
        behaviour_logits=random.normal(size=(T, A)).astype(np.float32),
        core_state=random.normal(size=(1, 2, 256)).astype(np.float32),
        count=random.integers(1, 9, size=T).astype(np.uint32) if counted else None,
        episodes=(EpisodeSummary(0.5, 3, success=True),) * int(start_T[1:].sum()),
    )
