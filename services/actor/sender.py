"""From unrolls to trajectories on their way to the learner: hashed, counted, cut by environment, pushed.

It runs in a thread of its own, one unroll behind the acting, so that neither counting nor the network holds up a step. There is
no queue between the two: while an unroll is sent, one is played and none waits, because what waits grows old.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from leco.telemetry import tracing
from leco.types import Trajectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.learning.state import Params
    from leco.rpc.learner_client import LearnerClient
    from leco.telemetry.tracing import UnrollTrace
    from services.actor.metrics import ActorMetrics
    from services.actor.rollout import Unroll
    from services.actor.visit_counter import VisitCounter, VisitCounts

    Counts = list[VisitCounts | None]


HELD_UP_SECONDS = 0.02


class PendingUnroll(NamedTuple):
    """An unroll, the version of the parameters that played it, the intrinsic module of that version, and its trace."""

    unroll: Unroll
    version: int
    intrinsic: Params
    trace: UnrollTrace


class Sender:
    """Takes unrolls and sends them.

    Args:
        client: Of the learner.
        counter: Counts what unrolls saw; None if the method counts nothing.
        metrics: To be told.
    """

    def __init__(self, client: LearnerClient, counter: VisitCounter | None, metrics: ActorMetrics) -> None:
        self._client = client
        self._counter = counter
        self._metrics = metrics
        self._number = 0
        self._changed = threading.Condition()  # guards the four below
        self._pending: PendingUnroll | None = None
        self._finished = False
        self._pushing = 0.0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="leco-sender", daemon=True)
        self._thread.start()

    def send(self, pending: PendingUnroll) -> None:
        """Hands an unroll over as soon as the one before is sent. Raises what went wrong in the thread."""
        self.wait_until_sent()
        with self._changed:
            self._pending = pending
            self._changed.notify_all()

    @property
    def backpressured(self) -> bool:
        """Whether the learner let the last unroll wait: it is the slower side, and what is played ahead only grows old."""
        return self._pushing > HELD_UP_SECONDS

    def wait_until_sent(self) -> None:
        """Waits until nothing is left to send. Raises what went wrong in the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is None or self._failure is not None)
            if self._failure is not None:
                raise self._failure

    def finish(self) -> None:
        """Ends the thread as soon as everything is sent. Raises what went wrong in it."""
        try:
            self.wait_until_sent()
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._finished or self._pending is not None)
                    pending = self._pending
                if pending is None:
                    return
                with pending.trace:
                    counts = self._counted(pending)
                    with tracing.span("send", kind="producer", trajectories=len(counts)):
                        self._push(self._cut(pending, counts))
                with self._changed:
                    self._pending = None
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # it is raised again in the thread that acts
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _counted(self, pending: PendingUnroll) -> Counts:
        """The counts of each environment."""
        if self._counter is None:
            return [None] * pending.unroll.action_TE.shape[1]
        with self._metrics.time.spent("counting"):
            self._counter.load_hash(pending.version, pending.intrinsic)
            counts = self._counter.count(pending.unroll)
        self._metrics.uncounted.inc(sum(each is None for each in counts))
        return counts

    def _push(self, trajectories: Sequence[Trajectory]) -> None:
        """Returns when the learner has them. The time in which they are packed, and perhaps compressed, is not the learner's."""
        waited = sum(self._client.push(each) for each in trajectories)
        begin = time.monotonic()
        self._client.drain(None)
        self._pushing = waited + time.monotonic() - begin
        self._metrics.time.add("pushing", self._pushing)

    def _cut(self, pending: PendingUnroll, counts: Counts) -> list[Trajectory]:
        """One trajectory for each environment."""
        unroll, place = pending.unroll, tracing.traceparent()
        shape = unroll.observation_TEO.shape[2:]
        trajectories = []
        for e, (counted, endings) in enumerate(zip(counts, unroll.endings, strict=True)):
            self._number += 1
            last = [ending.observation_O for ending in endings]
            trajectories.append(
                Trajectory(
                    number=self._number,
                    parameters_version=pending.version,
                    previous_action=int(unroll.previous_action_E[e]),
                    previous_reward=float(unroll.previous_reward_E[e]),
                    observation=unroll.observation_TEO[:, e],
                    start=unroll.start_TE[:, e],
                    terminal_observation=np.stack(last) if last else np.empty((0, *shape), np.uint8),
                    action=unroll.action_TE[:, e],
                    reward=unroll.reward_TE[:, e],
                    behaviour_logits=unroll.logits_TEA[:, e],
                    core_state=unroll.core_LCEH[:, :, e],
                    count=None if counted is None else counted.count_T,
                    coarse_count=None if counted is None else counted.coarse_count_TM,
                    coarse_code=None if counted is None else counted.coarse_code_TM,
                    episodes=tuple(ending.summary for ending in endings),
                    traceparent=place,
                )
            )
        return trajectories
