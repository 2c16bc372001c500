"""The code of an observation, by the method's hash: fixed-width bytes, equal for equal observations.

N     observations
O...  shape of one observation
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from leco.algo.dedup import distinct
from leco.algo.hashes import OBJECT_CODE_WIDTH, dsc_code, exact_code, objects_code
from leco.methods.table import Hash
from leco.models.intrinsic import HashModule

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from leco.config.training import HashConfig
    from leco.methods.table import Method
    from leco.models.intrinsic import Intrinsic

# Height, width and levels of what DSC keeps, and the largest value of each channel, by the shape of an observation.
_DSC: dict[tuple[int, ...], tuple[tuple[int, int], int, tuple[int, int, int]]] = {
    (7, 7, 3): ((3, 3), 11, (10, 5, 2)),
    (72, 96, 3): ((2, 3), 4, (255, 255, 255)),
}


class HashFunction(NamedTuple):
    """A hash: `hash_` gives uint8 [N, width] for uint8 [N, O...]."""

    width: int
    hash_: Callable[[Tensor], Tensor]

    def codes(self, observation_NO: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The code of each observation: uint8 [N, width]. Each distinct observation is hashed once."""
        with torch.inference_mode():
            unique = distinct(torch.from_numpy(observation_NO))
            return self.hash_(unique.observation_UO)[unique.index_N].numpy()


def make_coder(
    method: Method,
    observation_shape: tuple[int, ...],
    intrinsic: Intrinsic | None,
    hash_size: HashConfig | None = None,
) -> HashFunction | None:
    """The hash of a method; None if the method counts nothing.

    Args:
        method: Whose hash it is.
        observation_shape: O...
        intrinsic: The networks of a method whose hash is learned. The hash follows their parameters, and is to be used while
            they are in evaluation mode.
        hash_size: Of DSC's codes, where it is not the paper's. A learned hash has its size from its networks.
    """
    if not method.counts:
        return None
    if method.hash is Hash.DSC:
        size, levels, maximum = _DSC[observation_shape]
        if hash_size is not None:
            size, levels = hash_size.size or size, hash_size.dsc_levels or levels
        width = size[0] * size[1] * observation_shape[-1]
        return HashFunction(width, partial(dsc_code, size=size, levels=levels, maximum=maximum))
    if method.hash is Hash.EXACT:
        return HashFunction(16, exact_code)
    if method.hash is Hash.OBJECTS:
        return HashFunction(OBJECT_CODE_WIDTH, objects_code)
    if not isinstance(intrinsic, HashModule):
        raise ValueError(  # noqa: TRY004  # what is missing are networks, whatever their type
            f"method {method.name!r} has a learned hash: its networks are needed"
        )
    return HashFunction(intrinsic.bottleneck.code_width, intrinsic.code)
