"""The settings of the learner, from flags and the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leco.rpc.server import MAX_CONNECTIONS
from services import flags
from services.learner.device import device_name, local_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.rpc.tls import ServerTls
    from leco.telemetry.logging import LogFormat

WhenDone = Literal["exit", "wait"]

DESCRIPTION = """\
Trains: takes trajectories from actors, publishes parameters, saves checkpoints.

Everything about the experiment is in a TOML file (--config); the run's folder (--run-dir) keeps it, with the curves (metrics.csv,
TensorBoard) and the checkpoints. If the folder has a checkpoint, training goes on from it."""


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """What the service runs with. Times are in seconds."""

    listen: str
    metrics_port: int | None
    tls: ServerTls | None
    drain_seconds: float
    log_level: str
    log_format: LogFormat
    config: Path | None
    run_dir: Path
    device: str
    threads: int
    when_done: WhenDone = "exit"
    ranks: int = 1
    max_connections: int = MAX_CONNECTIONS


def read_settings(arguments: Sequence[str]) -> LearnerSettings:
    """Reads the command line and the environment; on a mistake says what to change and exits with code 2."""
    parser = flags.ServiceParser("learner", DESCRIPTION)
    parser.common_settings(listen="127.0.0.1:50051", metrics_port="9451")
    parser.setting(
        "--config",
        default=None,
        kind=flags.existing_file,
        metavar="FILE",
        help="the experiment (default: config.toml in the run's folder)",
    )
    parser.setting(
        "--run-dir", default=None, kind=Path, metavar="FOLDER", help="the run's folder; made if it is not there"
    )
    parser.setting(
        "--device",
        default="cpu",
        kind=device_name,
        metavar="DEVICE",
        help="where updates are computed: cpu, cuda, cuda:N, or auto, a GPU if there is one",
    )
    parser.setting(
        "--threads",
        default=str(max((os.cpu_count() or 1) // local_ranks(), 1)),
        kind=flags.whole_number(1, 1024),
        metavar="N",
        help="processor threads of an update, in each rank",
    )
    parser.setting(
        "--ranks",
        default="1",
        kind=flags.whole_number(1, 1024),
        metavar="N",
        help="processes that make an update together, by torchrun, with --device cuda each on a GPU of its own",
    )
    parser.setting(
        "--when-done",
        default="exit",
        kind=flags.one_of("exit", "wait"),
        metavar="WHAT",
        help="after all frames: exit, or wait for SIGTERM, for who would start it again (Kubernetes)",
    )
    parser.setting(
        "--max-connections",
        default=str(MAX_CONNECTIONS),
        kind=flags.whole_number(8, 65536),
        metavar="N",
        help="connections at once, one for each actor; two thirds of them may come from one address",
    )
    parsed = parser.parse_args(arguments)
    if parsed.run_dir is None:
        parser.error("--run-dir is missing: name the folder that keeps the run, for example --run-dir runs/first")
    return LearnerSettings(
        listen=parsed.listen,
        metrics_port=parsed.metrics_port,
        tls=parser.tls(parsed),
        drain_seconds=parsed.drain_seconds,
        log_level=parsed.log_level,
        log_format=parsed.log_format,
        config=parsed.config,
        run_dir=parsed.run_dir,
        device=parsed.device,
        threads=parsed.threads,
        when_done=parsed.when_done,
        ranks=parsed.ranks,
        max_connections=parsed.max_connections,
    )
