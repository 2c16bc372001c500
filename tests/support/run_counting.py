"""Run-wide counts of everything that counts, as `harness.Counting` has the episodic ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from leco.rpc.hashcount_client import CodeBatch, HashCountClient
from services.hashcount import store as stores
from services.hashcount.store import Status
from support.harness import Direct, ThroughGrpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.harness import Batch, Counting


@dataclass(frozen=True)
class RunAnswer:
    """A status, with both counts exactly if it is COUNTED or REPLAYED."""

    status: Status
    counts: list[int] | None = None
    run_counts: list[int] | None = None


def count_run_wide(
    way: Counting, run: str, width: int, batches: Sequence[Batch], *, run_wide: bool = True
) -> list[RunAnswer]:
    """Has batches counted in their run too, by the store itself or by the real client."""
    if isinstance(way, ThroughGrpc):
        client = HashCountClient(
            way.channel,
            run=run,
            code_width=width,
            attempt_seconds=way.patience_seconds,
            patience_seconds=way.patience_seconds,
        )
        sent = [
            CodeBatch(b.episode_id, b.sequence, np.frombuffer(b"".join(b.codes), np.uint8).reshape(-1, width), b.final)
            for b in batches
        ]
        results = client.count(sent, run_wide=run_wide)
        return [RunAnswer(Status(r.status), _listed(r.counts), _listed(r.run_counts)) for r in results]
    assert isinstance(way, Direct)
    packed = [stores.Batch(b.episode_id, b.sequence, b"".join(b.codes), b.final) for b in batches]
    outcomes: list[stores.Outcome] = way.loop.run(way.store.count(run, width, packed, run_wide=run_wide))
    return [RunAnswer(o.status, _unpacked(o.counts), _unpacked(o.run_counts)) for o in outcomes]


def _listed(counts: np.ndarray[tuple[int], np.dtype[np.uint32]] | None) -> list[int] | None:
    return None if counts is None else counts.tolist()


def _unpacked(counts: bytes | None) -> list[int] | None:
    return None if counts is None else np.frombuffer(counts, "<u4").tolist()
