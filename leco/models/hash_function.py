"""The code of an observation, by the method's hash: fixed-width bytes, equal for equal observations.

N     observations
O...  shape of one observation
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from leco.algo.dedup import distinct
from leco.algo.hashes import DIGEST_WIDTH, bins_code, digest, dsc_code
from leco.config.training import HashConfig
from leco.methods.table import Hash
from leco.models.intrinsic import CodebookModule, HashModule
from leco.models.kinds.parts import image_of, numbers_of, squashed, without_mask
from leco.models.kinds.table import networks_of
from leco.types import ObservationLayout

LONGEST = 256  # bytes of a code that the hash-count service takes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from torch import Tensor

    from leco.learning.state import Params
    from leco.methods.table import Method
    from leco.models.intrinsic import Intrinsic
    from leco.models.kinds.table import Kind


class HashFunction(NamedTuple):
    """A hash: `hash_` gives uint8 [N, levels width] for uint8 [N, O...].

    width    of a code
    hash_    the code of each observation and, in a row with it, coarser ones that are counted beside it
    network  of a learned hash
    levels   how many codes an observation has; no code of one level is one of another
    """

    width: int
    hash_: Callable[[Tensor], Tensor]
    network: HashModule | CodebookModule | None = None
    levels: int = 1

    def level(self, number: int) -> HashFunction:
        """One level of it, from 0 for the finest."""
        begin = number * self.width
        return HashFunction(
            self.width, lambda observation_NO: self.hash_(observation_NO)[:, begin : begin + self.width]
        )

    @torch.no_grad()
    def load(self, tensors: Params) -> None:
        """Goes on with these parameters and running statistics; nothing to do if the hash is not learned."""
        if self.network is None:
            return
        own = {**dict(self.network.named_parameters()), **dict(self.network.named_buffers())}
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
        self.network.eval()

    def codes(self, observation_NO: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The codes of each observation: uint8 [N, levels width]. Each distinct observation is hashed once."""
        with torch.inference_mode():
            unique = distinct(torch.from_numpy(observation_NO))
            return self.hash_(unique.observation_UO)[unique.index_N].numpy()


def first_bytes(code_NW: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """What a trajectory says of each code: its first four bytes, little-endian. Any shape [..., W] -> [...]."""
    first: npt.NDArray[np.uint32] = np.ascontiguousarray(code_NW[..., :4]).view("<u4")[..., 0]
    return first


def make_hash_function(
    method: Method, kind: Kind, intrinsic: Intrinsic | None, given: HashConfig | None = None
) -> HashFunction | None:
    """The hash of a method; None if the method counts nothing.

    Args:
        method: Whose hash it is.
        kind: Of the observations.
        intrinsic: The networks of a method whose hash is learned. The hash follows their parameters, and is to be used while
            they are in evaluation mode.
        given: The size of DSC's codes, where it is not the paper's. A learned hash has its size from its networks.
    """
    given = given or HashConfig()
    if not method.counts:
        return None
    bare, networks = partial(without_mask, kind), networks_of(kind)
    if method.hash is Hash.DSC:
        return _dsc(kind, given.size or kind.hash_size, given.dsc_levels or kind.dsc_levels)
    if method.hash is Hash.EXACT:
        return HashFunction(DIGEST_WIDTH, lambda observation_NO: digest(bare(observation_NO)))
    if method.hash is Hash.OBJECTS:
        return HashFunction(
            networks.OBJECT_CODE_WIDTH, lambda observation_NO: networks.objects_code(bare(observation_NO))
        )
    if method.hash is Hash.CELLS:
        return HashFunction(
            DIGEST_WIDTH, lambda observation_NO: networks.cells_code(bare(observation_NO)), levels=networks.CELL_LEVELS
        )
    if method.hash in (Hash.VQ_CELLS, Hash.VQ_PATCHES) and isinstance(intrinsic, CodebookModule):
        return HashFunction(DIGEST_WIDTH, intrinsic.code, intrinsic, levels=intrinsic.levels)
    if not isinstance(intrinsic, HashModule):
        raise ValueError(  # noqa: TRY004  # what is missing are networks, whatever their type
            f"method {method.name!r} has a learned hash: its networks are needed"
        )
    return HashFunction(intrinsic.bottleneck.code_width, intrinsic.code, intrinsic)


def _dsc(kind: Kind, size: tuple[int, int], levels: int) -> HashFunction:
    """The image downsampled and coarsely quantised, and the numbers in bins; digested, where that is too long for a code."""

    def code(observation_NO: Tensor) -> Tensor:
        image_NHWC, number_NF = image_of(kind, observation_NO), numbers_of(kind, observation_NO)
        parts = []
        if image_NHWC is not None:
            parts.append(dsc_code(image_NHWC, size=size, levels=levels, maximum=kind.channel_max))
        if number_NF is not None:
            parts.append(bins_code(squashed(number_NF), levels))
        return torch.cat(parts, 1)

    layout = kind.layout or ObservationLayout(kind.shape)
    width = (0 if layout.image is None else size[0] * size[1] * kind.shape[-1]) + layout.numbers
    if width > LONGEST:
        return HashFunction(DIGEST_WIDTH, lambda observation_NO: digest(code(observation_NO)))
    return HashFunction(width, code)
