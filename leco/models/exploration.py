"""The networks that only a novelty needs: RND's pair, RIDE's dynamics, and moments that are kept over a run.

N     observations
U     distinct observations
O...  shape of one observation: height, width, 3
F     features of an observation
A     actions of the task
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leco.algo.exploration import Moments, add_moments
from leco.algo.ranks import part, whole

HIDDEN = 256
CLIP = 5.0  # of what RND's networks see, in standard deviations


class Embedding(nn.Module):
    """Integer observations -> features.

    Args:
        layers: What it does with an image [N, 3, height, width].
        features: F.
        shape: O...
        largest: What integers are divided by, so that networks see numbers of a sensible size.
    """

    def __init__(self, layers: nn.Module, features: int, shape: tuple[int, int, int], largest: float) -> None:
        super().__init__()
        self.layers, self.features, self.shape = layers, features, shape
        self._largest = largest
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter, math.sqrt(2))

    def forward(self, observation_NO: Tensor) -> Tensor:
        """[N, O...] -> [N, F]. Integers are scaled; real numbers have been already."""
        if observation_NO.shape[1:] != self.shape:
            expected = ", ".join(map(str, self.shape))
            raise ValueError(f"observations must have shape [N, {expected}], not {list(observation_NO.shape)}")
        if not observation_NO.is_floating_point():
            observation_NO = observation_NO.to(next(self.parameters()).dtype) / self._largest
        feature_NF: Tensor = self.layers(observation_NO.permute(0, 3, 1, 2))
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
            self.seen.add(observation_UO.to(self.seen.mean.dtype), times_U)
            own_RO = ((own_RO.to(self.seen.mean.dtype) - self.seen.mean) / self.seen.deviation).clamp(-CLIP, CLIP)
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
