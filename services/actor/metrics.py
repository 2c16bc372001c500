"""What an actor measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

from leco.telemetry.timing import TimeByActivity

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class ActorMetrics:
    """The actor's metrics.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.frames = Counter("leco_actor_frames_total", "Actions taken in the environments.", registry=registry)
        self.episodes = Counter("leco_actor_episodes_total", "Episodes that ended.", registry=registry)
        self.successes = Counter(
            "leco_actor_successes_total", "Episodes that the task calls solved.", registry=registry
        )
        self.dropped = Counter(
            "leco_actor_dropped_episodes_total",
            "Episodes that were lost because the simulator's engine failed. They do not count as episodes that ended.",
            registry=registry,
        )
        self.uncounted = Counter(
            "leco_actor_uncounted_trajectories_total",
            "Trajectories without counts because counting failed; the learner drops them.",
            registry=registry,
        )
        self.time = TimeByActivity(
            "leco_actor_time_seconds_total",
            "Time by what it was spent on: acting; waiting for the thread that sends; fetching parameters; in the thread that "
            "sends, counting (with hashing) and pushing (waiting for credits).",
            ("acting", "waiting", "fetching", "counting", "pushing"),
            registry,
        )
        self.version = Gauge(
            "leco_actor_parameters_version", "The version of the parameters that act.", registry=registry
        )
        self.environments = Gauge("leco_actor_environments", "Environments stepped side by side.", registry=registry)
