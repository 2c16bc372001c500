"""The networks that only a novelty needs: RND's pair, RIDE's dynamics, and moments that are kept over a run.

N     observations
U     distinct observations
O...  shape of one observation: height, width, channels
F     features of an observation
A     actions of the task
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from leco.algo.exploration import Moments, add_moments
from leco.algo.ranks import part, whole
from leco.models.kinds.parts import without_mask
from leco.models.kinds.table import networks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from leco.models.kinds.table import Kind

HIDDEN = 256
CLIP = 5.0  # of what RND's networks see, in standard deviations


class Embedding(nn.Module):
    """Observations, which are bytes -> features.

    Args:
        layers: What it does with an image [N, channels, height, width], or with numbers [N, how many].
        features: F.
        shape: Of the image, its channels last, or of the numbers.
        largest: What they are divided by, so that networks see numbers of a sensible size.
        read: The bytes of an observation to the image or the numbers; the same, if it is not given.

    Attributes:
        bare: An observation without its action mask.
    """

    def __init__(
        self,
        layers: nn.Module,
        features: int,
        shape: tuple[int, ...],
        largest: float,
        read: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.layers, self.features, self.shape = layers, features, shape
        self._largest = largest
        self.read: Callable[[Tensor], Tensor] = read or _same
        self.bare: Callable[[Tensor], Tensor] = _same
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter, math.sqrt(2))

    def numbers(self, observation_NO: Tensor) -> Tensor:
        """[N, O...] -> [N, *shape], not divided by anything yet."""
        seen: Tensor = self.read(self.bare(observation_NO)).to(next(self.parameters()).dtype)
        if seen.shape[1:] != self.shape:
            expected = ", ".join(map(str, self.shape))
            raise ValueError(f"observations must have shape [N, {expected}], not {list(seen.shape)}")
        return seen

    def forward(self, observation_NO: Tensor) -> Tensor:
        """[N, O...] -> [N, F]. Bytes are read and scaled; real numbers [N, *shape] have been already."""
        if not observation_NO.is_floating_point():
            observation_NO = self.numbers(observation_NO) / self._largest
        if observation_NO.ndim == 4:
            observation_NO = observation_NO.permute(0, 3, 1, 2)
        feature_NF: Tensor = self.layers(observation_NO)
        return feature_NF


class RunningMoments(nn.Module):
    """Mean and variance of everything that it was shown, kept with the networks' other statistics.

    Args:
        shape: Of what it is shown.
    """

    mean: Tensor
    variance: Tensor
    rows: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("rows", torch.tensor(1e-4, dtype=torch.float64))  # single precision ends at 16 million

    @torch.no_grad()
    def add(self, x_N: Tensor, weight_N: Tensor | None = None) -> None:
        """Shows it more rows [N, ...], each weight_N[n] times."""
        after = add_moments(Moments(self.mean, self.variance, self.rows), x_N, weight_N)
        self.mean.copy_(after.mean)
        self.variance.copy_(after.variance)
        self.rows.copy_(after.rows)

    @property
    def deviation(self) -> Tensor:
        """The square root of the variance, never zero."""
        return (self.variance + 1e-8).sqrt()


class Rnd(nn.Module):
    """Random network distillation: how wrong a network is that learns to foresee what another, random one says.

    Args:
        target: Never learns.
        predictor: Does.
        normalises: Whether both see observations less their running mean, in running deviations, within +-5; and whether
            rewards are to be divided by the running deviation of their discounted sums.
    """

    def __init__(self, target: Embedding, predictor: Embedding, *, normalises: bool) -> None:
        super().__init__()
        self.target, self.predictor = target, predictor
        self.seen = RunningMoments(target.shape) if normalises else None
        self.returns = RunningMoments(()) if normalises else None

    def forward(self, observation_UO: Tensor, times_U: Tensor) -> Tensor:
        """The squared distance ||predictor - target||^2 of each distinct observation: [U].

        times_U: [U], how often each occurs, for the running moments; 0 for padding.

        Each rank looks at a part of them (`leco.algo.ranks`).
        """
        own_RO = observation_UO[part()]
        if self.seen is not None:
            seen_UO = self.target.numbers(observation_UO)
            self.seen.add(seen_UO, times_U)
            own_RO = ((seen_UO[part()] - self.seen.mean) / self.seen.deviation).clamp(-CLIP, CLIP)
        with torch.no_grad():
            truth_RF = self.target(own_RO)
        distance_R: Tensor = (self.predictor(own_RO) - truth_RF).square().sum(1)
        return whole(distance_R, part(), times_U.shape)


class DynamicsOutput(NamedTuple):
    """What `Dynamics` says of N transitions.

    now_NF, next_NF  phi of the observation before and after
    foreseen_NF      phi after, as the forward model expects it
    guessed_NA       logits of the action, as the inverse model guesses it
    """

    now_NF: Tensor
    next_NF: Tensor
    foreseen_NF: Tensor
    guessed_NA: Tensor


class Dynamics(nn.Module):
    """RIDE's phi, and the two models that shape it.

    Args:
        embedding: phi.
        actions: A.
    """

    def __init__(self, embedding: Embedding, actions: int) -> None:
        super().__init__()
        self.embedding = embedding
        features = embedding.features
        self._actions = actions
        self.forwards = nn.Sequential(nn.Linear(features + actions, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, features))
        self.backwards = nn.Sequential(nn.Linear(2 * features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, actions))

    def forward(self, observation_UO: Tensor, now_N: Tensor, next_N: Tensor, action_N: Tensor) -> DynamicsOutput:
        """Looks at each distinct observation once; now_N and next_N say which one is before and after each action."""
        phi_RF = self.embedding(observation_UO[part()])  # of this rank's part
        phi_UF = whole(phi_RF, part(), (len(observation_UO), phi_RF.shape[1]))
        now_NF, next_NF = phi_UF.index_select(0, now_N), phi_UF.index_select(0, next_N)
        action_NA = nn.functional.one_hot(action_N.long(), self._actions).to(phi_UF.dtype)
        foreseen_NF = self.forwards(torch.cat([now_NF, action_NA], 1))
        return DynamicsOutput(now_NF, next_NF, foreseen_NF, self.backwards(torch.cat([now_NF, next_NF], 1)))


def make_embedding(kind: Kind) -> Embedding:
    """The embedding of a kind of observations, which does not see which actions may be taken."""
    embedding = networks_of(kind).build_embedding(kind)
    embedding.bare = partial(without_mask, kind)
    return embedding


def _same(observation_NO: Tensor) -> Tensor:
    return observation_NO
