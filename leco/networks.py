"""Which networks a method needs for which kind of observation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.methods import Hash, Modulation
from leco.nets.intrinsic import dmlab_intrinsic, minigrid_intrinsic
from leco.nets.policy import DmlabPolicy, MiniGridPolicy
from leco.training import Networks

if TYPE_CHECKING:
    from leco.methods import Method

_KINDS = {(7, 7, 3): (MiniGridPolicy, minigrid_intrinsic), (72, 96, 3): (DmlabPolicy, dmlab_intrinsic)}


def build(method: Method, observation_shape: tuple[int, ...], actions: int) -> Networks:
    """Fresh networks, from torch's random numbers.

    Args:
        method: Decides whether there is an intrinsic module, its hash, and what its modulator is told.
        observation_shape: Of one observation: (7, 7, 3) for MiniGrid's views, (72, 96, 3) for pixels.
        actions: How many the task has.

    Raises:
        ValueError: no networks are known for such observations.
    """
    if observation_shape not in _KINDS:
        known = " and ".join(map(str, _KINDS))
        raise ValueError(f"there are networks for observations of shape {known}, not {observation_shape}")
    policy, intrinsic = _KINDS[observation_shape]
    if not method.learns_hash:
        return Networks(policy(actions), None)
    told = method.modulation is Modulation.REPLACING
    return Networks(policy(actions), intrinsic(actions, bits=method.hash is Hash.AE_LSH, told_novelty=told))
