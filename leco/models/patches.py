"""A learned hash of pictures: visual words, as Sivic and Zisserman (2003) find objects in videos.

A picture is cut into patches, and each patch is the nearest vector of a codebook, its word. The codebook is learned from what is
seen, by running means. What most pictures have is no word: of the others the rarest are, so many that a picture has two of them
on average. So a picture is described by what is unusual in it, wherever that is.

A squared error weighs a wall like a key, and there is much more wall. Therefore equal patches count as the root of how often
they occur, and all patches of a word together as the root of that. Patches that are far from their vector get one of their own,
in place of one that nobody uses. Until then they are strange, which is a word too, and the rarest.

N     pictures, U distinct ones          P  patches of a picture      M  distinct patches
C     channels                           S  side of a patch           K  vectors of the codebook
D     numbers that describe a patch: a mean for each sixteenth of it and each channel
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from leco.algo.dedup import distinct
from leco.algo.hashes import digest, pack_bits
from leco.algo.quantize import nearest_code
from leco.algo.sampling import systematic_sample
from leco.config.training import HashConfig
from leco.models.intrinsic import CodebookModule
from leco.models.kinds.table import networks_of

if TYPE_CHECKING:
    from leco.models.kinds.table import Kind

CODES = 128  # K, where `hash.codebook_size` does not say
LEVELS = 2
WORDS = 2.0  # that a picture has on average
MOST_SHARE = 0.5  # of pictures that may have a word
STAYS = 1.5  # so many times both while it is one already: words that came and went would make pictures new again
PATCHES = 65_536  # of a batch that are looked at, nearly
DECAY = 0.95  # of the running sums that the codebook is made of
VIEWS_DECAY = 0.98  # of how many pictures have a code
LEAST_USE = 0.02  # a vector that has less than this share of an even one may begin anew
BEGINNINGS = 16  # vectors that begin anew in an update, at most
EQUAL = 1e-3  # patches nearer than that are the same
STRANGE = 16.0  # a patch is, whose squared distance from its vector is so many times the mean one
ERROR_DECAY = 0.8  # of that mean
_FAR = 10.0  # where no patch is, whose numbers are from 0 to 1
_GRID = 4


class PatchCodebook(nn.Module):
    """The codebook, and how many pictures have each code.

    Args:
        codes: K.
        channels: C.
    """

    vectors_KD: Tensor
    used_K: Tensor
    sum_KD: Tensor
    in_views_K: Tensor
    word_K: Tensor
    error: Tensor

    def __init__(self, codes: int, channels: int) -> None:
        super().__init__()
        width = _GRID * _GRID * channels
        self.register_buffer("vectors_KD", torch.full((codes, width), _FAR))
        self.register_buffer("used_K", torch.zeros(codes))
        self.register_buffer("sum_KD", torch.zeros(codes, width))
        self.register_buffer("in_views_K", torch.zeros(codes))
        self.register_buffer("word_K", torch.zeros(codes))
        self.register_buffer("error", torch.zeros(()))

    def code(self, patch_NPX: Tensor) -> Tensor:
        """The number of the nearest vector to each patch, or K of a strange one: uint8 [N, P, X] -> int64 [N, P]."""
        unique = distinct(patch_NPX.flatten(0, 1))
        z_MD = self._describe(unique.observation_UO)
        code_M = _nearest(z_MD, self.vectors_KD)
        strange_M = self._distance(z_MD, code_M) > (STRANGE * self.error).clamp(min=EQUAL**2)
        code_M = torch.where(strange_M, len(self.used_K), code_M)
        return code_M[unique.index_N].view(patch_NPX.shape[:2])

    def words(self) -> Tensor:
        """Which codes are words, and that strange is one: bool [K + 1]."""
        return functional.pad(self.word_K > 0, (0, 1), value=True)

    def levels(self, patch_NPX: Tensor) -> Tensor:
        """Two codes of each picture, as digests: the words that it has, wherever they are; the rarest of them.

        Returns uint8 [N, 2 x 16].
        """
        code_NP, word_K = self.code(patch_NPX), self.words()
        has_NK = _has(code_NP, len(word_K)) & word_K
        share_NK = torch.where(has_NK, functional.pad(self.in_views_K, (0, 1)), 2.0)
        rarest_N1 = torch.where(has_NK.any(1), share_NK.argmin(1) + 1, 0).unsqueeze(1)
        rarest_N2 = torch.cat([rarest_N1 // 256, rarest_N1 % 256], 1).to(torch.uint8)
        return torch.cat([digest(pack_bits(has_NK), 1), digest(rarest_N2, 2)], 1)

    @torch.no_grad()
    def learn(self, patch_UPX: Tensor, times_U: Tensor, generator: torch.Generator) -> Tensor:
        """Moves the codebook, and learns what pictures have.

        Args:
            patch_UPX: The patches of the distinct pictures of a batch.
            times_U: How often each occurs.
            generator: Draws where vectors begin anew, and of many pictures those that are looked at.

        Returns:
            The mean squared distance of a patch from its vector.
        """
        start = float(torch.rand((), generator=generator, dtype=torch.float64))
        index_V, times_V = systematic_sample(times_U, max(PATCHES // patch_UPX.shape[1], 1), start)
        patch_VPX = patch_UPX[index_V]
        unique = distinct(patch_VPX.flatten(0, 1))
        times_M = torch.bincount(
            unique.index_N, times_V.repeat_interleave(patch_VPX.shape[1]), len(unique.multiplicity_U)
        )
        z_MD = self._describe(unique.observation_UO)
        weight_M = times_M.to(z_MD.dtype).sqrt()
        code_M = _nearest(z_MD, self.vectors_KD)
        weight_M = self._balanced(weight_M, code_M)
        fresh_K = self._begin_anew(z_MD, weight_M, code_M, generator)
        code_M = _nearest(z_MD, self.vectors_KD)
        self._move(z_MD, weight_M, code_M)
        has_VK = _has(code_M[unique.index_N].view(patch_VPX.shape[:2]), len(fresh_K))
        share_K = (times_V.to(z_MD.dtype) @ has_VK.to(z_MD.dtype)) / times_V.sum()
        slow_K = torch.lerp(share_K, self.in_views_K, VIEWS_DECAY)
        self.in_views_K.copy_(torch.where(fresh_K, share_K, slow_K))
        self._choose_words(fresh_K)
        error = weight_M @ self._distance(z_MD, code_M)
        self.error.copy_(torch.where(self.error > 0, torch.lerp(error, self.error, ERROR_DECAY), error))
        return error

    def _choose_words(self, fresh_K: Tensor) -> None:
        """The rarest codes, as long as a picture has no more than two of them on average."""
        rarest = self.in_views_K.sort()
        total_K = torch.zeros_like(self.in_views_K).scatter_(0, rarest.indices, rarest.values.cumsum(0))
        becomes_K = (total_K <= WORDS) & (self.in_views_K < MOST_SHARE)
        stays_K = (total_K <= STAYS * WORDS) & (self.in_views_K < STAYS * MOST_SHARE)
        self.word_K.copy_(becomes_K | ((self.word_K > 0) & stays_K & ~fresh_K))

    def _balanced(self, weight_M: Tensor, code_M: Tensor) -> Tensor:
        """The weight of patches, so that all of a code together weigh as the root of what they did; 1 in sum."""
        of_code_K = torch.bincount(code_M, weight_M, len(self.used_K)).to(weight_M.dtype)
        balanced_M = weight_M / of_code_K[code_M].clamp(min=1e-12).sqrt()
        return balanced_M / balanced_M.sum()

    def _begin_anew(self, z_MD: Tensor, weight_M: Tensor, code_M: Tensor, generator: torch.Generator) -> Tensor:
        """Puts vectors that nobody uses, the longest unused first, onto patches that are far from theirs: bool [K]."""
        distance_M = self._distance(z_MD, code_M)
        chance_M = weight_M * distance_M * (distance_M > EQUAL**2)
        idle_K = self.used_K < LEAST_USE / len(self.used_K)
        count = min(int(idle_K.sum()), int((chance_M > 0).sum()), BEGINNINGS)
        fresh_K = torch.zeros_like(idle_K)
        if count == 0:
            return fresh_K
        where_B = self.used_K.topk(count, largest=False).indices
        begins_BD = z_MD[torch.multinomial(chance_M, count, generator=generator)]
        self.vectors_KD[where_B] = begins_BD
        self.used_K[where_B] = 1 / len(self.used_K)
        self.sum_KD[where_B] = begins_BD / len(self.used_K)
        fresh_K[where_B] = True
        return fresh_K

    def _move(self, z_MD: Tensor, weight_M: Tensor, code_M: Tensor) -> None:
        """Running means, as van den Oord et al. (2017, appendix A.1) have them."""
        share_MK = functional.one_hot(code_M, len(self.used_K)) * weight_M.unsqueeze(1)
        self.used_K.mul_(DECAY).add_(share_MK.sum(0), alpha=1 - DECAY)
        self.sum_KD.mul_(DECAY).add_(share_MK.T @ z_MD, alpha=1 - DECAY)
        in_use_K1 = (self.used_K >= LEAST_USE / len(self.used_K)).unsqueeze(1)
        mean_KD = self.sum_KD / self.used_K.clamp(min=1e-12).unsqueeze(1)
        self.vectors_KD.copy_(torch.where(in_use_K1, mean_KD, self.vectors_KD))

    def _distance(self, z_MD: Tensor, code_M: Tensor) -> Tensor:
        """The squared one of each patch from its vector."""
        return (z_MD - self.vectors_KD[code_M]).square().sum(1)

    def _describe(self, patch_MX: Tensor) -> Tensor:
        """What of a patch is compared: uint8 [M, S x S x C] -> [M, D], from 0 to 1."""
        channels = self.vectors_KD.shape[1] // _GRID**2
        side = math.isqrt(patch_MX.shape[1] // channels)
        part_M = patch_MX.view(-1, _GRID, side // _GRID, _GRID, side // _GRID, channels)
        return part_M.to(self.vectors_KD.dtype).mean((2, 4)).flatten(1) / 255


def patch_side(size: tuple[int, int]) -> int:
    """The side of a patch of pictures of this height and width: 8, or 4 of small ones, or more so that there are 12 in a row."""
    longer = max(size)
    return _GRID if longer < 4 * 8 else 8 * math.ceil(longer / (12 * 8))


def cut(picture_NHWC: Tensor) -> Tensor:
    """The patches of pictures, row by row, with a black border where sides are no multiple of a patch's: [N, P, S x S x C]."""
    count, height, width, channels = picture_NHWC.shape
    side = patch_side((height, width))
    rows, columns = -(-height // side), -(-width // side)
    below, right = rows * side - height, columns * side - width
    edges = (0, 0, right // 2, right - right // 2, below // 2, below - below // 2)
    padded_NHWC = functional.pad(picture_NHWC, edges) if below or right else picture_NHWC
    grid = padded_NHWC.reshape(count, rows, side, columns, side, channels).transpose(2, 3)
    return grid.reshape(count, rows * columns, side * side * channels)


def _has(code_NP: Tensor, codes: int) -> Tensor:
    """Which codes a picture has: bool [N, K]."""
    has_NK = torch.zeros(len(code_NP), codes, dtype=torch.bool, device=code_NP.device)
    return has_NK.scatter_(1, code_NP, value=True)


def _nearest(z_MD: Tensor, vectors_KD: Tensor) -> Tensor:
    return nearest_code(z_MD.T[None, :, :, None], vectors_KD)[0, :, 0]


class PatchHashModule(CodebookModule):
    """Modulator and V^e on features of their own, with a learned hash of patches beside them."""

    levels = LEVELS

    def __init__(self, kind: Kind, codebook_size: int, *, num_actions: int, condition_on_novelty: bool = False) -> None:
        features = networks_of(kind).build_patch_features(kind)
        super().__init__(features, num_actions=num_actions, condition_on_novelty=condition_on_novelty)
        self.patches = PatchCodebook(codebook_size, kind.shape[-1])

    def code(self, observation_NO: Tensor) -> Tensor:
        """The codes of each picture, fine to coarse: uint8."""
        return self.patches.levels(cut(self.bare(observation_NO)))

    def hash_loss(self, observation_UO: Tensor, times_U: Tensor, generator: torch.Generator) -> Tensor:
        """How far patches are from the codebook's vectors; moves them."""
        return self.patches.learn(cut(self.bare(observation_UO)), times_U, generator)


def build_patch_module(
    kind: Kind, num_actions: int, given: HashConfig | None = None, *, condition_on_novelty: bool = False
) -> PatchHashModule:
    """With a learned hash of patches."""
    codebook_size = (given or HashConfig()).codebook_size or CODES
    return PatchHashModule(kind, codebook_size, num_actions=num_actions, condition_on_novelty=condition_on_novelty)
