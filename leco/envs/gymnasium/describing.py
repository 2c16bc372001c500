"""What an environment is, found by making one and playing in it: its observations, its actions, and what calls it solved."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from leco.envs.gymnasium.actions import Actions
from leco.envs.gymnasium.making import make_one, usual
from leco.envs.gymnasium.observations import Encoder
from leco.envs.gymnasium.single import SUCCESS, mask_of

if TYPE_CHECKING:
    import gymnasium

    from leco.envs.task import EnvironmentConfig

MOST_STEPS = 2_000  # of the episode that is played to its end, to see what its last `info` has
MOST_SECONDS = 5.0


def described(name: str, given: EnvironmentConfig) -> EnvironmentConfig:
    """The same configuration with what the environment is, and with the usual wrappers where it names none.

    Raises:
        ValueError: there is no such environment, or one that cannot be learned from.
    """
    wrappers, kwargs = usual(name) if given.wrappers is None else (given.wrappers, {})
    given = dataclasses.replace(given, wrappers=wrappers, kwargs={**kwargs, **given.kwargs})
    with closing(make_one(name, given.kwargs, wrappers)) as env:
        try:
            actions = Actions(env.action_space)
            layout = Encoder(env.observation_space).layout
            masks, tells = _played(env, actions)
        except ValueError as problem:
            raise ValueError(f"{name} cannot be learned: {problem}") from problem
        spec = env.spec
        return dataclasses.replace(
            given,
            image=layout.image,
            numbers=layout.numbers,
            masks=masks,
            num_actions=actions.count,
            max_steps=0 if spec is None or spec.max_episode_steps is None else spec.max_episode_steps,
            success=given.success
            or ("info" if tells else "none" if spec is None or spec.reward_threshold is None else "threshold"),
        )


def _played(env: gymnasium.Env[Any, Any], actions: Actions) -> tuple[bool, bool]:
    """Whether it says which actions may be taken; and whether it says, perhaps only at the end, that an episode was solved."""
    _, info = env.reset(seed=0)
    masks = mask_of(env, info) is not None
    random, until = np.random.default_rng(0), time.monotonic() + MOST_SECONDS
    for _ in range(MOST_STEPS):
        allowed = np.flatnonzero(actions.mask(mask_of(env, info))) if masks else np.arange(actions.count)
        _, _, terminated, truncated, info = env.step(actions.decode(int(random.choice(allowed))))
        tells = any(each in info for each in SUCCESS)
        if tells or terminated or truncated or time.monotonic() > until:
            return masks, tells
    return masks, False
