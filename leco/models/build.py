"""Which networks a method needs for which kind of observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leco.config.training import HashConfig
from leco.learning.state import Networks
from leco.methods.novelty import find_novelty
from leco.methods.table import Hash, Method, Modulation
from leco.models.exploration import Embedding, dmlab_embedding, minigrid_embedding
from leco.models.intrinsic import (
    FeatureModule,
    HashModule,
    Intrinsic,
    dmlab_features,
    dmlab_intrinsic,
    minigrid_features,
    minigrid_intrinsic,
)
from leco.models.policy import PAPER_WIDTH, DmlabPolicy, MiniGridPolicy, Policy

if TYPE_CHECKING:
    from collections.abc import Callable


class Kind(NamedTuple):
    """How networks are made for one kind of observation."""

    policy: Callable[[int, int], Policy]
    intrinsic: Callable[..., HashModule]
    features: Callable[..., FeatureModule]
    embedding: Callable[[], Embedding]


_KINDS = {
    (7, 7, 3): Kind(MiniGridPolicy, minigrid_intrinsic, minigrid_features, minigrid_embedding),
    (72, 96, 3): Kind(DmlabPolicy, dmlab_intrinsic, dmlab_features, dmlab_embedding),
}


def build(
    method: Method,
    observation_shape: tuple[int, ...],
    actions: int,
    hash_size: HashConfig | None = None,
    width: int = PAPER_WIDTH,
) -> Networks:
    """Fresh networks, from torch's random numbers.

    Args:
        method: Decides whether there is an intrinsic module, its hash, what its modulator is told, and what novelty needs.
        observation_shape: Of one observation: (7, 7, 3) for MiniGrid's views, (72, 96, 3) for pixels.
        actions: How many the task has.
        hash_size: Of the codes, where it is not the paper's.
        width: Of the policy's features and recurrent core.

    Raises:
        ValueError: no networks are known for such observations, or for such codes.
    """
    if observation_shape not in _KINDS:
        known = " and ".join(map(str, _KINDS))
        raise ValueError(f"there are networks for observations of shape {known}, not {observation_shape}")
    kind = _KINDS[observation_shape]
    policy, intrinsic = kind.policy(actions, width), _intrinsic(method, kind, actions, hash_size or HashConfig())
    return Networks(policy, intrinsic, find_novelty(method).build(kind, actions, width))


def _intrinsic(method: Method, kind: Kind, actions: int, hash_size: HashConfig) -> Intrinsic | None:
    told = method.modulation is Modulation.REPLACING
    if method.learns_hash:
        return kind.intrinsic(actions, hash_size, bits=method.hash is Hash.AE_LSH, condition_on_novelty=told)
    return kind.features(actions, condition_on_novelty=told) if method.has_intrinsic else None
