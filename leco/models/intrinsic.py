"""The intrinsic module: one encoder that serves the hash (VQ or AE-LSH), the modulator f_ta and the extrinsic value V^e.

Nothing is detached here: the gradients of all three reach the encoder. Where the hash is no network (exact, objects, DSC),
modulator and V^e have an encoder of their own, which is small.

Shapes:

    N     observations, or distinct observations with multiplicities
    O...  shape of one observation: height, width, channels
    D     width of a code vector
    H, W  height and width of z_e
    F     D H W, all of z_e in one row
    A     actions of the task
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from leco.config.training import HashConfig
from leco.models.autoencoder import encode
from leco.models.cells import CellCodebook
from leco.models.kinds.table import networks_of
from leco.models.vq import LSHBottleneck, VectorQuantizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from leco.models.kinds.table import Autoencoder, Features, Kind

WIDTH = 64  # D
HIDDEN = 512
FEATURE_HIDDEN = 128  # where the hash is not learned
CELL_CODES = 64  # K of a hash of cells


class Intrinsic(nn.Module):
    """Modulator and value head on what `encode` says of an observation; `HashModule` and `FeatureModule` say how it does.

    Args:
        features: F.
        hidden: Units of the layer before each of the two.
        num_actions: A.
        condition_on_novelty: Whether the modulator is told r_ep.

    Attributes:
        bare: An observation without its action mask, which is neither hashed nor judged.
    """

    def __init__(self, features: int, hidden: int, *, num_actions: int, condition_on_novelty: bool) -> None:
        super().__init__()
        self.bare: Callable[[Tensor], Tensor] = _same
        self._features = features
        self._num_actions = num_actions
        self._condition_on_novelty = condition_on_novelty
        self.modulator_in = nn.Linear(features, hidden)
        self.modulator_out = nn.Linear(hidden + num_actions + condition_on_novelty, num_actions)
        self.value_head = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        # V^e and r_ta begin at zero: until the task first rewards there is then no advantage to learn from, and the modulator
        # stays zero instead of following the noise of a V^e that knows nothing, which Adam would amplify. One that is told
        # the novelty is the whole bonus, and must not begin without it.
        begins_at_zero = [self.value_head[-1]] if condition_on_novelty else [self.value_head[-1], self.modulator_out]
        for parameter in itertools.chain.from_iterable(layer.parameters() for layer in begins_at_zero):
            nn.init.zeros_(parameter)

    def encode(self, observation_NO: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """z_e: [N, O...] -> [N, ...], of which all but N are F numbers.

        Args:
            observation_NO: [N, O...], integers.
            weight_N: [N], how often each observation occurs in the batch, for the batch norms; once, if not given.
        """
        raise NotImplementedError

    def modulate(
        self, z_UF: Tensor, action_N: Tensor, index_N: Tensor | None = None, novelty_N: Tensor | None = None
    ) -> Tensor:
        """f_ta(z_e[t], a[t]), to be indexed by a[t-1].

        The first layer sees the observation alone, so it runs once for each distinct one.

        Args:
            z_UF: [U, F], z_e of distinct observations, with everything but U flattened.
            action_N: [N], the actions a[t], integers.
            index_N: [N], which row of z each action was taken from; without it, each from its own.
            novelty_N: [N], r_ep, for a modulator that is told it and for no other.

        Returns:
            [N, A], the scores before tanh.
        """
        self._check_features(z_UF)
        if (novelty_N is not None) != self._condition_on_novelty:
            raise ValueError(f"this modulator is {'' if self._condition_on_novelty else 'not '}told the novelty")
        hidden = functional.relu(self.modulator_in(z_UF))
        if index_N is not None:
            hidden = hidden.index_select(0, index_N)
        if action_N.shape != hidden.shape[:1]:
            raise ValueError(f"actions must have shape [{len(hidden)}], one a row of z, not {list(action_N.shape)}")
        told = [hidden, functional.one_hot(action_N.long(), self._num_actions).to(hidden.dtype)]
        if novelty_N is not None:
            told.append(novelty_N.unsqueeze(1))
        scores_NA: Tensor = self.modulator_out(torch.cat(told, 1))
        return scores_NA

    def value(self, z_NF: Tensor) -> Tensor:
        """V^e, the value of the task's own rewards: [N, F] -> [N]."""
        self._check_features(z_NF)
        value_N: Tensor = self.value_head(z_NF).squeeze(1)
        return value_N

    def _check_features(self, z_NF: Tensor) -> None:
        if z_NF.ndim != 2 or z_NF.shape[1] != self._features:
            raise ValueError(f"z must have shape [N, {self._features}], not {list(z_NF.shape)}")


class HashModule(Intrinsic):
    """With a learned hash: encoder, bottleneck and decoder.

    Args:
        autoencoder: Observation -> image -> z_e, and what passed the bottleneck -> image.
        bottleneck: Between the two.
        size: Height and width of z_e.
        num_actions: A.
        condition_on_novelty: Whether the modulator is told r_ep.
    """

    bottleneck: VectorQuantizer | LSHBottleneck

    def __init__(
        self,
        autoencoder: Autoencoder,
        bottleneck: VectorQuantizer | LSHBottleneck,
        size: tuple[int, int],
        *,
        num_actions: int,
        condition_on_novelty: bool = False,
    ) -> None:
        features = WIDTH * size[0] * size[1]
        super().__init__(features, HIDDEN, num_actions=num_actions, condition_on_novelty=condition_on_novelty)
        self.size = size
        self.scale, self.encoder, self.decoder = autoencoder
        self.bottleneck = bottleneck

    def code(self, observation_NO: Tensor) -> Tensor:
        """The code of each observation: uint8 [N, bottleneck.code_width].

        In evaluation mode (`eval()`) it depends on nothing else in the batch, as actors need it.
        """
        code_N: Tensor = self.bottleneck.code(self.encode(observation_NO))
        return code_N

    def encode(self, observation_NO: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """z_e, before quantisation: [N, O...] -> [N, D, H, W]."""
        return encode(self.scale, self.encoder, self.bare(observation_NO), weight_N)

    def decode(self, z_NDHW: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """The reconstruction of `target`, in (-1, 1).

        Args:
            z_NDHW: [N, D, H, W], from the bottleneck.
            weight_N: [N], as for `encode`.

        Returns:
            [N, C, ., .], C channels, the shape of `target`.
        """
        self._check_z(z_NDHW)
        image: Tensor = self.decoder(z_NDHW, weight_N)
        return image

    def reconstruction_loss(self, z_NDHW: Tensor, observation_NO: Tensor, weight_N: Tensor) -> Tensor:
        """How far `decode(z)` is from `target(observation)`, a few observations at a time."""
        self._check_z(z_NDHW)
        elements = math.prod(observation_NO.shape[1:])
        return self.decoder.reconstruction_loss(
            z_NDHW, weight_N, lambda piece: self.target(observation_NO[piece]), elements
        )

    def target(self, observation_NO: Tensor) -> Tensor:
        """What the decoder must reconstruct, which is what the encoder sees: [N, O...] -> [N, C, ., .] in [-1, 1]."""
        image: Tensor = self.scale(self.bare(observation_NO))
        return image

    def _check_z(self, z_NDHW: Tensor) -> None:
        if z_NDHW.shape[1:] != (WIDTH, *self.size):
            raise ValueError(
                f"z must have shape [N, {WIDTH}, {self.size[0]}, {self.size[1]}], not {list(z_NDHW.shape)}"
            )


class FeatureModule(Intrinsic):
    """Without a learned hash: modulator and V^e on features of their own.

    Args:
        features: Observations [N, O...] -> [N, F].
        num_actions: A.
        condition_on_novelty: Whether the modulator is told r_ep.
    """

    def __init__(self, features: Features, *, num_actions: int, condition_on_novelty: bool = False) -> None:
        super().__init__(
            features.width, FEATURE_HIDDEN, num_actions=num_actions, condition_on_novelty=condition_on_novelty
        )
        self.features = features.network

    def encode(self, observation_NO: Tensor, weight_N: Tensor | None = None) -> Tensor:
        """The features: [N, O...] -> [N, F]."""
        feature_NF: Tensor = self.features(self.bare(observation_NO), weight_N)
        return feature_NF


class CodebookModule(FeatureModule):
    """With a hash beside them that learns by running means, or from what it sees alone: it needs nothing of z_e.

    Attributes:
        levels: How many codes an observation has.
    """

    levels: int

    def code(self, observation_NO: Tensor) -> Tensor:
        """The codes of each observation, fine to coarse, as digests: uint8 [N, levels x 16]."""
        raise NotImplementedError

    def hash_loss(self, observation_UO: Tensor, times_U: Tensor, generator: torch.Generator) -> Tensor:
        """What the codebook loses of a batch; moves it.

        Args:
            observation_UO: [U, O...], the distinct observations.
            times_U: [U], how often each occurs; 0 for padding.
            generator: Draws what is left to chance.
        """
        raise NotImplementedError


class CellHashModule(CodebookModule):
    """With a learned hash of single cells.

    Args:
        kind: Of the observations, which have cells.
        codebook_size: K of its codebook.
        num_actions: A.
        condition_on_novelty: Whether the modulator is told r_ep.
    """

    def __init__(self, kind: Kind, codebook_size: int, *, num_actions: int, condition_on_novelty: bool = False) -> None:
        self._kind = networks_of(kind)
        super().__init__(
            self._kind.build_features(kind), num_actions=num_actions, condition_on_novelty=condition_on_novelty
        )
        self.levels = self._kind.CELL_LEVELS
        self.cells = CellCodebook(self._kind.CELL_VALUES, codebook_size)

    def code(self, observation_NO: Tensor) -> Tensor:
        """What is in view and in hand, wherever it is; what is in hand and in front."""
        code_NC = self.cells.code()[self._kind.cell_number(self.bare(observation_NO))]
        return self._kind.levels_code(code_NC, len(self.cells.used_K) + 1)

    def hash_loss(self, observation_UO: Tensor, times_U: Tensor, generator: torch.Generator) -> Tensor:
        """What is lost of the cells in a batch."""
        number_UC = self._kind.cell_number(self.bare(observation_UO))
        times_U = times_U.to(self.cells.used_K.dtype)
        times_UC = times_U.unsqueeze(1).expand(number_UC.shape)
        times_M = torch.bincount(number_UC.flatten(), times_UC.flatten(), len(self.cells.value_MC))
        loss = self.cells.loss(times_M.to(times_U.dtype), generator)
        self.cells.note_views(number_UC, times_U)
        return loss


def build_hash_module(
    kind: Kind,
    num_actions: int,
    given: HashConfig | None = None,
    *,
    bits: bool = False,
    condition_on_novelty: bool = False,
) -> HashModule:
    """With a learned hash, of the paper's size for such observations.

    Args:
        kind: Of the observations.
        num_actions: A.
        given: Where codes are not of that size.
        bits: Whether the hash is AE-LSH instead of VQ.
        condition_on_novelty: Whether the modulator is told r_ep.
    """
    given = given or HashConfig()
    size = given.size or kind.hash_size
    bottleneck = (
        LSHBottleneck(kind.lsh_units, given.bits or kind.lsh_bits, WIDTH, size)
        if bits
        else VectorQuantizer(given.codebook_size or kind.codebook_size, WIDTH, size)
    )
    autoencoder = networks_of(kind).build_autoencoder(kind, size)
    return HashModule(autoencoder, bottleneck, size, num_actions=num_actions, condition_on_novelty=condition_on_novelty)


def build_cell_module(
    kind: Kind, num_actions: int, given: HashConfig | None = None, *, condition_on_novelty: bool = False
) -> CellHashModule:
    """With a learned hash of cells."""
    codebook_size = (given or HashConfig()).codebook_size or CELL_CODES
    return CellHashModule(kind, codebook_size, num_actions=num_actions, condition_on_novelty=condition_on_novelty)


def build_feature_module(kind: Kind, num_actions: int, *, condition_on_novelty: bool = False) -> FeatureModule:
    """Modulator and V^e where no hash is learned."""
    features = networks_of(kind).build_features(kind)
    return FeatureModule(features, num_actions=num_actions, condition_on_novelty=condition_on_novelty)


def _same(observation_NO: Tensor) -> Tensor:
    return observation_NO
