"""An episode as a GIF, drawn by MiniGrid itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from PIL import Image

from leco.algo.sampling import draw_action
from leco.envs.vector import episode_seed
from leco.nets.stepping import stepper

if TYPE_CHECKING:
    from pathlib import Path

    from leco.envs.registry import Task
    from leco.nets.policy import Policy

MILLISECONDS = 100
LAST_MILLISECONDS = 1500


@torch.inference_mode()
def film(policy: Policy, task: Task, path: Path, *, seed: int, greedy: bool) -> int:
    """Plays the first episode that `leco eval` plays with this seed's levels, and draws it.

    Returns:
        How many actions it had.
    """
    import minigrid  # noqa: F401, PLC0415  # registers its tasks

    env: Any = gymnasium.make(task.id, render_mode="rgb_array")
    view, _ = env.reset(seed=episode_seed(seed, 0, 0))
    random = torch.Generator().manual_seed(seed)
    step, core, previous, reward, over = stepper(policy), policy.initial_state(1), -1, 0.0, False
    pictures = [env.render()]
    while not over:
        seen = (torch.from_numpy(view["image"][None]), *map(torch.tensor, ([previous < 0], [previous], [reward])))
        logits_1A, core = step(core, *seen)
        previous = int(logits_1A.argmax() if greedy else draw_action(logits_1A, random))
        view, reward, ended, cut, _ = env.step(previous)
        over = bool(ended or cut)
        pictures.append(env.render())
    env.close()
    frames = [Image.fromarray(np.asarray(picture)).quantize(64) for picture in pictures]
    durations = [MILLISECONDS] * (len(frames) - 1) + [LAST_MILLISECONDS]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)
    return len(frames) - 1
