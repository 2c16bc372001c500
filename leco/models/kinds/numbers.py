"""Numbers: positions, velocities, one-hot categories, whatever an environment says in numbers of the size of 1.

N     observations
O...  shape of one observation
F     numbers of an observation
D     width of every layer of a hash, and of a code vector
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from leco.models.autoencoder import Chain, Decoder
from leco.models.exploration import Embedding
from leco.models.intrinsic import WIDTH
from leco.models.kinds.parts import numbers_of, squashed
from leco.models.kinds.table import Autoencoder, Features
from leco.models.policy import Policy, begin_orthogonal
from leco.models.weighted_norm import Normed

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.models.kinds.table import Kind

FEATURE_WIDTH = 128
EMBEDDING_WIDTH = 128


class Numbers(nn.Module):
    """The bytes of an observation -> its numbers."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = kind

    def forward(self, observation_NO: Tensor) -> Tensor:
        """uint8 [N, O...] -> float32 [N, F]."""
        return cast("Tensor", numbers_of(self._kind, observation_NO))


class NumberPolicy(Policy):
    """Two layers before the recurrent core, as most have it for a few numbers."""

    def __init__(self, kind: Kind, num_actions: int, width: int) -> None:
        encoder = nn.Sequential(Numbers(kind), *number_layers(kind, width))
        super().__init__(
            num_actions, encoder, image=(4 * kind.shape[-1],), width=width, layers=1, use_last_action_reward=False
        )
        begin_orthogonal(self)


class _FromSingle(nn.Linear):
    """A linear layer of any precision on numbers, which are float32."""

    def forward(self, number_NF: Tensor) -> Tensor:
        return super().forward(number_NF.to(self.weight.dtype))


def number_layers(kind: Kind, width: int) -> list[nn.Module]:
    """Two linear layers on an observation's numbers."""
    count = kind.layout.numbers if kind.layout is not None else 0
    return [_FromSingle(count, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]


class NumberFeatures(nn.Module):
    """A linear layer and a ReLU."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.layers = nn.Sequential(Numbers(kind), _FromSingle(kind.shape[-1], FEATURE_WIDTH), nn.ReLU())

    def forward(self, observation_NO: Tensor, _weight_N: Tensor | None = None) -> Tensor:
        """[N, O...] -> [N, features]."""
        feature_NF: Tensor = self.layers(observation_NO)
        return feature_NF


class NumberScale(nn.Module):
    """An image of one pixel, whose channels are the numbers within -1 and 1: what is encoded and reconstructed."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.read = Numbers(kind)

    def forward(self, observation_NO: Tensor) -> Tensor:
        """[N, O...] -> [N, F, 1, 1]."""
        return squashed(self.read(observation_NO))[:, :, None, None]


class Reshaped(nn.Module):
    """Channels to places, or back."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self._shape = shape

    def forward(self, x_NDHW: Tensor, _weight_N: Tensor | None = None) -> Tensor:
        """[N, ...] -> [N, *shape]."""
        return x_NDHW.reshape(-1, *self._shape)


def build_policy(kind: Kind, num_actions: int, network: NetworkConfig) -> Policy:
    """Two linear layers before the core."""
    return NumberPolicy(kind, num_actions, network.width)


def build_autoencoder(kind: Kind, size: tuple[int, int]) -> Autoencoder:
    """Convolutions of 1 x 1 on an image of one pixel are linear layers; z_e's places come from channels."""
    count, places = kind.shape[-1], size[0] * size[1]

    def linear(channels_in: int, channels: int, *, relu: bool = True) -> Normed:
        return Normed(nn.Conv2d(channels_in, channels, 1, bias=False), relu=relu)

    encoder = Chain([linear(count, WIDTH), linear(WIDTH, WIDTH * places, relu=False), Reshaped(WIDTH, *size)])
    blocks = [Reshaped(WIDTH * places, 1, 1), linear(WIDTH * places, WIDTH), linear(WIDTH, WIDTH)]
    return Autoencoder(NumberScale(kind), encoder, Decoder(blocks, nn.Conv2d(WIDTH, count, 1)))


def build_features(kind: Kind) -> Features:
    """A linear layer."""
    return Features(NumberFeatures(kind), FEATURE_WIDTH)


def build_embedding(kind: Kind) -> Embedding:
    """Two linear layers, to 128 features."""
    layers = nn.Sequential(
        nn.Linear(kind.shape[-1], EMBEDDING_WIDTH), nn.ELU(), nn.Linear(EMBEDDING_WIDTH, EMBEDDING_WIDTH)
    )
    return Embedding(layers, EMBEDDING_WIDTH, (kind.shape[-1],), 1.0, read=Numbers(kind))
