"""The actor: `leco actor`."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from importlib import metadata
from typing import TYPE_CHECKING

import structlog
import torch

from leco.rpc import hashcount_client, learner_client
from leco.rpc.channel import open_channel
from leco.telemetry.logging import configure_logging, new_registry, serve_metrics
from leco.telemetry.malloc import keep_freed_memory
from leco.telemetry.tracing import start_tracing
from services import flags
from services.actor.config import ActorSettings, read_settings
from services.actor.loop import Actor
from services.actor.metrics import ActorMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import grpc

log = structlog.get_logger("leco.actor")

JOIN_PATIENCE_SECONDS = 3600.0
MAX_UNACKNOWLEDGED = 16  # trajectories; what waits grows old


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the settings and plays until SIGTERM or Ctrl-C."""
    settings = read_settings(sys.argv[1:] if arguments is None else arguments)
    configure_logging(level=settings.log_level, log_format=settings.log_format)
    keep_freed_memory()
    torch.set_num_threads(settings.threads)
    stopped = threading.Event()

    def stop(number: int, _frame: object) -> None:
        log.info("draining", signal=signal.Signals(number).name, seconds=settings.drain_seconds)
        stopped.set()
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)  # a second one ends the process at once

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    try:
        act(settings, stopped)
    except ValueError as error:  # what no other start heals, such as a simulator that is not installed
        if not _raised_here(error):
            traceback.print_exception(error)
        sys.stderr.write(f"leco actor: {error}\n")
        sys.exit(flags.FINAL)
    except (OSError, learner_client.LearnerError) as error:
        sys.exit(f"leco actor: {error}")


def _raised_here(error: ValueError) -> bool:
    """Whether it is a sentence of ours, and not what somebody's environment has raised, who looks for the place."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).partition(".")[0] in ("leco", "services")


def act(settings: ActorSettings, stopped: threading.Event) -> None:
    """Plays in one run after another, as the learner has them, until `stopped`."""
    registry = new_registry()
    metrics = ActorMetrics(registry)
    with contextlib.ExitStack() as stack:
        stack.callback(start_tracing("actor"))
        if settings.metrics_port is not None:
            port, stop_metrics = serve_metrics(registry, host=settings.metrics_host, port=settings.metrics_port)
            stack.callback(stop_metrics)
            log.info("serving metrics", port=port)
        learner = open_channel(settings.learner, service=learner_client.SERVICE, tls=settings.tls)
        stack.callback(learner.close)
        hashcount = None
        if settings.hashcount is not None:
            hashcount = open_channel(settings.hashcount, service=hashcount_client.SERVICE, tls=settings.tls)
            stack.callback(hashcount.close)
        while not stopped.is_set():
            try:
                play_run(settings, metrics, learner, hashcount, stopped)
            except learner_client.RunChanged as change:
                log.warning("the learner has another run; joining it", reason=str(change))
            except learner_client.Closed:  # stopped while it waited for the learner
                break
    log.info("stopped", frames=int(registry.get_sample_value("leco_actor_frames_total") or 0))


def play_run(
    settings: ActorSettings,
    metrics: ActorMetrics,
    learner: grpc.Channel,
    hashcount: grpc.Channel | None,
    stopped: threading.Event,
) -> None:
    """Joins and plays until `stopped`, then sends what was played, as long as that takes no longer than the drain may."""
    with learner_client.LearnerClient(
        learner,
        actor_name=settings.name,
        software_version=metadata.version("leco"),
        max_unacknowledged=MAX_UNACKNOWLEDGED,
        compression=settings.compression,
    ) as client:
        late = [client.close]  # ends whatever waits
        watch = threading.Thread(target=_end_late, args=(late, stopped, settings.drain_seconds), daemon=True)
        watch.start()
        specification, version = client.join(give_up_after=JOIN_PATIENCE_SECONDS)
        log.info("joined", run=specification.run, task=specification.task, method=specification.method, version=version)
        actor = Actor(client, specification, hashcount, index=settings.index, metrics=metrics)
        late.append(actor.give_up)
        actor.run(stopped)
        if left := client.drain(settings.drain_seconds):
            log.warning("ended before the learner had taken everything", trajectories=left)


def _end_late(late: Sequence[Callable[[], None]], stopped: threading.Event, drain_seconds: float) -> None:
    """Calls these when the time for draining is over, so that nothing waits for a learner or a hashcount that is away."""
    stopped.wait()
    threading.Event().wait(drain_seconds)
    for each in late:
        each()


if __name__ == "__main__":
    main()
