"""An episode as a GIF: drawn by MiniGrid itself, or the pictures that the agent saw."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from PIL import Image

from leco.algo.sampling import draw_action
from leco.envs.registry import make
from leco.envs.vector import episode_seed
from leco.nets.stepping import stepper
from services.evaluate import dropped_now, playing

if TYPE_CHECKING:
    from pathlib import Path

    from leco.envs.registry import Task
    from leco.nets.policy import Policy

MILLISECONDS = 100
LAST_MILLISECONDS = 1500
ENLARGED = 3  # times, where the agent sees small pictures


def film(policy: Policy, task: Task, path: Path, *, seed: int, greedy: bool) -> int:
    """Plays the first episode that `leco eval` plays with this seed's levels, and draws it.

    Returns:
        How many actions it had.
    """
    if task.simulator == "minigrid":
        frames = [Image.fromarray(each).quantize(64) for each in _drawn(policy, task, seed=seed, greedy=greedy)]
    else:
        height, width, _ = task.observation_shape
        size = (ENLARGED * width, ENLARGED * height)
        pictures = _seen(policy, task, seed=seed, greedy=greedy)
        frames = [Image.fromarray(each).quantize(64).resize(size, Image.Resampling.NEAREST) for each in pictures]
    durations = [MILLISECONDS] * (len(frames) - 1) + [LAST_MILLISECONDS]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return len(frames) - 1


@torch.inference_mode()
def _drawn(policy: Policy, task: Task, *, seed: int, greedy: bool) -> list[np.ndarray]:
    """An episode of MiniGrid, from above."""
    import minigrid  # noqa: F401, PLC0415  # registers its tasks

    env: Any = gymnasium.make(task.id, render_mode="rgb_array")
    view, _ = env.reset(seed=episode_seed(seed, 0, 0))
    random = torch.Generator().manual_seed(seed)
    step, core, previous, reward, over = stepper(policy), policy.initial_state(1), -1, 0.0, False
    pictures = [np.asarray(env.render())]
    while not over:
        seen = (torch.from_numpy(view["image"][None]), *map(torch.tensor, ([previous < 0], [previous], [reward])))
        logits_1A, core = step(core, *seen)
        previous = int(logits_1A.argmax() if greedy else draw_action(logits_1A, random))
        view, reward, ended, cut, _ = env.step(previous)
        over = bool(ended or cut)
        pictures.append(np.asarray(env.render()))
    env.close()
    return pictures


def _seen(policy: Policy, task: Task, *, seed: int, greedy: bool) -> list[np.ndarray]:
    """The observations of an episode. If its engine fails, of the next one."""
    with closing(make(task, 1, seed)) as env:
        first_1O = env.reset()
        pictures = [*first_1O]
        for steps in playing(policy, env, first_1O, torch.Generator().manual_seed(seed), greedy=greedy):
            if steps.ended_E[0]:
                if not dropped_now(env)[0]:
                    pictures.append(steps.terminal_observation_FO[0])
                    break
                pictures = []
            pictures.append(steps.observation_EO[0])
    return pictures
