"""What the learner counts about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from prometheus_client import Counter, Gauge, Histogram

from leco.telemetry.timing import TimeByActivity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from prometheus_client import CollectorRegistry

    from leco.types import EpisodeSummary

DropReason = Literal["lag", "uncounted", "duplicate"]

LAG_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
LENGTH_BUCKETS = tuple(2**power for power in range(3, 15))


class LearnerMetrics:
    """The metrics beside those of the calls themselves (`leco.rpc.interceptor.RpcMetrics`)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._receiving(registry)
        self._training(registry)
        self._playing(registry)

    def _receiving(self, registry: CollectorRegistry) -> None:
        """Set by the queue and the servicer."""
        self._taken = Counter(
            "leco_learner_trajectories_taken", "Trajectories handed to the trainer.", registry=registry
        )
        self._dropped = Counter(
            "leco_learner_trajectories_dropped",
            "Trajectories acknowledged but not trained on: their policy was too old (lag), counting failed (uncounted), or they "
            "came before (duplicate: a repeat after a lost connection).",
            ["reason"],
            registry=registry,
        )
        for reason in ("lag", "uncounted", "duplicate"):  # so that a rate over what never occurred is zero, not absent
            self._dropped.labels(reason)
        self.refused = Counter(
            "leco_learner_trajectories_refused",
            "Trajectories, or messages in their place, that broke the contract; each ended its stream.",
            registry=registry,
        )
        self.received_bytes = Counter(
            "leco_learner_received_bytes", "Size of all messages with a trajectory.", registry=registry
        )
        self._queue = Gauge("leco_learner_queue_trajectories", "Trajectories that wait to be taken.", registry=registry)
        self.queue_capacity = Gauge(
            "leco_learner_queue_capacity_trajectories",
            "The most that waiting trajectories and outstanding credits may be together.",
            registry=registry,
        )
        self._streams = Gauge("leco_learner_open_streams", "Actors with an open Push stream.", registry=registry)
        self._credits = Gauge(
            "leco_learner_outstanding_credits",
            "Trajectories that actors may send, or have under way, beside those that wait.",
            registry=registry,
        )
        self._policy_lag = Histogram(
            "leco_learner_policy_lag_versions",
            "How many versions the policy that acted was behind the newest one, of trajectories handed to the trainer.",
            registry=registry,
            buckets=LAG_BUCKETS,
        )

    def _training(self, registry: CollectorRegistry) -> None:
        """Set by the trainer; the version by the servicer, when it publishes."""
        self.parameters_version = Gauge(
            "leco_learner_parameters_version", "The newest published version; 0 before the first.", registry=registry
        )
        self.frames = Counter("leco_learner_frames", "Actions trained on.", registry=registry)
        self.updates = Counter("leco_learner_updates", "Training steps.", registry=registry)
        self.updates_left_out = Counter(
            "leco_learner_updates_left_out",
            "Training steps whose result was not kept: a loss or the state was not finite, or gradients were absurd beside those "
            "before them.",
            registry=registry,
        )
        self.time = TimeByActivity(
            "leco_learner_time_seconds_total",
            "What the trainer spent its time on: waiting for trajectories, updating, publishing parameters.",
            ("waiting", "updating", "publishing"),
            registry,
        )
        self.run_frames = Gauge(
            "leco_learner_run_frames", "Actions trained on over all starts of the run.", registry=registry
        )
        self.target_frames = Gauge(
            "leco_learner_run_target_frames", "Actions after which training is done.", registry=registry
        )
        self.checkpoint_time = Gauge(
            "leco_learner_checkpoint_timestamp_seconds",
            "When the state was last saved, or before the first time when training began, in seconds since 1970.",
            registry=registry,
        )
        self._run = Gauge(
            "leco_learner_run_info",
            "Always 1; its labels say what is trained. To show them with another metric, multiply by it: "
            "* on (instance) group_left (run, task, method) leco_learner_run_info.",
            ["run", "task", "method"],
            registry=registry,
        )
        self._statistics = Gauge(
            "leco_learner_training_statistic",
            "A statistic of the last training step, in its own unit. Names are those of "
            "metrics.csv; mean_count and largest_count say how often what was seen had been seen in its episode.",
            ["name"],
            registry=registry,
        )

    def _playing(self, registry: CollectorRegistry) -> None:
        """Set by the queue from what actors report about episodes that ended."""
        self._episodes = Counter("leco_learner_episodes", "Episodes that ended.", registry=registry)
        self._solved = Counter(
            "leco_learner_solved_episodes", "Episodes that ended and that the task calls solved.", registry=registry
        )
        # A sum that also falls would look like a restart to Prometheus' rate(), so it is kept in two that only grow.
        self._returns = Counter(
            "leco_learner_episode_returns",
            "Absolute undiscounted returns of episodes, summed by their sign. The mean: the rate of positive minus that of "
            "negative, over the rate of leco_learner_episodes_total.",
            ["sign"],
            registry=registry,
        )
        for sign in ("positive", "negative"):
            self._returns.labels(sign)
        self._lengths = Histogram(
            "leco_learner_episode_length_actions",
            "Actions in an episode, before any action repeat.",
            registry=registry,
            buckets=LENGTH_BUCKETS,
        )

    def run(self, name: str, task: str, method: str) -> None:
        """Notes what is trained."""
        self._run.labels(name, task, method).set(1)

    def places(self, *, queued: int, outstanding: int, streams: int) -> None:
        """Notes who has the places of the queue."""
        self._queue.set(queued)
        self._credits.set(outstanding)
        self._streams.set(streams)

    def taken(self, lags: Sequence[int]) -> None:
        """Notes trajectories handed to the trainer, by how many versions their policy was behind."""
        self._taken.inc(len(lags))
        for lag in lags:
            self._policy_lag.observe(lag)

    def dropped(self, reason: DropReason, number: int = 1) -> None:
        """Notes trajectories that were acknowledged but will not be trained on."""
        self._dropped.labels(reason).inc(number)

    def statistic(self, name: str, value: float) -> None:
        """Notes a statistic of the last training step."""
        self._statistics.labels(name).set(value)

    def counts(self, counts: Sequence[npt.NDArray[np.uint32]]) -> None:
        """Notes the counts of a training step, if its method counts."""
        if counts:
            self.statistic("mean_count", float(np.mean(counts)))
            self.statistic("largest_count", float(np.max(counts)))

    def episodes(self, episodes: Sequence[EpisodeSummary]) -> None:
        """Notes episodes that ended."""
        for episode in episodes:
            self._episodes.inc()
            self._solved.inc(episode.success)
            self._returns.labels("negative" if episode.episode_return < 0 else "positive").inc(
                abs(episode.episode_return)
            )
            self._lengths.observe(episode.length)
