"""NovelD (Zhang et al., 2021): a step into what RND knows less well than what it comes from, the first time in the episode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.algo.exploration import noveld_bonus
from leco.methods.novelty import NoveltyOutput
from leco.methods.transitions import rnd_distances
from leco.models.exploration import Rnd, make_embedding

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.methods.novelty import NoveltyInput
    from leco.models.kinds.table import Kind


def build(kind: Kind, _num_actions: int, _network: NetworkConfig) -> Rnd:
    """RND's pair, on observations as they are."""
    return Rnd(make_embedding(kind), make_embedding(kind), normalises=False)


def compute(given: NoveltyInput) -> NoveltyOutput:
    """max(n(s') - 0.5 n(s), 0) where N(s') = 1; n is RND's error."""
    seen, distance_U = rnd_distances(given)
    error_U = distance_U.detach().sqrt()
    r_ep_TB = noveld_bonus(error_U[seen.next_TB], error_U[seen.now_TB], given.counts())
    return NoveltyOutput(
        r_ep_TB.to(given.batch.reward_TB.dtype),
        distance_U[seen.next_TB].mean(),
        stats={"rnd_error": error_U[seen.next_TB].mean()},
    )
