"""The learner: `leco learner`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

import structlog
import torch
import torch.distributed as dist

from leco.algo.ranks import rank, world_size
from leco.checkpoint.folder_lock import locked
from leco.checkpoint.state_file import SavedStateError
from leco.config.experiment import ConfigError, method_of, task_of
from leco.config.toml import flat, show
from leco.learning.state import init
from leco.models.build import build
from leco.rpc.interceptor import RpcInterceptor, RpcMetrics
from leco.rpc.learner_client import SERVICE
from leco.rpc.server import RpcServer, allow_files, wait_for_signal
from leco.telemetry.logging import configure_logging, new_registry, serve_metrics
from leco.telemetry.malloc import keep_freed_memory
from leco.telemetry.provenance import clock_zero
from leco.telemetry.tracing import start_tracing
from leco.v1 import learner_pb2_grpc
from services import flags
from services.learner.best_return import NONE, BestReturn
from services.learner.checkpoints import Checkpoints
from services.learner.config import LearnerSettings, read_settings
from services.learner.device import find_device, joins_others
from services.learner.followers import Followers, check_shares, follow, join, on_device
from services.learner.metrics import LearnerMetrics
from services.learner.metrics_logger import EpisodeStats, MetricsLogger
from services.learner.run_folder import open_run, read_run, run_name
from services.learner.servicer import LearnerServicer
from services.learner.specification import make_specification
from services.learner.trainer import Trainer
from services.learner.trajectory_queue import TrajectoryQueue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leco.checkpoint.state_file import MetadataValue
    from leco.config.experiment import Experiment
    from leco.envs.task import Task

log = structlog.get_logger("leco.learner")

MAX_UNARY_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the settings and trains until done, SIGTERM or Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    settings = read_settings(arguments)
    configure_logging(level=settings.log_level, log_format=settings.log_format)
    keep_freed_memory()
    torch.set_num_threads(settings.threads)
    # Before any thread begins, for each inherits it. While the task has not rewarded yet, the modulator's gradients and their
    # squares are too small for ordinary floats, and arithmetic with such numbers made updates up to five times as long.
    torch.set_flush_denormal(True)
    try:
        if settings.ranks > 1 and not joins_others():
            from services.learner.launch import launch  # noqa: PLC0415  # torchrun is slow to import

            check_shares(read_run(settings.run_dir, settings.config), settings.ranks)
            sys.exit(launch(settings.ranks, arguments))
        device = torch.device(find_device(settings.device))
        if joins_others():
            join(device)
        if rank() > 0:
            follow(device)
        else:
            asyncio.run(serve(settings, device, Followers()))
        if joins_others():
            dist.destroy_process_group()
    except (ConfigError, SavedStateError) as error:  # which no other start heals
        sys.stderr.write(f"leco learner: {error}\n")
        sys.exit(flags.FINAL)
    except (OSError, ValueError) as error:  # an address or a file that cannot be used
        sys.exit(f"leco learner: {error}")


async def serve(settings: LearnerSettings, device: torch.device, followers: Followers) -> None:
    """Runs the service until training is done or a signal comes, then drains it."""
    registry = new_registry()
    rpc_metrics = RpcMetrics(registry, "learner")
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(start_tracing("learner"))
        parts = build_learner(settings, device, followers, LearnerMetrics(registry), stack)
        metrics_port = None
        if settings.metrics_port is not None:
            host = settings.listen.rpartition(":")[0].strip("[]")
            metrics_port, stop_metrics = serve_metrics(registry, host=host, port=settings.metrics_port)
            stack.callback(stop_metrics)
        allow_files(settings.max_connections)
        max_calls = -(-4 * settings.max_connections // 3)  # three quarters may be streams: one for each connection
        interceptor = RpcInterceptor(rpc_metrics, max_seconds=MAX_UNARY_SECONDS, max_calls=max_calls)
        server = RpcServer(SERVICE, interceptor=interceptor, tls=settings.tls, max_connections=settings.max_connections)
        learner_pb2_grpc.add_LearnerServiceServicer_to_server(parts.servicer, server.grpc)
        stopped = asyncio.ensure_future(wait_for_signal())
        address = await server.start(settings.listen)
        parts.trainer.publish()
        server.set_serving(serving=True)
        training = asyncio.ensure_future(_in_thread(parts.trainer))
        log.info(
            "serving",
            address=address,
            metrics_port=metrics_port,
            run=str(settings.run_dir),
            device=str(device),
            ranks=world_size(),
            pid=os.getpid(),
            frames=parts.trainer.frames,
        )
        await asyncio.wait((stopped, training), return_when=asyncio.FIRST_COMPLETED)
        if settings.when_done == "wait" and not stopped.done() and training.exception() is None:
            log.info(f"{parts.trainer.ending}; waiting for SIGTERM", frames=parts.trainer.frames)
            await stopped
        why = stopped.result() if stopped.done() else parts.trainer.ending
        log.info("draining", reason=why, seconds=settings.drain_seconds)
        parts.servicer.drain()
        parts.queue.close()
        try:
            await training  # the update in progress, and a checkpoint
            followers.end()
        finally:
            await server.drain(settings.drain_seconds)
            stopped.cancel()
    log.info("stopped", frames=parts.trainer.frames)


class LearnerComponents(NamedTuple):
    """What the service is made of."""

    queue: TrajectoryQueue
    servicer: LearnerServicer
    trainer: Trainer


def build_learner(
    settings: LearnerSettings,
    device: torch.device,
    followers: Followers,
    metrics: LearnerMetrics,
    stack: contextlib.AsyncExitStack,
) -> LearnerComponents:
    """Reads the run's folder and makes the parts."""
    stack.enter_context(locked(settings.run_dir))
    experiment = open_run(settings.run_dir, settings.config)
    check_shares(experiment, world_size())
    torch.manual_seed(experiment.seed)
    task, method = task_of(experiment), method_of(experiment)
    networks = build(method, task.layout, task.num_actions, experiment.hash, experiment.network)
    networks = on_device(networks, device)
    checkpoints = Checkpoints(settings.run_dir / "checkpoints", experiment.learner.keep_checkpoints)
    found = checkpoints.newest(init(networks))
    state, metadata = found if found is not None else (init(networks), {})
    if (before := int(metadata.get("ranks", 1))) != world_size() and found is not None:
        log.warning(
            "the run goes on with another number of ranks: it learns the same, but not bit for bit",
            ranks=world_size(),
            before=before,
        )
    followers.begin(experiment, state)
    told = {key: show(value) if isinstance(value, list | dict) else value for key, value in flat(experiment).items()}
    metrics_logger = MetricsLogger(
        settings.run_dir, state.updates, before=metadata, clock_zero=clock_zero(), settings=told
    )
    episodes = EpisodeStats(metrics_logger.episodes, solvable=task.solvable)
    stack.callback(metrics_logger.close)
    queue = TrajectoryQueue(
        capacity=experiment.learner.queue_capacity,
        window=min(experiment.actors.num_envs, experiment.learner.queue_capacity),
        max_policy_lag=_max_lag(experiment),
        needs_counts=method.counts,
        metrics=metrics,
        on_episodes=episodes.add,
    )
    metrics.run(run_name(settings.run_dir), experiment.task, experiment.method)
    specification = make_specification(experiment, networks, run_name(settings.run_dir), task)
    servicer = LearnerServicer(specification, queue, metrics, software_version=version("leco"))
    trainer = Trainer(
        experiment,
        networks,
        state,
        queue=queue,
        publish=servicer.publish,
        checkpoints=checkpoints,
        metrics_logger=metrics_logger,
        episodes=episodes,
        metrics=metrics,
        device=device,
        followers=followers,
        best=_best(checkpoints, metadata, task),
    )
    return LearnerComponents(queue, servicer, trainer)


def _best(checkpoints: Checkpoints, metadata: Mapping[str, MetadataValue], task: Task) -> BestReturn:
    """The record of a run; it begins anew if its file was removed, or if it is none that the task can have."""
    record = float(metadata.get("best_return", NONE))
    if not checkpoints.best.exists() or record > task.reward_limit:
        return BestReturn()
    return BestReturn(record, float(metadata.get("confirmed_return", NONE)) if "last_version" in metadata else None)


def _max_lag(experiment: Experiment) -> int:
    """In a deterministic run a turn's updates and no more: what an actor played for a learner that was killed is dropped."""
    learner = experiment.learner
    return experiment.actors.num_envs // learner.batch_size - 1 if learner.deterministic else learner.max_policy_lag


async def _in_thread(trainer: Trainer) -> bool:
    """Runs the trainer in a thread that ends with the process, unlike an executor's."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bool] = loop.create_future()

    def run() -> None:
        try:
            result = trainer.run()
        except BaseException as error:  # noqa: BLE001  # it is raised again where it is awaited
            loop.call_soon_threadsafe(done.set_exception, error)
        else:
            loop.call_soon_threadsafe(done.set_result, result)

    threading.Thread(target=run, name="leco-trainer", daemon=True).start()
    return await done


if __name__ == "__main__":
    main()
