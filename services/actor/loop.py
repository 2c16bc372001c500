"""An actor's life in one run: parameters, an unroll, hand it over, again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog
import torch

from leco.checkpoint.snapshot import load_snapshot
from leco.config.experiment import method_of
from leco.config.toml import parse
from leco.envs.registry import make
from leco.models.build import build
from leco.models.hash_function import make_coder
from leco.rpc.hashcount_client import HashCountClient
from leco.telemetry import tracing
from services.actor.rollout import RolloutWorker
from services.actor.sender import PendingUnroll, Sender
from services.actor.visit_counter import VisitCounter

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import grpc

    from leco.config.experiment import Experiment
    from leco.learning.state import Params
    from leco.rpc.learner_client import LearnerClient
    from leco.types import ParameterSnapshot, RunSpecification
    from services.actor.metrics import ActorMetrics
    from services.actor.rollout import Unroll
    from services.actor.visit_counter import VisitCounts

log = structlog.get_logger("leco.actor")

COUNT_PATIENCE_SECONDS = 20.0
POLL_SECONDS = 0.01
WAIT_SECONDS = 0.5  # for room at the learner, before it is looked whether to stop


class Actor:
    """Plays in one run until it is stopped.

    Args:
        client: Joined.
        specification: Of the run.
        hashcount: Channel to the hash-count service; None if the method counts nothing.
        index: Which of the run's actors this is, for its seeds.
        metrics: To be told.
    """

    def __init__(
        self,
        client: LearnerClient,
        specification: RunSpecification,
        hashcount: grpc.Channel | None,
        *,
        index: int,
        metrics: ActorMetrics,
    ) -> None:
        self._client, self._metrics = client, metrics
        self._experiment: Experiment = parse(specification.configuration_toml)
        self._index = index
        method, shape = method_of(self._experiment), specification.trajectories.observation_shape
        actions, experiment = specification.trajectories.action_count, self._experiment
        self._networks = build(method, shape, actions, experiment.hash, experiment.network.width)
        self._env = make(specification.task, specification.environments, seed=0)
        found = (self._env.observation_shape, self._env.actions)
        if found != (shape, specification.trajectories.action_count):
            raise ValueError(
                f"{specification.task} has observations and actions {found} here, and others at the learner"
            )
        self._dropped = 0
        self._player: RolloutWorker | None = None
        self._version = 0
        self._hash_version = 0
        coder = make_coder(method, shape, self._networks.intrinsic, self._experiment.hash)
        self._counter: VisitCounter | None = None
        self._counting: HashCountClient | None = None
        if coder is not None:
            if hashcount is None:
                raise ValueError(
                    f"method {method.name!r} counts: give the address of the hash-count service (--hashcount)"
                )
            self._counting = HashCountClient(
                hashcount, run=specification.run, code_width=coder.width, patience_seconds=COUNT_PATIENCE_SECONDS
            )
            run_wide = self._experiment.training.run_count_weight > 0
            self._counter = VisitCounter(self._counting, coder.codes, specification.environments, run_wide=run_wide)
        self._metrics.environments.set(specification.environments)

    def give_up(self) -> None:
        """Waits no more for the hash-count service."""
        if self._counting is not None:
            self._counting.give_up()

    def run(self, stopped: threading.Event) -> None:
        """Plays until `stopped`; then sends what was played. Raises what `LearnerClient.push` raises."""
        sender = Sender(self._client, self._count if self._counter is not None else None, self._metrics)
        in_turns = self._experiment.learner.deterministic or self._experiment.learner.synchronous
        unroll_length = self._experiment.actors.unroll_length
        try:
            while not stopped.is_set():
                if self._experiment.learner.synchronous and not self._timed("waiting", self._room):
                    continue
                snapshot = self._timed("fetching", lambda: self._poll_parameters(stopped))
                if snapshot is not None:
                    self._load_parameters(snapshot)
                if self._player is None:
                    continue  # stopped before there were parameters
                journey = tracing.begin("unroll", parameters_version=self._version)
                with tracing.span("play", parent=journey.traceparent):
                    unroll = self._timed("acting", lambda: self._player.play(unroll_length))  # type: ignore[union-attr]
                self._metrics.frames.inc(unroll.action_TE.size)
                endings = [e.summary for each in unroll.endings for e in each if not e.summary.dropped]
                self._metrics.episodes.inc(len(endings))
                self._metrics.successes.inc(sum(summary.success for summary in endings))
                self._note_dropped()
                parcel = PendingUnroll(unroll, self._version, self._load_hash(self._version, self._intrinsic), journey)
                self._timed("waiting", lambda: sender.send(parcel))  # noqa: B023  # called at once
                if sender.backpressured or in_turns:
                    self._timed("waiting", sender.wait_until_sent)
        finally:
            self._env.close()
        sender.finish()

    def _room(self) -> bool:
        """Whether the learner waits for trajectories; it may take a while until it does."""
        return self._client.wait_for_credit(WAIT_SECONDS)

    def _note_dropped(self) -> None:
        """Of environments whose engines can fail: also episodes that could not begin, of which no trajectory tells."""
        dropped = getattr(self._env, "dropped_episodes", 0)
        self._metrics.dropped.inc(dropped - self._dropped)
        self._dropped = dropped

    def _poll_parameters(self, stopped: threading.Event) -> ParameterSnapshot | None:
        """Newer parameters if there are any. In a deterministic run: those after the updates that the last unroll serves.

        Versions and updates of a learner grow together; if they do not, it was killed, and began again at its last checkpoint.
        """
        learner = self._experiment.learner
        if not learner.deterministic or self._version == 0:
            return self._client.parameters(self._version)
        due = self._updates + self._experiment.actors.num_envs // learner.batch_size
        while not stopped.is_set():
            snapshot = self._client.parameters(self._version)
            if snapshot is not None:
                updates = int(snapshot.tensors["updates"])
                if updates >= due or snapshot.version - updates != self._version - self._updates:
                    return snapshot
            time.sleep(POLL_SECONDS)
        return None

    def _load_parameters(self, snapshot: ParameterSnapshot) -> None:
        policy, self._intrinsic = load_snapshot(snapshot, self._networks)
        self._networks.policy.load_state_dict(policy)
        self._version, self._updates = snapshot.version, int(snapshot.tensors["updates"])
        self._metrics.version.set(self._version)
        learner = self._experiment.learner
        # A deterministic run begins anew at every checkpoint, because environments are not saved in it.
        again = learner.deterministic and self._updates % learner.checkpoint_every == 0
        if self._player is None or again:
            if learner.deterministic and not again:
                raise ValueError(
                    f"the run is deterministic, and goes on only from a checkpoint, but the learner is {self._updates} updates "
                    "into it: restart the learner"
                )
            key = self._updates if learner.deterministic else self._version
            seeds = np.random.SeedSequence((self._experiment.seed, self._index, key)).generate_state(2, np.uint32)
            observation_EO = self._env.reset(int(seeds[0]))
            if self._player is None:
                self._player = RolloutWorker(self._env, self._networks.policy, int(seeds[1]), observation_EO)
            else:
                self._player.restart(int(seeds[1]), observation_EO)

    def _count(self, unroll: Unroll) -> list[VisitCounts | None]:
        assert self._counter is not None  # noqa: S101
        counts = self._counter.count(unroll)
        if self._experiment.learner.deterministic and any(each is None for each in counts):
            raise ValueError(
                "counting failed, and a deterministic run cannot leave anything out: restart the learner, which goes on from its "
                "last checkpoint"
            )
        return counts

    def _load_hash(self, version: int, tensors: Params) -> Callable[[], None]:
        """What the thread that sends does before it hashes an unroll of this version."""

        def use() -> None:
            net = self._networks.intrinsic
            if net is not None and self._hash_version != version:
                own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
                with torch.no_grad():
                    for name, tensor in tensors.items():
                        own[name].copy_(tensor)
                net.eval()
                self._hash_version = version

        return use

    def _timed(self, activity: str, action: Callable[[], Any]) -> Any:
        begin = time.monotonic()
        result = action()
        self._metrics.seconds.labels(activity).inc(time.monotonic() - begin)
        return result
