"""Which networks a method needs for which kind of observation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leco.config.training import NetworkConfig
from leco.learning.state import Networks
from leco.methods.novelty import find_novelty
from leco.methods.table import Hash, Method, Modulation
from leco.models.intrinsic import Intrinsic, build_cell_module, build_feature_module, build_hash_module
from leco.models.kinds.parts import without_mask
from leco.models.kinds.table import find_kind
from leco.models.patches import build_patch_module
from leco.models.policy import make_policy

if TYPE_CHECKING:
    from leco.config.training import HashConfig
    from leco.models.kinds.table import Kind
    from leco.types import ObservationLayout


def build(
    method: Method,
    observation: tuple[int, ...] | ObservationLayout,
    num_actions: int,
    hash_config: HashConfig | None = None,
    network: NetworkConfig | None = None,
) -> Networks:
    """Fresh networks, from torch's random numbers.

    Args:
        method: Decides whether there is an intrinsic module, its hash, what its modulator is told, and what novelty needs.
        observation: The shape of an image, or what the bytes of an observation are: that says its kind.
        num_actions: How many the task has.
        hash_config: The size of codes, where it is not the paper's.
        network: How the policy sees, and how large it is; the paper's, if not given.

    Raises:
        ValueError: no networks are known for such observations, or for such codes.
    """
    kind, network = find_kind(observation), network or NetworkConfig()
    policy = make_policy(kind, num_actions, network)
    intrinsic = build_intrinsic(method, kind, num_actions, hash_config)
    return Networks(policy, intrinsic, find_novelty(method).build(kind, num_actions, network))


def build_intrinsic(
    method: Method, kind: Kind, num_actions: int, hash_config: HashConfig | None = None
) -> Intrinsic | None:
    """The intrinsic module of a method; None if it has none. Arguments are as of `build`."""
    module = _module(method, kind, num_actions, hash_config)
    if module is not None:
        module.bare = partial(without_mask, kind)
    return module


def _module(method: Method, kind: Kind, num_actions: int, hash_config: HashConfig | None) -> Intrinsic | None:
    told = method.modulation is Modulation.REPLACING
    if method.hash is Hash.VQ_CELLS:
        return build_cell_module(kind, num_actions, hash_config, condition_on_novelty=told)
    if method.hash is Hash.VQ_PATCHES:
        return build_patch_module(kind, num_actions, hash_config, condition_on_novelty=told)
    if method.learns_hash:
        bits = method.hash is Hash.AE_LSH
        return build_hash_module(kind, num_actions, hash_config, bits=bits, condition_on_novelty=told)
    return build_feature_module(kind, num_actions, condition_on_novelty=told) if method.has_intrinsic else None
