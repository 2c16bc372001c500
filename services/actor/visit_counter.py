"""Hashes what an unroll saw, and has it counted: one call for all environments.

Counted are, for each episode in order: its first observation, once, and what each action led to; the true last observation
where an action ended the episode. Counts of first observations are not needed: they only make a return to the start known.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import structlog

from leco.models.hash_function import first_bytes
from leco.rpc.hashcount_client import CodeBatch
from leco.telemetry import tracing

if TYPE_CHECKING:
    import numpy.typing as npt

    from leco.learning.state import Params
    from leco.models.hash_function import HashFunction
    from leco.rpc.hashcount_client import HashCountClient
    from services.actor.rollout import Unroll

log = structlog.get_logger("leco.actor")


class EpisodeSegment(NamedTuple):
    """Steps of one environment in one episode: actions `begin` up to but not `end`, which ends the episode if `final`."""

    begin: int
    end: int
    fresh: bool
    final: bool


@dataclass(slots=True)
class _Episode:
    """The episode that an environment is in. `lost`: counting failed within it, and cannot be made up for."""

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    sequence: int = 0
    lost: bool = False


class VisitCounts(NamedTuple):
    """The counts of one environment in its episodes: what `leco.types.Trajectory` says of them."""

    count_T: npt.NDArray[np.uint32]
    coarse_count_TM: npt.NDArray[np.uint32] | None = None
    coarse_code_TM: npt.NDArray[np.uint32] | None = None


class VisitCounter:
    """Follows the episodes of E environments.

    Args:
        client: Of the hash-count service.
        hash_function: Of the method.
        num_envs: E.
        strict: Whether it is an error if counts cannot be had.
    """

    def __init__(
        self, client: HashCountClient, hash_function: HashFunction, num_envs: int, *, strict: bool = False
    ) -> None:
        self._client, self._hash, self._strict = client, hash_function, strict
        self._hash_version = 0
        self._episodes = [_Episode() for _ in range(num_envs)]

    def give_up(self) -> None:
        """Waits no more for the hash-count service."""
        self._client.give_up()

    def load_hash(self, version: int, tensors: Params) -> None:
        """Hashes from now on with the intrinsic module of this version."""
        if self._hash_version != version:
            self._hash.load(tensors)
            self._hash_version = version

    def count(self, unroll: Unroll) -> list[VisitCounts | None]:
        """The counts of each environment; None where they could not be had for every step."""
        steps, num_envs = unroll.action_TE.shape
        with tracing.span("code"):
            code_TEW, terminal = self._hashed(unroll)
        batches: list[CodeBatch] = []
        where: list[tuple[int, EpisodeSegment]] = []
        counts = [self._no_counts(steps) for _ in range(num_envs)]
        for e in range(num_envs):
            ends = iter(terminal[e])
            for segment in segments(unroll.start_TE[:, e]):
                if segment.fresh:
                    self._episodes[e] = _Episode()
                episode = self._episodes[e]
                if episode.lost:
                    counts[e] = None
                    if segment.final:
                        next(ends)
                    continue
                # What the actions led to is one later; before it, the first of the episode.
                codes_nW = code_TEW[segment.begin + (not segment.fresh) : segment.end + 1, e]
                if segment.final:
                    codes_nW = np.concatenate([codes_nW[:-1], next(ends)[None]])
                codes = np.ascontiguousarray(codes_nW).reshape(-1, self._hash.width)  # level by level, step by step
                batches.append(CodeBatch(episode.id, episode.sequence, codes, segment.final))
                where.append((e, segment))
                episode.sequence += 1
        if batches:  # none if all episodes are lost
            self._fill(batches, where, counts)
        return counts

    def _fill(
        self,
        batches: list[CodeBatch],
        where: list[tuple[int, EpisodeSegment]],
        counts: list[VisitCounts | None],
    ) -> None:
        failed = []
        by_id = {episode.id: episode for episode in self._episodes}
        with tracing.span("count", kind="client", batches=len(batches)):
            results = self._client.count(batches)
        for batch, (e, segment), result in zip(batches, where, results, strict=True):
            if result.counts is None:
                failed.append(result.detail)
                counts[e] = None
                if batch.episode_id in by_id:
                    by_id[batch.episode_id].lost = True
            elif (found := counts[e]) is not None:
                these, skipped = slice(segment.begin, segment.end), int(segment.fresh)
                count_nL = result.counts.reshape(-1, self._hash.levels)[skipped:]
                found.count_T[these] = count_nL[:, 0]
                if found.coarse_count_TM is not None and found.coarse_code_TM is not None:
                    first_nL = first_bytes(batch.codes).reshape(-1, self._hash.levels)
                    found.coarse_count_TM[these], found.coarse_code_TM[these] = count_nL[:, 1:], first_nL[skipped:, 1:]
        if failed and self._strict:
            raise ValueError(
                "counting failed, and a deterministic run cannot leave anything out: restart the learner, which goes on from its "
                "last checkpoint"
            )
        if failed:
            log.warning("counting failed; the unrolls are marked as uncounted", batches=len(failed), first=failed[0])

    def _no_counts(self, steps: int) -> VisitCounts | None:
        """To be filled in."""
        count_T, coarse_TM = np.zeros(steps, np.uint32), np.zeros((steps, self._hash.levels - 1), np.uint32)
        return VisitCounts(count_T) if self._hash.levels == 1 else VisitCounts(count_T, coarse_TM, coarse_TM.copy())

    def _hashed(self, unroll: Unroll) -> tuple[npt.NDArray[np.uint8], list[list[npt.NDArray[np.uint8]]]]:
        """The codes of all T+1 observations [T+1, E, L W], and those of the true last ones of each environment."""
        shape_TE = unroll.observation_TEO.shape[:2]
        last = [ending.observation_O for endings in unroll.endings for ending in endings]
        every_NO = unroll.observation_TEO.reshape(-1, *unroll.observation_TEO.shape[2:])
        if last:
            every_NO = np.concatenate([every_NO, np.stack(last)])
        code_NW = self._hash.codes(every_NO)
        inside = shape_TE[0] * shape_TE[1]
        rest = iter(code_NW[inside:])
        return code_NW[:inside].reshape(*shape_TE, -1), [[next(rest) for _ in each] for each in unroll.endings]


def segments(start_T: npt.NDArray[np.bool_]) -> list[EpisodeSegment]:
    """The episodes in an unroll of one environment, in order. start_T: [T+1]."""
    steps = len(start_T) - 1
    ends = [t for t in range(1, steps + 1) if start_T[t]]
    begins = [0, *ends]
    if ends and ends[-1] == steps:
        begins.pop()  # that episode's first action is in the next unroll
    return [
        EpisodeSegment(begin, end, fresh=bool(start_T[begin]), final=bool(start_T[end]))
        for begin, end in zip(begins, [*begins[1:], steps], strict=True)
    ]
