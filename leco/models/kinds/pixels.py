"""Pictures of bytes of any size; those of DeepMind Lab and ViZDoom, 72 x 96 in RGB, have the paper's networks.

N     observations
F     features
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.func import functional_call

from leco.models.autoencoder import Chain, Decoder, Residual, Scale, down, encode, up
from leco.models.exploration import Embedding
from leco.models.intrinsic import WIDTH
from leco.models.kinds.table import PIXELS, Autoencoder, Features
from leco.models.patches import patch_side
from leco.models.pieces import map_pieces, pieces
from leco.models.policy import PAPER_WIDTH, Policy, begin_orthogonal
from leco.models.precision import convolution_dtype
from leco.models.weighted_norm import Normed

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.models.kinds.table import Kind

FEATURE_WIDTH = 128  # beside a hash of patches
_DEPTHS = (16, 32, 32)  # of the first three sections
_LEFT = 12  # places that the policy's encoder leaves of the longer side, at most
# Of the embedding's first two convolutions, kernel and stride, by the shortest side from which on they are taken.
_EMBEDDING = {144: ((16, 8), (4, 2)), 36: ((8, 4), (4, 2)), 0: ((4, 2), (3, 2))}


class PixelPolicy(Policy):
    """IMPALA's residual network (Espeholt et al. 2018, figure 3, right), with more sections for pictures beyond 96 pixels.

    The core, two layers wide as its input, also sees the one-hot previous action and the previous reward.
    """

    def __init__(
        self, num_actions: int, width: int = PAPER_WIDTH, *, shape: tuple[int, int, int] = PIXELS.shape
    ) -> None:
        *sides, channels = shape
        depths = [channels, *_DEPTHS]
        while math.ceil(max(sides) / 2 ** (len(depths) - 1)) > _LEFT:
            depths.append(32)
        # A section leaves the larger half: 72 x 96 -> 36 x 48 -> 18 x 24 -> 9 x 12.
        places = math.prod(math.ceil(side / 2 ** (len(depths) - 1)) for side in sides)
        encoder = _Encoder(
            _Centred(),
            *(layer for a, b in itertools.pairwise(depths) for layer in _stage(a, b)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * places, width),
            nn.ReLU(),
        )
        super().__init__(
            num_actions,
            encoder,
            image=shape,
            width=width + num_actions + 1,
            layers=2,
            use_last_action_reward=True,
        )
        self.encoder_takes_bytes = True


class _Encoder(nn.Sequential):
    """Pictures [N, channels, height, width] -> features [N, width], some pictures at a time, as `leco.models.precision` says."""

    def forward(self, picture_NCHW: Tensor) -> Tensor:
        names, given = zip(*self.named_parameters(), strict=True)  # those of a `functional_call`, if this is in one
        dtype = convolution_dtype(given[0])
        elements = _DEPTHS[0] * math.prod(picture_NCHW.shape[2:])
        slices = list(pieces(len(picture_NCHW), elements, picture_NCHW.device))
        if len(slices) == 1 and dtype == given[0].dtype:  # as each piece comes back here
            centred, *layers = self
            x: Tensor = centred(picture_NCHW if picture_NCHW.is_floating_point() else picture_NCHW.to(dtype)).to(dtype)
            for layer in layers:
                x = layer(x)
            return x

        def act(picture_PCHW: Tensor, *parameters: Tensor) -> Tensor:
            lowered = {name: each.to(dtype) for name, each in zip(names, parameters, strict=True)}
            feature_PF: Tensor = functional_call(self, lowered, picture_PCHW.to(parameters[0].dtype))
            return feature_PF.to(parameters[0].dtype)

        return map_pieces(act, picture_NCHW, given, slices)


def _stage(channels_in: int, channels: int) -> tuple[nn.Module, ...]:
    """One section of IMPALA's network; halves the image."""
    convolution = nn.Conv2d(channels_in, channels, 3, padding=1)
    return convolution, nn.MaxPool2d(3, stride=2, padding=1), _Residual(channels), _Residual(channels)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        inner_NCHW: Tensor = self.second(self.first(x_NCHW.relu()).relu_())
        return x_NCHW + inner_NCHW


class PatchPolicy(Policy):
    """A small one: two convolutions on patches, which keep some places; no previous action and reward."""

    def __init__(self, num_actions: int, width: int, *, shape: tuple[int, int, int]) -> None:
        layers, features = _patch_layers(shape)
        super().__init__(
            num_actions,
            nn.Sequential(*layers, nn.Linear(features, width)),
            image=shape,
            width=width,
            layers=1,
            use_last_action_reward=False,
        )
        begin_orthogonal(self)


def _patch_layers(shape: tuple[int, int, int]) -> tuple[list[nn.Module], int]:
    """Patches, then two convolutions that halve their number in each direction: 56 x 56 -> 7 x 7 -> 4 x 4 -> 2 x 2."""
    height, width, channels = shape
    side = patch_side((height, width))
    rows, columns = -(-height // side), -(-width // side)
    below, right = rows * side - height, columns * side - width
    edges = (right // 2, right - right // 2, below // 2, below - below // 2)
    layers = [
        *(_Centred(), nn.ZeroPad2d(edges)),
        *(nn.Conv2d(channels, 32, side, stride=side), nn.ELU()),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ELU()),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ELU()),
        nn.Flatten(),
    ]
    return layers, 32 * math.ceil(rows / 4) * math.ceil(columns / 4)


class _Centred(nn.Module):
    """Bytes -> numbers from -1 to 1."""

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return x_NCHW / 127.5 - 1.0


class PixelFeatures(nn.Module):
    """The encoder of the learned hash, without what makes it a hash."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.scale, self.encoder, _ = build_autoencoder(kind, kind.hash_size)

    def forward(self, observation_NHWC: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """[N, height, width, channels] -> [N, F]."""
        return encode(self.scale, self.encoder, observation_NHWC, weight_N).flatten(1)


class PatchFeatures(nn.Module):
    """What the small policy sees with, and a linear layer."""

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        layers, features = _patch_layers(shape)
        self.layers = nn.Sequential(*layers, nn.Linear(features, width), nn.ReLU())

    def forward(self, observation_NHWC: Tensor, _weight_N: Tensor | None = None) -> Tensor:
        """[N, height, width, channels] -> [N, F]."""
        image_NCHW = observation_NHWC.permute(0, 3, 1, 2).to(next(self.parameters()).dtype)
        feature_NF: Tensor = self.layers(image_NCHW)
        return feature_NF


def build_policy(kind: Kind, num_actions: int, network: NetworkConfig) -> Policy:
    """IMPALA's, or a small one."""
    if network.encoder == "patches":
        return PatchPolicy(num_actions, network.width, shape=kind.shape)
    return PixelPolicy(num_actions, network.width, shape=kind.shape)


def build_autoencoder(kind: Kind, size: tuple[int, int]) -> Autoencoder:
    """The image of the kind, halved to z_e of this size: 64 x 96 five times to 2 x 3 or four times to 4 x 6; and back."""
    assert kind.hash_image is not None  # noqa: S101  # pictures have one
    assert kind.hash_sizes is not None  # noqa: S101  # and two sizes
    if size not in kind.hash_sizes:
        expected = " or ".join(str(list(each)) for each in kind.hash_sizes)
        raise ValueError(f"hash.size is {list(size)}, expected {expected} for pixels: pictures are halved to it")
    channels, halvings = kind.shape[-1], (kind.hash_image[0] // size[0]).bit_length() - 1
    between = halvings - 2
    smallest = Normed(nn.Conv2d(WIDTH, WIDTH, 4, 2, 1, bias=False), relu=False)
    encoder = Chain([down(channels, WIDTH), *(down(WIDTH, WIDTH) for _ in range(between)), smallest, *_residuals()])
    unfolded = Normed(nn.ConvTranspose2d(WIDTH, WIDTH, 4, 2, 1, bias=False), relu=True)
    blocks = [*_residuals(), unfolded, *(up(WIDTH) for _ in range(between))]
    decoder = Decoder(blocks, nn.ConvTranspose2d(WIDTH, channels, 4, 2, 1))
    return Autoencoder(Scale(kind.shape, kind.channel_max, kind.hash_image), encoder, decoder)


def _residuals() -> list[Residual]:
    return [Residual(WIDTH), Residual(WIDTH)]


def build_features(kind: Kind) -> Features:
    """The encoder of the learned hash."""
    height, width = kind.hash_size
    return Features(PixelFeatures(kind), WIDTH * height * width)


def build_patch_features(kind: Kind) -> Features:
    """A small encoder beside a small hash."""
    return Features(PatchFeatures(kind.shape, FEATURE_WIDTH), FEATURE_WIDTH)


def build_embedding(kind: Kind) -> Embedding:
    """RND's three convolutions, to 256 features: 72 x 96 -> 17 x 23 -> 7 x 10 -> 5 x 8."""
    *sides, channels = kind.shape
    steps = (*next(each for least, each in _EMBEDDING.items() if min(sides) >= least), (3, 1))
    layers: list[nn.Module] = []
    for (a, b), (kernel, stride) in zip(itertools.pairwise((channels, 32, 64, 64)), steps, strict=True):
        layers += [nn.Conv2d(a, b, kernel, stride), nn.ELU()]
        sides = [(side - kernel) // stride + 1 for side in sides]
    layers += [nn.Flatten(), nn.Linear(64 * math.prod(sides), 256)]
    return Embedding(nn.Sequential(*layers), 256, kind.shape, 255.0)
