"""The method table: every method is a row of (hash, novelty, modulation), and nothing else distinguishes them.

A new method is a new row and, if what it calls new is new, a file of its own in this folder: its networks, its bonus r_ep, their
loss and statistics (`leco.methods.novelty.Novelty` says what the file must have). The policy network, the learner and the
counting are the same for all. Nothing here needs torch: a configuration is read without it. Rows may also be in other packages
(`leco.methods.own`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from leco.methods.own import find_own, installed_names
from leco.references import load_object
from leco.words import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    CELLS = "cells"
    """MiniGrid, two codes: what is in view, wherever it is, and in hand; what is in hand and in front."""
    VQ_CELLS = "vq-cells"
    """The same of learned codes: a VQ-VAE of single cells."""
    VQ_PATCHES = "vq-patches"
    """Pictures, two learned codes: which unusual patches are in view, wherever they are; the most unusual of them."""


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
        hash: What makes two observations the same.
        novelty: What is new: the name of the file in leco/methods that computes r_ep; or `my_module:NAME`, an object of another
            package that has what such a file has.
        modulation: What a learned modulator makes of it.
        bonus: r_ep as a formula, for people.
        bonus_needs_network: Whether r_ep itself is measured by networks that only this novelty has.
        lambda_: The share of the modulator in r_i that the method is defined by; None if it is a setting.
        alpha: What `training.alpha` is by default.
        alpha_by_kind: The same for some kinds of observations.
        laptop: What the preset `laptop` sets for this method, as TOML: its alpha there, found by one search for all
            (docs/methods.md).
        novelty_learning_rate: What that is by default.
        description: For people.
    """

    name: str
    hash: Hash
    novelty: str
    modulation: Modulation
    bonus: str = "1/sqrt(N)"
    bonus_needs_network: bool = False
    lambda_: float | None = None
    alpha: float = 0.01
    alpha_by_kind: Mapping[str, float] = field(default_factory=dict)
    laptop: str = ""
    novelty_learning_rate: float = 1e-4
    description: str = ""

    def alpha_of(self, kind: str) -> float:
        """The default of `training.alpha` for this kind of observations."""
        return self.alpha_by_kind.get(kind, self.alpha)

    @property
    def learns_hash(self) -> bool:
        """Whether the hash is a network."""
        return self.hash in (Hash.VQ, Hash.AE_LSH, Hash.VQ_CELLS, Hash.VQ_PATCHES)

    @property
    def has_intrinsic(self) -> bool:
        """Whether there is an intrinsic module: for a learned hash, or for a modulator."""
        return self.learns_hash or self.modulation is not Modulation.NONE

    @property
    def has_novelty(self) -> bool:
        """Whether there is an r_ep."""
        return self.novelty != "none"

    def remembers(self, episodic_bonus: str) -> bool:
        """Whether r_ep depends on what the run has seen, with this `training.episodic_bonus`."""
        return self.novelty == "count" and episodic_bonus == "information"

    @property
    def counts(self) -> bool:
        """Whether actors must have their observations counted."""
        return self.hash is not Hash.NONE and self.has_novelty


_ROWS = (
    Method("no-int", Hash.NONE, "none", Modulation.NONE, bonus="-", description="no intrinsic reward"),
    Method(
        "exact",
        Hash.EXACT,
        "count",
        Modulation.NONE,
        lambda_=0.0,
        description="counts of whole observations",
    ),
    Method(
        "objects",
        Hash.OBJECTS,
        "count",
        Modulation.NONE,
        lambda_=0.0,
        description="counts of the objects in view (MiniGrid)",
    ),
    Method(
        "dsc",
        Hash.DSC,
        "count",
        Modulation.NONE,
        lambda_=0.0,
        description="counts of coarse pictures",
    ),
    Method(
        "ae-lsh",
        Hash.AE_LSH,
        "count",
        Modulation.NONE,
        lambda_=0.0,
        description="counts of an autoencoder's projected bits",
    ),
    Method(
        "vq-only",
        Hash.VQ,
        "count",
        Modulation.NONE,
        lambda_=0.0,
        description="counts of VQ-VAE codes",
    ),
    Method(
        "leco",
        Hash.VQ,
        "count",
        Modulation.ADDITIVE,
        laptop='training.alpha = 0.0055\nhash.kind = "vq-cells"',  # or what the kind of observations has instead
        description="counts of codes, modulated by what the task rewards",
    ),
    Method(
        "leco-ae-lsh",
        Hash.AE_LSH,
        "count",
        Modulation.ADDITIVE,
        laptop="training.alpha = 0.0055",
        description="the same on AE-LSH codes",
    ),
    Method(
        "leco-naive",
        Hash.VQ,
        "count",
        Modulation.REPLACING,
        lambda_=1.0,
        laptop="training.alpha = 0.064",
        description="the modulator is told the count and replaces it",
    ),
    Method(
        "lirpg",
        Hash.VQ,
        "none",
        Modulation.ADDITIVE,
        bonus="-",
        lambda_=1.0,
        laptop="training.alpha = 0.064",
        description="the modulator alone",
    ),
    Method(
        "noveld",
        Hash.VQ,
        "noveld",
        Modulation.NONE,
        bonus="max(n(s') - 0.5 n(s), 0) if N = 1",
        bonus_needs_network=True,
        lambda_=0.0,
        alpha_by_kind={"minigrid": 0.05},
        description="NovelD: first steps into what RND knows less well",
    ),
    Method(
        "rnd",
        Hash.NONE,
        "rnd",
        Modulation.NONE,
        bonus="RND error",
        bonus_needs_network=True,
        lambda_=0.0,
        description="random network distillation",
    ),
    Method(
        "ride",
        Hash.VQ,
        "ride",
        Modulation.NONE,
        bonus="||phi(s') - phi(s)|| / sqrt(N)",
        bonus_needs_network=True,
        lambda_=0.0,
        alpha_by_kind={"minigrid": 0.1},
        description="RIDE: actions with an impact on learned features",
    ),
    Method(
        "agac",
        Hash.VQ,
        "agac",
        Modulation.NONE,
        bonus="floor(1/sqrt(N)), and an adversary",
        lambda_=0.0,
        alpha=0.0125,
        novelty_learning_rate=9e-5,
        description="AGAC: first visits, and actions that an adversary does not foresee",
    ),
)
METHODS = {row.name: row for row in _ROWS}


def find_method(name: str, hash_kind: str | None = None) -> Method:
    """The row of that name, with another hash than its own if one is named.

    Args:
        name: Of this table, of an installed package, or `my_module:ROW`.
        hash_kind: The hash to count with.

    Raises:
        ValueError: there is no such row, in which case the message names one that is near; or it has no hash.
    """
    method = METHODS.get(name) or _own(name)
    if method is None:
        names = [*METHODS, *installed_names()]
        raise ValueError(f"there is no method {name!r}; {did_you_mean(name, names, '`leco methods` lists them')}")
    if hash_kind is None:
        return method
    if method.hash is Hash.NONE:
        raise ValueError(f"hash.kind is {hash_kind!r}, but method {name!r} has no hash: leave it out")
    return replace(method, hash=Hash(hash_kind))


def _own(name: str) -> Method | None:
    """The row of another package, by the name that every process of a run finds it by."""
    try:
        found = find_own(name)
        if isinstance(found, Method) and ":" in found.novelty:
            load_object(found.novelty)  # now, and not when the learner needs it
    except ValueError as error:
        raise ValueError(f"method {name!r} cannot be used: {error}") from error
    if found is None:
        return None
    if not isinstance(found, Method):
        raise ValueError(  # noqa: TRY004  # a name that was typed, whatever its type
            f"method {name!r} cannot be used: it is {type(found).__name__}, expected a row, leco.methods.table.Method"
        )
    return replace(found, name=name)
