"""The method table: every method is a row of (hash, novelty, modulation), and nothing else distinguishes them.

A new method is a new row and, if it needs one, a new part: a member of one of the three enumerations and the code behind it.
The policy network, the learner and the counting are the same for all.
"""

from __future__ import annotations

import difflib
import enum
from dataclasses import dataclass, replace


class Hash(enum.Enum):
    """What makes two observations the same."""

    NONE = "-"
    VQ = "vq"
    """The indices of the nearest codebook vectors of a VQ-VAE."""
    AE_LSH = "ae-lsh"
    """The signs of random projections of an autoencoder's rounded bottleneck."""
    DSC = "dsc"
    """The observation itself, downsampled and coarsely quantised."""
    EXACT = "exact"
    """The whole observation: two are the same only if they are equal."""
    OBJECTS = "objects"
    """MiniGrid: which objects are in view, wherever they are, and what is carried."""


class Novelty(enum.Enum):
    """What is new."""

    NONE = "-"
    COUNT = "1/sqrt(N)"
    """An observation whose code was seen seldom in this episode."""
    GAIN = "max(n(s') - 0.5 n(s), 0) if N = 1"
    """A step into what is less known than what it comes from, the first time in the episode; n is RND's error."""
    ERROR = "RND error"
    """An observation that a network cannot foresee, having seen few like it in the run."""
    IMPACT = "||phi(s') - phi(s)|| / sqrt(N)"
    """A large change of what the agent can influence."""
    ADVERSARIAL = "floor(1/sqrt(N)), and an adversary"
    """A first visit in the episode; and actions that an adversary, which imitates the policy, does not foresee."""


class Modulation(enum.Enum):
    """What a learned modulator makes of it."""

    NONE = "-"
    ADDITIVE = "additive"
    """r_i = (1 - lambda) r_ep + lambda r_ta."""
    REPLACING = "replacing"
    """r_i = r_ta, of a modulator that is told r_ep and does not train the encoder."""


@dataclass(frozen=True, slots=True)
class Method:
    """A row.

    Attributes:
        name: As on the command line.
        hash, novelty, modulation: The three columns.
        lambda_: The share of the modulator in r_i that the method is defined by; None if it is a setting.
        alphas: What `alpha` is by default, for views of MiniGrid and for pixels.
        novelty_learning_rate: What that is by default.
        description: For people.
    """

    name: str
    hash: Hash
    novelty: Novelty
    modulation: Modulation
    lambda_: float | None = None
    alphas: tuple[float, float] = (0.01, 0.01)
    novelty_learning_rate: float = 1e-4
    description: str = ""

    @property
    def learns_hash(self) -> bool:
        """Whether the hash is a network, whose encoder the modulator then shares."""
        return self.hash in (Hash.VQ, Hash.AE_LSH)

    @property
    def has_intrinsic(self) -> bool:
        """Whether there is an intrinsic module: for a learned hash, or for a modulator."""
        return self.learns_hash or self.modulation is not Modulation.NONE

    @property
    def counts(self) -> bool:
        """Whether actors must have their observations counted."""
        return self.hash is not Hash.NONE and self.novelty is not Novelty.NONE


_ROWS = (
    Method("no-int", Hash.NONE, Novelty.NONE, Modulation.NONE, description="no intrinsic reward"),
    Method(
        "exact", Hash.EXACT, Novelty.COUNT, Modulation.NONE, lambda_=0.0, description="counts of whole observations"
    ),
    Method(
        "objects",
        Hash.OBJECTS,
        Novelty.COUNT,
        Modulation.NONE,
        lambda_=0.0,
        description="counts of the objects in view (MiniGrid)",
    ),
    Method("dsc", Hash.DSC, Novelty.COUNT, Modulation.NONE, lambda_=0.0, description="counts of coarse pictures"),
    Method(
        "ae-lsh",
        Hash.AE_LSH,
        Novelty.COUNT,
        Modulation.NONE,
        lambda_=0.0,
        description="counts of an autoencoder's projected bits",
    ),
    Method("vq-only", Hash.VQ, Novelty.COUNT, Modulation.NONE, lambda_=0.0, description="counts of VQ-VAE codes"),
    Method(
        "leco",
        Hash.VQ,
        Novelty.COUNT,
        Modulation.ADDITIVE,
        description="counts of codes, modulated by what the task rewards",
    ),
    Method("leco-ae-lsh", Hash.AE_LSH, Novelty.COUNT, Modulation.ADDITIVE, description="the same on AE-LSH codes"),
    Method(
        "leco-naive",
        Hash.VQ,
        Novelty.COUNT,
        Modulation.REPLACING,
        lambda_=1.0,
        description="the modulator is told the count and replaces it",
    ),
    Method("lirpg", Hash.VQ, Novelty.NONE, Modulation.ADDITIVE, lambda_=1.0, description="the modulator alone"),
    Method(
        "noveld",
        Hash.VQ,
        Novelty.GAIN,
        Modulation.NONE,
        lambda_=0.0,
        alphas=(0.05, 0.01),
        description="NovelD: first steps into what RND knows less well",
    ),
    Method("rnd", Hash.NONE, Novelty.ERROR, Modulation.NONE, lambda_=0.0, description="random network distillation"),
    Method(
        "ride",
        Hash.VQ,
        Novelty.IMPACT,
        Modulation.NONE,
        lambda_=0.0,
        alphas=(0.1, 0.01),
        description="RIDE: actions with an impact on learned features",
    ),
    Method(
        "agac",
        Hash.VQ,
        Novelty.ADVERSARIAL,
        Modulation.NONE,
        lambda_=0.0,
        alphas=(0.0125, 0.0125),
        novelty_learning_rate=9e-5,
        description="AGAC: first visits, and actions that an adversary does not foresee",
    ),
)
METHODS = {row.name: row for row in _ROWS}


def find_method(name: str, hash_kind: str | None = None) -> Method:
    """The row of that name, with another hash than its own if one is named.

    Raises:
        ValueError: there is no such row, in which case the message names the nearest and lists all; or it has no hash.
    """
    method = METHODS.get(name)
    if method is not None and hash_kind is not None:
        if method.hash is Hash.NONE:
            raise ValueError(f"hash.kind is {hash_kind!r}, but method {name!r} has no hash: leave it out")
        return replace(method, hash=Hash(hash_kind))
    if method is not None:
        return method
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f": did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"there is no method {name!r}{hint} The methods are: {', '.join(METHODS)}.")
