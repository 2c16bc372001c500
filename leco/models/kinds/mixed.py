"""An image and numbers beside it: the networks of images, which also read the numbers.

The policy reads them by two layers of their own. For everything else a number is one more channel of the image, equal everywhere.

N     observations
O...  shape of one observation
C     channels of the image and numbers, together
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from leco.models.autoencoder import encode
from leco.models.kinds import pixels
from leco.models.kinds.numbers import Numbers, number_layers
from leco.models.kinds.parts import image_of, numbers_of, squashed
from leco.models.kinds.table import Autoencoder, Features
from leco.models.policy import begin_orthogonal

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.models.autoencoder import Chain
    from leco.models.exploration import Embedding
    from leco.models.kinds.table import Kind
    from leco.models.policy import Policy


class Both(nn.Module):
    """The features of the image, and those of the numbers, added.

    Args:
        kind: Of the observations.
        image: What reads the image.
        width: How many features it gives.
    """

    def __init__(self, kind: Kind, image: nn.Module, width: int) -> None:
        super().__init__()
        self._kind = kind
        self.image = image
        self.numbers = nn.Sequential(Numbers(kind), *number_layers(kind, width))

    def forward(self, observation_NO: Tensor) -> Tensor:
        """[N, O...] -> [N, features]."""
        numbers_NF: Tensor = self.numbers(observation_NO)
        image_NHWC = cast("Tensor", image_of(self._kind, observation_NO))
        feature_NF: Tensor = self.image(image_NHWC.permute(0, 3, 1, 2).to(numbers_NF.dtype))
        return feature_NF + numbers_NF


class Painted(nn.Module):
    """An image with a channel more for each number, which has its value, brought to 0..255, everywhere."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = kind

    def forward(self, observation_NO: Tensor) -> Tensor:
        """[N, O...] -> float [N, height, width, C]."""
        image_NHWC = cast("Tensor", image_of(self._kind, observation_NO))
        numbers_NF = (squashed(cast("Tensor", numbers_of(self._kind, observation_NO))) + 1) * 127.5
        planes_NHWF = numbers_NF[:, None, None, :].expand(-1, *image_NHWC.shape[1:3], -1)
        return torch.cat([image_NHWC.to(planes_NHWF.dtype), planes_NHWF], 3)


class PaintedFeatures(nn.Module):
    """The encoder of the learned hash, without what makes it a hash."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.scale, encoder, _ = build_autoencoder(kind, kind.hash_size)
        self.encoder: Chain = encoder

    def forward(self, observation_NO: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """[N, O...] -> [N, features]."""
        return encode(self.scale, self.encoder, observation_NO, weight_N).flatten(1)


def _painted(kind: Kind) -> Kind:
    """The row of the images that `Painted` gives."""
    channels = kind.shape[-1] + (kind.layout.numbers if kind.layout is not None else 0)
    return replace(kind, shape=(*kind.shape[:2], channels), channel_max=(255,) * channels, layout=None)


def build_policy(kind: Kind, num_actions: int, network: NetworkConfig) -> Policy:
    """That of images, with the numbers added to what it sees."""
    policy = pixels.build_policy(replace(kind, layout=None), num_actions, network)
    width = next(
        layer.out_features for layer in reversed(list(policy.encoder.modules())) if isinstance(layer, nn.Linear)
    )
    policy.encoder = Both(kind, policy.encoder, width)
    policy.image = replace(kind.layout, actions=0).shape if kind.layout is not None else policy.image
    if network.encoder == "patches":
        begin_orthogonal(policy)  # the numbers as much as the image
    return policy


def build_autoencoder(kind: Kind, size: tuple[int, int]) -> Autoencoder:
    """That of images with so many channels."""
    scale, encoder, decoder = pixels.build_autoencoder(_painted(kind), size)
    return Autoencoder(nn.Sequential(Painted(kind), scale), encoder, decoder)


def build_features(kind: Kind) -> Features:
    """The encoder of the learned hash."""
    return Features(PaintedFeatures(kind), pixels.build_features(_painted(kind)).width)


def build_embedding(kind: Kind) -> Embedding:
    """That of images with so many channels."""
    embedding = pixels.build_embedding(_painted(kind))
    embedding.read = Painted(kind)
    return embedding
