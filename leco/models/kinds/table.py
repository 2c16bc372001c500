"""The table of kinds of observations: what is known of each without torch, so that a configuration is read without it.

A new kind is a row here and a file beside this one, of the row's name, with its networks (`KindNetworks`). No other file asks
what an observation is. Pictures, numbers, and both together have a row for each shape, which a function here fills in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from leco.types import ObservationLayout

if TYPE_CHECKING:
    from torch import Tensor, nn

    from leco.config.training import NetworkConfig
    from leco.models.autoencoder import Chain, Decoder
    from leco.models.exploration import Embedding
    from leco.models.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A row.

    name           of the file with its networks
    title          for people
    shape          of the image in an observation: height, width, channels of bytes; of numbers alone 1, 1 and how many
    layout         what the bytes of an observation are; the image alone, if None
    channel_max    the largest value of each channel
    hash_size      height and width of what VQ and DSC make of an observation, where `hash.size` does not say
    hash_sizes     those that a learned hash can have; None for any
    hash_image     height and width of the picture that a learned hash encodes; None where `hash.size` says it
    codebook_size  K of VQ, where `hash.codebook_size` does not say
    lsh_units, lsh_bits   of AE-LSH; `hash.bits` may say another number of bits
    dsc_levels     of DSC, where `hash.dsc_levels` does not say
    has_cells      whether its pixels are cells of (object, colour, state), which MiniGrid draws: then its file has what
                   `KindNetworks` says of cells
    has_patches    whether they are pictures and nothing else, which can be cut into patches
    laptop         the preset `laptop` for such observations, as TOML; None for the usual one
    laptop_changes what such observations change in the usual one, as TOML
    laptop_hash    what the usual one counts by, where the method has no hash of its own
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    channel_max: tuple[int, ...]
    hash_size: tuple[int, int]
    hash_sizes: tuple[tuple[int, int], ...] | None = None
    hash_image: tuple[int, int] | None = None
    codebook_size: int
    lsh_units: int
    lsh_bits: int
    dsc_levels: int
    has_cells: bool = False
    has_patches: bool = False
    laptop: str | None = None
    laptop_changes: str = ""
    laptop_hash: str = "vq-cells"
    layout: ObservationLayout | None = None


MINIGRID = Kind(
    name="minigrid",
    title="views of MiniGrid",
    shape=(7, 7, 3),  # cells of (object, colour, state)
    channel_max=(10, 5, 2),
    hash_size=(3, 3),
    codebook_size=8,
    lsh_units=256,
    lsh_bits=25,
    dsc_levels=11,
    has_cells=True,
)

LEAST_SIDE, MOST_SIDE, MOST_CHANNELS = 16, 256, 32  # of pictures
MOST_BESIDE = 256  # numbers beside a picture
_SHORT_SIDE = (
    2.25  # what is left of a picture's shorter side in the smaller z_e, nearly: 72 pixels are halved five times
)

_PAPER_SHAPE = (72, 96, 3)  # as DeepMind Lab and ViZDoom show them

# The preset for pixels of that shape is V-trace in a single pass. Steps are large and have no momentum, so that delay does not
# make them unstable; the modulator learns slowly, so that the first few successes make it no superstition.
_PIXELS_LAPTOP = """\
[training]
policy_learning_rate = 5e-4
policy_betas = [0.0, 0.99]
vtrace_lambda = 0.95
reward_scale = 20
bootstrap_on_truncation = true
entropy_cost = 0.01
modulator_learning_rate = 3e-5
inner_loss = "full"
decoder_samples = 96
"""


def picture_kind(shape: tuple[int, int, int]) -> Kind:
    """The row of pictures of this height, width and number of channels.

    A learned hash halves the picture until the shorter side has two or three places, or once less. It encodes the picture at
    the size from which that comes out even: 72 x 96 at 64 x 96, halved five times to 2 x 3 or four times to 4 x 6.

    Raises:
        ValueError: no network is made for pictures as small, as large, or of as many channels.
    """
    height, width, channels = shape
    if not all(LEAST_SIDE <= side <= MOST_SIDE for side in (height, width)) or not 1 <= channels <= MOST_CHANNELS:
        raise ValueError(
            f"observations have shape {shape}, expected pictures of {LEAST_SIDE} to {MOST_SIDE} pixels in height and width "
            f"and 1 to {MOST_CHANNELS} channels, as [height, width, channels]: resize them in the environment"
        )
    scale = 1 << round(math.log2(min(height, width) / _SHORT_SIDE))
    small = round(height / scale), round(width / scale)
    return Kind(
        name="pixels",
        title="pixels",
        shape=shape,
        channel_max=(255,) * channels,
        hash_size=small,
        hash_sizes=(small, (2 * small[0], 2 * small[1])),
        hash_image=(scale * small[0], scale * small[1]),
        codebook_size=24,
        lsh_units=512,
        lsh_bits=62,
        dsc_levels=4,
        laptop=_PIXELS_LAPTOP if shape == _PAPER_SHAPE else None,
        laptop_changes='[network]\nencoder = "patches"\n',
        laptop_hash="vq-patches",
        has_patches=True,
    )


# Numbers have no cells to hash: they are counted by bins, as many as `dsc_levels`. Their returns are of any size, and mostly
# larger than MiniGrid's, which are at most 1. Of bins most steps are soon first visits, in which no information is left: paid by
# that, an agent that swings is worth no more than one that swings higher (decision 080).
_NUMBERS_LAPTOP = """\
[network]
encoder = "paper"

[training]
gamma = 0.99
reward_scale = 0.1
entropy_cost = 0.005
episodic_bonus = "first-visit"
"""


def number_kind(layout: ObservationLayout) -> Kind:
    """The row of observations of so many numbers. A few have finer bins: with many, nearly every observation is new anyway."""
    return Kind(
        name="numbers",
        title="numbers",
        shape=(1, 1, layout.numbers),
        channel_max=(1,) * layout.numbers,
        hash_size=(2, 2),
        codebook_size=16,
        lsh_units=256,
        lsh_bits=32,
        dsc_levels=64 if layout.numbers <= 3 else 16,
        laptop_changes=_NUMBERS_LAPTOP,
        laptop_hash="dsc",
        layout=layout,
    )


# Rewards of anybody's environments may come at every step: in MiniGrid's scale, 10, the value's loss would drown the policy's.
_MIXED_LAPTOP = """\
[network]
encoder = "patches"

[training]
reward_scale = 0.3
"""


def mixed_kind(layout: ObservationLayout) -> Kind:
    """The row of observations of an image and so many numbers.

    Raises:
        ValueError: no network is made for such an image, or for so many numbers beside it.
    """
    if layout.numbers > MOST_BESIDE:
        raise ValueError(
            f"observations have {layout.numbers} numbers beside an image, expected at most {MOST_BESIDE}: take some away in the "
            "environment, or with a wrapper"
        )
    return replace(
        picture_kind(cast("tuple[int, int, int]", layout.image)),
        name="mixed",
        title="pixels and numbers",
        laptop_changes=_MIXED_LAPTOP,
        laptop_hash="dsc",
        has_patches=False,
        layout=layout,
    )


PIXELS = picture_kind(_PAPER_SHAPE)
KINDS = (
    MINIGRID,
    PIXELS,
)


class Autoencoder(NamedTuple):
    """What is between an observation and z_e: an image of it, the encoder, and the decoder back to the image."""

    scale: nn.Module
    encoder: Chain
    decoder: Decoder


class Features(NamedTuple):
    """A network of observations [N, O...] and how often each occurs (for batch norms) to [N, width]."""

    network: nn.Module
    width: int


class KindNetworks(Protocol):
    """What the file of a kind has; `kind` is the row. What is of objects and cells only if the row says that there are any.

    OBJECT_CODE_WIDTH  bytes of `objects_code`
    CELL_VALUES        how many values each channel of a cell has
    CELL_LEVELS        how many codes `cells_code` gives an observation
    """

    OBJECT_CODE_WIDTH: int
    CELL_VALUES: tuple[int, int, int]
    CELL_LEVELS: int

    def build_policy(self, kind: Kind, num_actions: int, network: NetworkConfig) -> Policy:
        """The policy."""

    def build_autoencoder(self, kind: Kind, size: tuple[int, int]) -> Autoencoder:
        """Of a learned hash; `size` is the height and width of z_e."""

    def build_features(self, kind: Kind) -> Features:
        """For modulator and V^e, where no hash is learned."""

    def build_patch_features(self, kind: Kind) -> Features:
        """The same beside a hash of patches; of pictures alone."""

    def build_embedding(self, kind: Kind) -> Embedding:
        """For the networks of RND, NovelD and RIDE."""

    def objects_code(self, observation_NO: Tensor) -> Tensor:
        """A code of the objects in each observation, uint8 [N, OBJECT_CODE_WIDTH]."""

    def cells_code(self, observation_NO: Tensor) -> Tensor:
        """Codes of each observation, fine to coarse, uint8 [N, CELL_LEVELS x 16]."""

    def cell_number(self, observation_NO: Tensor) -> Tensor:
        """Which of all different cells each cell is, int64 [N, C]."""

    def levels_code(self, code_NC: Tensor, codes: int) -> Tensor:
        """As `cells_code`, by any number for each cell, below `codes`."""


def find_kind(observation: tuple[int, ...] | ObservationLayout) -> Kind:
    """The row of such observations: of exactly this shape, or that of pictures, of numbers, or of both.

    Args:
        observation: The shape of an image, or what the bytes of an observation are.

    Raises:
        ValueError: there is none.
    """
    if not isinstance(observation, ObservationLayout):
        return _image_kind(observation)
    if observation.numbers:
        return number_kind(observation) if observation.image is None else mixed_kind(observation)
    kind = _image_kind(observation.image or ())
    return replace(kind, layout=observation) if observation.actions else kind


def _image_kind(observation_shape: tuple[int, ...]) -> Kind:
    for kind in KINDS:
        if kind.shape == observation_shape:
            return kind
    if len(observation_shape) != 3:
        raise ValueError(f"observations have shape {observation_shape}, expected pictures: [height, width, channels]")
    return picture_kind(observation_shape)


def networks_of(kind: Kind) -> KindNetworks:
    """The file of a kind."""
    return cast("KindNetworks", import_module(f"leco.models.kinds.{kind.name}"))
