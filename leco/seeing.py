"""What the intrinsic module says of a batch: the hash's loss, V^e and the modulator's scores.

T     actions in an unroll          B  unrolls in a batch       A  number of actions
U     distinct observations         N  (T + 1) B, all of them   S  those the decoder learns from
F     z_e of one observation in a row
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leco.algo.dedup import Distinct, expand
from leco.algo.losses import reconstruction_loss
from leco.algo.sampling import systematic_sample
from leco.methods import Method, Modulation

if TYPE_CHECKING:
    from leco.nets.bottleneck import Squeezed
    from leco.nets.intrinsic import Intrinsic
    from leco.training import Batch, Named

_GOLDEN = 0.6180339887498949  # its multiples fill the interval from 0 to 1 evenly, however many there are


class Seen(NamedTuple):
    """What the intrinsic module says of a batch.

    hash_loss       the reconstruction's and the bottleneck's
    value_TB        V^e of all T+1 observations; None without a modulator, which alone needs it
    scores_TBA      f_ta(z_e[t], a[t]); None without a modulator
    """

    hash_loss: Tensor
    value_TB: Tensor | None
    scores_TBA: Tensor | None


class Chance(NamedTuple):
    """What is left to chance: which observations are decoded, and the noise of AE-LSH.

    decoded  how many observations the decoder learns from, drawn by how often each occurs; None for all
    turn     which update it is; everything random depends on this number alone
    """

    decoded: int | None
    turn: int


def see(
    net: Intrinsic,
    tensors: Named,
    batch: Batch,
    unique: Distinct,
    method: Method,
    *,
    r_ep_TB: Tensor,
    chance: Chance,
) -> Seen:
    """Looks at each distinct observation once.

    Args:
        net: What is computed.
        tensors: Its parameters, and its running statistics, which are updated.
        batch: Whose actions are judged.
        unique: Its distinct observations.
        method: Whether there is a modulator, and what it is told.
        r_ep_TB: The count bonus.
        chance: What is drawn at random, and how.
    """
    named = {f"net.{name}": tensor for name, tensor in tensors.items()}
    seen: Seen = functional_call(_View(net).train(), named, (batch, unique, method, r_ep_TB, chance))
    return seen


class _View(nn.Module):
    """The intrinsic module as one function of a batch, since `functional_call` calls `forward` alone."""

    def __init__(self, net: Intrinsic) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Batch, unique: Distinct, method: Method, r_ep_TB: Tensor, chance: Chance) -> Seen:
        z_UDHW = self.net.encode(unique.observation_UO, unique.multiplicity_U)
        hash_loss = self._hash_loss(z_UDHW, unique, chance)
        if method.modulation is Modulation.NONE:
            return Seen(hash_loss, None, None)
        z_UF = z_UDHW.flatten(1)
        value_TB = expand(self.net.value(z_UF), unique.index_N).view(batch.start_TB.shape)
        r_ep_N = None
        if method.modulation is Modulation.REPLACING:
            z_UF, r_ep_N = z_UF.detach(), r_ep_TB.flatten()
        acting_N = unique.index_N[: batch.action_TB.numel()]  # the last observations only bootstrap
        scores_NA = self.net.modulate(z_UF, batch.action_TB.flatten(), acting_N, r_ep_N)
        return Seen(hash_loss, value_TB, scores_NA.view(*batch.action_TB.shape, -1))

    def _hash_loss(self, z_UDHW: Tensor, unique: Distinct, chance: Chance) -> Tensor:
        times_U = unique.multiplicity_U
        noise = torch.Generator(z_UDHW.device).manual_seed(chance.turn)
        squeezed: Squeezed = self.net.bottleneck(z_UDHW, times_U, noise)
        z_SDHW, observation_SO, times_S = squeezed.z_NDHW, unique.observation_UO, times_U
        if chance.decoded is not None:
            index_S, times_S = systematic_sample(times_U, chance.decoded, chance.turn * _GOLDEN % 1)
            z_SDHW, observation_SO = z_SDHW.index_select(0, index_S), observation_SO.index_select(0, index_S)
        picture_S = self.net.decode(z_SDHW, times_S)
        return reconstruction_loss(picture_S, self.net.target(observation_SO), times_S) + squeezed.loss
