"""The thread that trains: a batch, an update, new parameters, again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from leco.algo.ranks import world_size
from leco.checkpoint.milestones import milestone_updates
from leco.checkpoint.snapshot import make_snapshot
from leco.checkpoint.state_file import not_finite
from leco.checkpoint.trained import frames_of_update
from leco.config.experiment import method_of, task_of
from leco.learning.update import update
from leco.report.metrics import columns, when_reached
from leco.telemetry import tracing
from services.learner.batching import make_batch
from services.learner.best_return import NONE
from services.learner.update_guard import MOST_LEFT_OUT, DivergedError, objection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import torch

    from leco.checkpoint.state_file import MetadataValue
    from leco.config.experiment import Experiment
    from leco.learning.state import Networks, Params, TrainingState
    from leco.types import ParameterSnapshot, Trajectory
    from services.learner.best_return import BestReturn
    from services.learner.checkpoints import Checkpoints
    from services.learner.followers import Followers
    from services.learner.metrics import LearnerMetrics
    from services.learner.metrics_logger import EpisodeStats, MetricsLogger
    from services.learner.trajectory_queue import TrajectoryQueue

log = structlog.get_logger("leco.learner")


class Trainer:
    """Trains until the experiment's frames or its success rate (`until`) are reached, or the queue is closed.

    Args:
        experiment: What is trained.
        networks: What is computed.
        state: Where training begins or goes on.
        queue: Where trajectories come from.
        publish: Takes new parameters.
        checkpoints: Where states are saved.
        metrics_logger, episodes: The run's curves.
        metrics: To be told.
        device: Where updates are computed.
        followers: The other ranks that compute them, if there are any.
        best: The highest mean return for which a state was saved.
    """

    def __init__(
        self,
        experiment: Experiment,
        networks: Networks,
        state: TrainingState,
        *,
        queue: TrajectoryQueue,
        publish: Callable[[ParameterSnapshot], None],
        checkpoints: Checkpoints,
        metrics_logger: MetricsLogger,
        episodes: EpisodeStats,
        metrics: LearnerMetrics,
        device: torch.device,
        followers: Followers,
        best: BestReturn,
    ) -> None:
        self._experiment, self._networks, self.state = experiment, networks, state
        self._queue, self._publish, self._checkpoints = queue, publish, checkpoints
        self._metrics_logger, self._episodes, self._metrics, self._device = metrics_logger, episodes, metrics, device
        self._followers = followers
        self._method = method_of(experiment)
        learner = experiment.learner
        # Before an update is done there is the policy after it and the hash before it. A deterministic run waits for both: it
        # goes on from checkpoints, which have both after an update.
        waits = learner.deterministic and self._method.learns_hash
        self._early = learner.synchronous and learner.publish_every == 1 and not waits
        self._max_steps = task_of(experiment).max_steps
        self._frames_of_update = frames_of_update(experiment)
        self._milestones = milestone_updates(experiment)
        self._best = best
        self._lag = 0.0
        self._left_out = 0  # updates, in a row
        self._recorded = (state.updates, time.monotonic())
        self._stats: dict[str, float] = {}
        metrics.run_frames.set(self.frames)
        metrics.target_frames.set(experiment.frames)
        metrics.checkpoint_time.set_to_current_time()

    @property
    def frames(self) -> int:
        """Actions trained on, over all starts of the run."""
        return self.state.updates * self._frames_of_update

    def publish(self) -> None:
        """Offers the present parameters to actors."""
        self._publish(make_snapshot(self.state, self._checkpoints.version(self.state.updates)))

    def _publish_early(self, policy: Params) -> None:
        """Offers the next policy before the update is done, with the present hash: actors play while hash and modulator learn."""
        after = self.state._replace(policy=policy, updates=self.state.updates + 1)
        if not_finite(after):
            return  # the update will be left out
        self._publish(make_snapshot(after, self._checkpoints.version(after.updates)))
        self._queue.free()

    @property
    def ending(self) -> str:
        """Why training has ended by itself, in words."""
        if self.frames >= self._experiment.frames:
            return "all frames are trained on"
        if self._learned():
            return f"{100 * float(self._metrics_logger.last['success']):g} % of the last 100 episodes were solved"
        return "training failed"

    def run(self) -> bool:
        """Trains. Returns whether training is done; otherwise it was asked to stop. The state is saved either way."""
        learner = self._experiment.learner
        try:
            while not self._done():
                if not self._step():
                    self._record_last()
                    return False
                if self.state.updates % learner.checkpoint_every == 0:
                    self._save()
                if self.state.updates in self._milestones:
                    self._checkpoints.keep(self.state, self._metadata(self._mean_return()))
            self._record_last()
            # Whoever compares the frames with those to come learns that no more will.
            self._metrics.target_frames.set(min(self.frames, self._experiment.frames))
            return True
        finally:
            if self.state.updates % learner.checkpoint_every != 0 and not learner.deterministic:
                self._save()

    def _done(self) -> bool:
        """A deterministic run ends at a checkpoint, because only from there it can go on as if it had not ended."""
        learner = self._experiment.learner
        late = learner.deterministic and self.state.updates % learner.checkpoint_every != 0
        return (self.frames >= self._experiment.frames or self._learned()) and not late

    def _learned(self) -> bool:
        """Whether the last line of metrics.csv has the success rate `until` over 100 episodes.

        The file decides, and not the episodes since: a run that ended so ends at once when it is started again.
        """
        until = self._experiment.until
        return until is not None and when_reached(columns([self._metrics_logger.last]), until) is not None

    def _step(self) -> bool:
        """One update; False if there are no more trajectories."""
        learner = self._experiment.learner
        with self._metrics.time.spent("waiting"):
            trajectories = self._queue.take(learner.batch_size, hold=True)
        if trajectories is None:
            return False
        newest = self._checkpoints.version(self.state.updates)
        self._lag = newest - sum(each.parameters_version for each in trajectories) / len(trajectories)
        with self._metrics.time.spent("updating"), _traced(trajectories):
            batch = make_batch(trajectories, self._device, max_steps=self._max_steps)
            progress = min(self.frames / self._experiment.frames, 1.0)
            self._followers.update(batch, progress)
            after, stats = update(
                self._networks,
                self.state,
                batch,
                self._method,
                self._experiment.training,
                progress=progress,
                # An actor on the same machine plays on with the policy's new parameters, while the intrinsic module learns; or,
                # if it need not wait for them, when an update needs but one processor.
                when_hashed=_nothing if learner.synchronous else self._queue.free,
                on_policy=self._publish_early if self._early else _nothing,
            )
            kept = self._keep(after, stats)
            self._followers.decide(kept=kept)
        early = self._early and kept
        with self._metrics.time.spent("publishing"):
            if self.state.updates % learner.publish_every == 0 and not early:
                self.publish()
            if learner.synchronous and not early:
                self._queue.free()
        self._metrics.updates.inc()
        self._metrics.frames.inc(self._frames_of_update)
        self._metrics.run_frames.set(self.frames)
        if kept:
            for name, value in stats.items():
                self._metrics.statistic(name, value)
        self._metrics.counts([each.count for each in trajectories if each.count is not None])
        self._stats = stats if kept else {}
        if self.state.updates == 1 or self.state.updates % learner.log_every == 0:
            self._record()
        return True

    def _keep(self, after: TrainingState, stats: dict[str, float]) -> bool:
        """Makes the state after an update the present one; or leaves the update out, if what it was made from has ruined it.

        One that is left out counts as an update: turns, versions and frames go on as planned.
        """
        training = self._experiment.training
        reason = objection(self.state, after, stats, (training.policy_betas[1], training.intrinsic_betas[1]))
        if not reason:
            self.state, self._left_out = after, 0
            return True
        self._left_out += 1
        self._metrics.updates_left_out.inc()
        log.error("an update was left out", updates=self.state.updates, reason=reason, in_a_row=self._left_out)
        if self._left_out == MOST_LEFT_OUT:
            raise DivergedError(
                f"the last {MOST_LEFT_OUT} updates were all left out ({reason}); the state before them is kept. Look for an "
                "actor that sends absurd trajectories; if there is none, training has diverged: begin anew with smaller "
                "learning rates or rewards"
            )
        self.state = self.state._replace(updates=self.state.updates + 1)
        return False

    def _record_last(self) -> None:
        """A line of where training ends, so that also a short run has one; but not after the line that ended it (`until`)."""
        if self._recorded[0] != self.state.updates and not self._learned():
            self._record()

    def _record(self) -> None:
        updates, since = self._recorded
        now = time.monotonic()
        frames = (self.state.updates - updates) * self._frames_of_update
        self._recorded = (self.state.updates, now)
        line: dict[str, float] = {
            "frames": self.frames,
            "updates": self.state.updates,
            "seconds": self._metrics_logger.seconds,
            "frames_per_second": frames / (now - since),
            "episodes": self._episodes.total,
            **self._episodes.means(),
            **self._stats,
            "policy_lag": self._lag,
            "queue": self._queue.waiting,
            **{f"{activity}_share": share for activity, share in self._metrics.time.take_shares().items()},
        }
        self._metrics_logger.write(line)

    def _save(self) -> None:
        mean = self._mean_return()
        best = self._episodes.full and self._best.beaten(mean, self._episodes.total)
        begin = time.monotonic()
        self._checkpoints.save(self.state, self._metadata(mean), best=best)
        self._metrics.checkpoint_time.set_to_current_time()
        log.info("saved", updates=self.state.updates, seconds=round(time.monotonic() - begin, 3), best=best)

    def _mean_return(self) -> float:
        return self._episodes.means().get("return", NONE)

    def _metadata(self, mean: float) -> dict[str, MetadataValue]:
        """What a checkpoint says beside its state; `mean` is the return of the last episodes."""
        metadata: dict[str, MetadataValue] = {
            "frames": self.frames,
            "seconds": self._metrics_logger.seconds,
            "episodes": self._episodes.total,
            "method": self._method.name,
            "ranks": world_size(),
            # None above it is published before there is another checkpoint.
            "last_version": self._checkpoints.version(self.state.updates + self._experiment.learner.checkpoint_every),
        }
        returns = {"return": mean, "best_return": self._best.record, "confirmed_return": self._best.confirmed}
        return metadata | {name: x for name, x in returns.items() if x > NONE}


def _nothing(*_: object) -> None:
    """There is no room yet, and nothing new."""


def _traced(trajectories: Sequence[Trajectory]) -> AbstractContextManager[object]:
    """An update, as a part of the trace of the first traced trajectory in it, linked with the others."""
    first, *others = dict.fromkeys(each.traceparent for each in trajectories if each.traceparent) or [""]
    return tracing.span("train", parent=first, links=others, kind="consumer", trajectories=len(trajectories))
