"""Trajectories side by side, time first: the batch that `leco.learning.update.update` takes.

T  actions in an unroll        B  trajectories in a batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from leco.learning.state import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from leco.types import Trajectory


def make_batch(trajectories: Sequence[Trajectory], device: torch.device, *, max_steps: int) -> Batch:
    """B trajectories of one run as tensors. Counts are there if every trajectory has them.

    max_steps: of the task, after which it cuts an episode off; 0 if only its environments know when, and say so.
    """

    def stacked(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([getattr(each, name) for each in trajectories], axis=1)).to(device)

    counted = all(each.count is not None for each in trajectories)
    coarse = counted and trajectories[0].coarse_count is not None
    return Batch(
        observation_TBO=stacked("observation"),
        start_TB=stacked("start"),
        action_TB=stacked("action"),
        reward_TB=stacked("reward"),
        behaviour_logits_TBA=stacked("behaviour_logits"),
        previous_action_B=torch.tensor([each.previous_action for each in trajectories], device=device),
        previous_reward_B=torch.tensor(
            [each.previous_reward for each in trajectories], dtype=torch.float32, device=device
        ),
        core_state=torch.from_numpy(np.stack([each.core_state for each in trajectories], axis=2)).to(device),
        count_TB=stacked("count").long() if counted else None,
        coarse_count_TBM=stacked("coarse_count").long() if coarse else None,
        coarse_code_TBM=stacked("coarse_code").long() if coarse else None,
        truncated_TB=torch.from_numpy(np.stack([_cuts(each, max_steps) for each in trajectories], axis=1)).to(device),
        terminal_observation_FO=torch.from_numpy(_last(trajectories)).to(device),
    )


def _last(trajectories: Sequence[Trajectory]) -> npt.NDArray[np.uint8]:
    """The true last observations of all episodes that ended, by time and then by trajectory."""
    every_FO = np.concatenate([each.terminal_observation for each in trajectories])
    when_F = np.concatenate([np.flatnonzero(each.start[1:]) for each in trajectories])
    return every_FO[np.argsort(when_F, kind="stable")]


def _cuts(trajectory: Trajectory, max_steps: int) -> npt.NDArray[np.bool_]:
    """Which actions [T] ended an episode only because its time was over, or it was dropped."""
    cut_T = trajectory.start[1:].copy()
    cut_T[cut_T] = [
        episode.dropped or episode.truncated or (not episode.success and 0 < max_steps <= episode.length)
        for episode in trajectory.episodes
    ]
    return cut_T
