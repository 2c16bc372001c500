"""The table of kinds of observations: what is known of each without torch, so that a configuration is read without it.

A new kind is a row here and a file beside this one, of the row's name, with its networks (`KindNetworks`). No other file asks
what an observation is.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from torch import Tensor, nn

    from leco.config.training import NetworkConfig
    from leco.models.autoencoder import Chain, Decoder, Scale
    from leco.models.exploration import Embedding
    from leco.models.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A row.

    name           of the file with its networks
    title          for people
    shape          of one observation: height, width, channels of bytes
    channel_max    the largest value of each channel
    hash_size      height and width of what VQ and DSC make of an observation, where `hash.size` does not say
    hash_sizes     those that a learned hash can have; None for any
    codebook_size  K of VQ, where `hash.codebook_size` does not say
    lsh_units, lsh_bits   of AE-LSH; `hash.bits` may say another number of bits
    dsc_levels     of DSC, where `hash.dsc_levels` does not say
    has_cells      whether its pixels are cells of (object, colour, state), which MiniGrid draws: then its file has what
                   `KindNetworks` says of cells
    laptop         the preset `laptop` for such observations, as TOML; None for the usual one
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    channel_max: tuple[int, int, int]
    hash_size: tuple[int, int]
    hash_sizes: tuple[tuple[int, int], ...] | None = None
    codebook_size: int
    lsh_units: int
    lsh_bits: int
    dsc_levels: int
    has_cells: bool = False
    laptop: str | None = None


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

# The preset for pixels is V-trace in a single pass. Steps are large and have no momentum, so that delay does not make them
# unstable; the modulator learns slowly, so that the first few successes make it no superstition.
PIXELS = Kind(
    name="pixels",
    title="pixels",
    shape=(72, 96, 3),
    channel_max=(255, 255, 255),
    hash_size=(2, 3),
    hash_sizes=((2, 3), (4, 6)),
    codebook_size=24,
    lsh_units=512,
    lsh_bits=62,
    dsc_levels=4,
    laptop="""\
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
""",
)

KINDS = (
    MINIGRID,
    PIXELS,
)


class Autoencoder(NamedTuple):
    """What is between an observation and z_e: an image of it, the encoder, and the decoder back to the image."""

    scale: Scale
    encoder: Chain
    decoder: Decoder


class Features(NamedTuple):
    """A network of observations [N, O...] and how often each occurs (for batch norms) to [N, width]."""

    network: nn.Module
    width: int


class KindNetworks(Protocol):
    """What the file of a kind has. What is of objects and cells only if the row says that there are any.

    OBJECT_CODE_WIDTH  bytes of `objects_code`
    CELL_VALUES        how many values each channel of a cell has
    CELL_LEVELS        how many codes `cells_code` gives an observation
    """

    OBJECT_CODE_WIDTH: int
    CELL_VALUES: tuple[int, int, int]
    CELL_LEVELS: int

    def build_policy(self, num_actions: int, network: NetworkConfig) -> Policy:
        """The policy."""

    def build_autoencoder(self, size: tuple[int, int]) -> Autoencoder:
        """Of a learned hash; `size` is the height and width of z_e."""

    def build_features(self) -> Features:
        """For modulator and V^e, where no hash is learned."""

    def build_embedding(self) -> Embedding:
        """For the networks of RND, NovelD and RIDE."""

    def objects_code(self, observation_NO: Tensor) -> Tensor:
        """A code of the objects in each observation, uint8 [N, OBJECT_CODE_WIDTH]."""

    def cells_code(self, observation_NO: Tensor) -> Tensor:
        """Codes of each observation, fine to coarse, uint8 [N, CELL_LEVELS x 16]."""

    def cell_number(self, observation_NO: Tensor) -> Tensor:
        """Which of all different cells each cell is, int64 [N, C]."""

    def levels_code(self, code_NC: Tensor, codes: int) -> Tensor:
        """As `cells_code`, by any number for each cell, below `codes`."""


def find_kind(observation_shape: tuple[int, ...]) -> Kind:
    """The row of such observations.

    Raises:
        ValueError: there is none.
    """
    for kind in KINDS:
        if kind.shape == observation_shape:
            return kind
    known = " and ".join(str(kind.shape) for kind in KINDS)
    raise ValueError(f"there are networks for observations of shape {known}, not {observation_shape}")


def networks_of(kind: Kind) -> KindNetworks:
    """The file of a kind."""
    return cast("KindNetworks", import_module(f"leco.models.kinds.{kind.name}"))
