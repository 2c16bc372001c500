"""Pictures of 72 x 96 RGB pixels, as DeepMind Lab and ViZDoom show them.

N     observations
F     features
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from leco.models.autoencoder import Chain, Decoder, Normed, Residual, Scale, down, up
from leco.models.exploration import Embedding
from leco.models.intrinsic import WIDTH
from leco.models.kinds.table import PIXELS, Autoencoder, Features
from leco.models.policy import PAPER_WIDTH, Policy

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig

_HALVINGS = {(2, 3): 5, (4, 6): 4}  # of 64 x 96, by the size of z_e


class PixelPolicy(Policy):
    """IMPALA's residual network (Espeholt et al. 2018, figure 3, right).

    The core, two layers wide as its input, also sees the one-hot previous action and the previous reward.
    """

    def __init__(self, num_actions: int, width: int = PAPER_WIDTH) -> None:
        encoder = nn.Sequential(
            _Centred(),
            *_stage(3, 16),
            *_stage(16, 32),
            *_stage(32, 32),
            nn.ReLU(),
            nn.Flatten(),  # 72 x 96 -> 36 x 48 -> 18 x 24 -> 9 x 12
            nn.Linear(32 * 9 * 12, width),
            nn.ReLU(),
        )
        super().__init__(
            num_actions,
            encoder,
            image=PIXELS.shape[:2],
            width=width + num_actions + 1,
            layers=2,
            use_last_action_reward=True,
        )


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
        inner_NCHW: Tensor = self.second(self.first(x_NCHW.relu()).relu())
        return x_NCHW + inner_NCHW


class _Centred(nn.Module):
    """Bytes -> numbers from -1 to 1."""

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return x_NCHW / 127.5 - 1.0


class PixelFeatures(nn.Module):
    """The encoder of the learned hash, without what makes it a hash."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.encoder, _ = build_autoencoder(PIXELS.hash_size)

    def forward(self, observation_NHWC: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """[N, 72, 96, 3] -> [N, F]."""
        z_NDHW: Tensor = self.encoder(self.scale(observation_NHWC), weight_N)
        return z_NDHW.flatten(1)


def build_policy(num_actions: int, network: NetworkConfig) -> Policy:
    """IMPALA's."""
    return PixelPolicy(num_actions, network.width)


def build_autoencoder(size: tuple[int, int]) -> Autoencoder:
    """Image 64 x 96 -> z_e of 2 x 3 (halved five times) or 4 x 6 (four times), and back."""
    if size not in _HALVINGS:
        raise ValueError(f"hash.size is {list(size)}, expected [2, 3] or [4, 6] for pixels: pictures are halved to it")
    between = _HALVINGS[size] - 2
    smallest = Normed(nn.Conv2d(WIDTH, WIDTH, 4, 2, 1, bias=False), relu=False)
    encoder = Chain([down(3, WIDTH), *(down(WIDTH, WIDTH) for _ in range(between)), smallest, *_residuals()])
    unfolded = Normed(nn.ConvTranspose2d(WIDTH, WIDTH, 4, 2, 1, bias=False), relu=True)
    blocks = [*_residuals(), unfolded, *(up(WIDTH) for _ in range(between))]
    decoder = Decoder(blocks, nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1))
    return Autoencoder(Scale(PIXELS.shape, PIXELS.channel_max, (64, 96)), encoder, decoder)


def _residuals() -> list[Residual]:
    return [Residual(WIDTH), Residual(WIDTH)]


def build_features() -> Features:
    """The encoder of the learned hash."""
    height, width = PIXELS.hash_size
    return Features(PixelFeatures(), WIDTH * height * width)


def build_embedding() -> Embedding:
    """RND's three convolutions, 72 x 96 -> 17 x 23 -> 7 x 10 -> 5 x 8, to 256 features."""
    sizes = ((3, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
    layers = [each for a, b, kernel, stride in sizes for each in (nn.Conv2d(a, b, kernel, stride), nn.ELU())]
    return Embedding(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 5 * 8, 256)), 256, PIXELS.shape, 255.0)
