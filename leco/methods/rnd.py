"""Random network distillation (Burda et al., 2019): an observation that a network cannot foresee, having seen few like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.func import functional_call

from leco.algo.exploration import running_discounted_sum
from leco.methods.novelty import NoveltyOutput
from leco.methods.transitions import rnd_distances
from leco.models.exploration import Rnd, make_embedding

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.learning.state import Params
    from leco.methods.novelty import NoveltyInput
    from leco.models.kinds.table import Kind


def build(kind: Kind, _num_actions: int, _network: NetworkConfig) -> Rnd:
    """RND's pair, on normalised observations."""
    return Rnd(make_embedding(kind), make_embedding(kind), normalises=True)


def compute(given: NoveltyInput) -> NoveltyOutput:
    """The squared error, in running deviations of its discounted sums."""
    assert isinstance(given.net, Rnd)  # noqa: S101  # `build` has made it
    seen, distance_U = rnd_distances(given)
    error_TB = distance_U[seen.next_TB]
    r_ep_TB = _normalised(given.net, given.tensors, error_TB.detach(), given.config.gamma)
    return NoveltyOutput(
        r_ep_TB.to(given.batch.reward_TB.dtype),
        error_TB.mean(),
        stats={"rnd_error": error_TB.detach().sqrt().mean()},
    )


def _normalised(net: Rnd, tensors: Params, error_TB: Tensor, gamma: float) -> Tensor:
    assert net.returns is not None  # noqa: S101  # it is built to normalise
    returns_N = running_discounted_sum(error_TB, gamma).flatten()
    named = {f"returns.{name}": tensors[f"returns.{name}"] for name, _ in net.returns.named_buffers()}
    deviation: Tensor = functional_call(_Deviation(net.returns), named, (returns_N,))
    return error_TB / deviation


class _Deviation(nn.Module):
    """Running moments as one function, since `functional_call` calls `forward` alone."""

    def __init__(self, returns: nn.Module) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, returns_N: Tensor) -> Tensor:
        self.returns.add(returns_N)  # type: ignore[operator]
        deviation: Tensor = self.returns.deviation  # type: ignore[assignment]
        return deviation
