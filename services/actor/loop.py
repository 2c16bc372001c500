"""An actor's life in one run: parameters, an unroll, hand it over, again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import numpy as np

from leco.checkpoint.snapshot import load_snapshot
from leco.config.experiment import method_of, task_of
from leco.config.toml import parse
from leco.envs.registry import make
from leco.envs.vector import spread_lengths
from leco.models.build import build
from leco.models.hash_function import make_hash_function
from leco.models.kinds.table import find_kind
from leco.rpc.hashcount_client import HashCountClient
from leco.telemetry import tracing
from services.actor.rollout import RolloutWorker
from services.actor.sender import PendingUnroll, Sender
from services.actor.visit_counter import VisitCounter

if TYPE_CHECKING:
    import threading

    import grpc
    import numpy.typing as npt

    from leco.envs.vector import FixedLengthEnv
    from leco.rpc.learner_client import LearnerClient
    from leco.types import ParameterSnapshot, RunSpecification
    from services.actor.metrics import ActorMetrics
    from services.actor.rollout import Unroll

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
        self._client, self._index, self._metrics = client, index, metrics
        self._experiment = experiment = parse(specification.configuration_toml)
        self._learner = experiment.learner
        shape, num_actions = specification.trajectories.observation_shape, specification.trajectories.action_count
        self._task = task_of(experiment)
        self._networks = build(
            method_of(experiment), self._task.layout, num_actions, experiment.hash, experiment.network
        )
        self._env = make(self._task, specification.environments, seed=0)
        found = (self._env.observation_shape, self._env.num_actions)
        if found != (shape, num_actions):
            raise ValueError(
                f"{specification.task} has observations and actions {found} here, and others at the learner"
            )
        self._counter = self._make_counter(specification, hashcount)
        self._worker: RolloutWorker | None = None
        self._version = self._updates = self._dropped = 0
        self._metrics.environments.set(specification.environments)

    def _make_counter(self, specification: RunSpecification, hashcount: grpc.Channel | None) -> VisitCounter | None:
        """None if the method counts nothing."""
        experiment, method = self._experiment, method_of(self._experiment)
        kind = find_kind(self._task.layout)
        hash_function = make_hash_function(method, kind, self._networks.intrinsic, experiment.hash)
        if hash_function is None:
            return None
        if hashcount is None:
            raise ValueError(f"method {method.name!r} counts: give the address of the hash-count service (--hashcount)")
        client = HashCountClient(
            hashcount, run=specification.run, code_width=hash_function.width, patience_seconds=COUNT_PATIENCE_SECONDS
        )
        return VisitCounter(client, hash_function, specification.environments, strict=self._learner.deterministic)

    def give_up(self) -> None:
        """Waits no more for the hash-count service."""
        if self._counter is not None:
            self._counter.give_up()

    def run(self, stopped: threading.Event) -> None:
        """Plays until `stopped`: newer parameters, an unroll, hand it to the thread that hashes, counts, cuts and sends it.

        Raises what `LearnerClient.push` raises.
        """
        sender, spent = Sender(self._client, self._counter, self._metrics), self._metrics.time.spent
        in_turns = self._learner.deterministic or self._learner.synchronous
        try:
            while not stopped.is_set():
                if self._learner.synchronous:
                    with spent("waiting"):
                        wanted = self._client.wait_for_credit(WAIT_SECONDS)
                    if not wanted:
                        continue
                with spent("fetching"):
                    snapshot = self._poll_parameters(stopped)
                if snapshot is not None:
                    self._load_parameters(snapshot)
                if self._worker is None:
                    continue  # stopped before there were parameters
                trace = tracing.begin("unroll", parameters_version=self._version)
                with spent("acting"), tracing.span("play", parent=trace.traceparent):
                    unroll = self._worker.play(self._experiment.actors.unroll_length)
                self._note(unroll)
                with spent("waiting"):
                    sender.send(PendingUnroll(unroll, self._version, self._intrinsic, trace))
                    if sender.backpressured or in_turns:
                        sender.wait_until_sent()
        finally:
            self._env.close()
        sender.finish()

    def _note(self, unroll: Unroll) -> None:
        self._metrics.frames.inc(unroll.action_TE.size)
        ended = [ending.summary for each in unroll.endings for ending in each if not ending.summary.dropped]
        self._metrics.episodes.inc(len(ended))
        self._metrics.successes.inc(sum(summary.success for summary in ended))
        # Of environments whose engines can fail: also episodes that could not begin, of which no trajectory tells.
        dropped = getattr(self._env, "dropped_episodes", 0)
        self._metrics.dropped.inc(dropped - self._dropped)
        self._dropped = dropped

    def _poll_parameters(self, stopped: threading.Event) -> ParameterSnapshot | None:
        """Newer parameters if there are any. In a deterministic run: those after the updates that the last unroll serves.

        Versions and updates of a learner grow together; if they do not, it was killed, and began again at its last checkpoint.
        """
        if not self._learner.deterministic or self._version == 0:
            return self._client.parameters(self._version)
        due = self._updates + self._experiment.actors.num_envs // self._learner.batch_size
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
        learner = self._learner
        # A deterministic run begins anew at every checkpoint, because environments are not saved in it.
        again = learner.deterministic and self._updates % learner.checkpoint_every == 0
        if self._worker is None or again:
            if learner.deterministic and not again:
                raise ValueError(
                    f"the run is deterministic, and goes on only from a checkpoint, but the learner is {self._updates} updates "
                    "into it: restart the learner"
                )
            key = self._updates if learner.deterministic else self._version
            seeds = np.random.SeedSequence((self._experiment.seed, self._index, key)).generate_state(2, np.uint32)
            observation_EO = self._reset(int(seeds[0]))
            if self._worker is None:
                self._worker = RolloutWorker(self._env, self._networks.policy, int(seeds[1]), observation_EO)
            else:
                self._worker.restart(int(seeds[1]), observation_EO)

    def _reset(self, seed: int) -> npt.NDArray[np.uint8]:
        """Begins all environments; where episodes are equally long, so that they do not end in the same step for ever."""
        if self._task.fixed_length:
            lengths = spread_lengths(self._env.num_envs, self._task.max_steps, self._index)
            return cast("FixedLengthEnv", self._env).reset(seed, first_lengths=lengths)
        return self._env.reset(seed)
