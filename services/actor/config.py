"""The settings of an actor, from flags and the environment."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leco.rpc.tensors import COMPRESSIONS
from services import flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.rpc.tensors import Compression
    from leco.rpc.tls import ChannelTls
    from leco.telemetry.logging import LogFormat

DESCRIPTION = """\
Plays: joins a learner's run, steps environments with its policy, has what it sees counted, and sends trajectories.

An actor is told two addresses. The task, the method and everything else come from the learner. It can be ended at any time; on
SIGTERM it first sends what it has played."""


@dataclass(frozen=True, slots=True)
class ActorSettings:
    """What an actor runs with. Times are in seconds."""

    learner: str
    hashcount: str | None
    tls: ChannelTls | None
    name: str
    index: int
    compression: Compression
    metrics_host: str
    metrics_port: int | None
    drain_seconds: float
    threads: int
    log_level: str
    log_format: LogFormat


def read_settings(arguments: Sequence[str]) -> ActorSettings:
    """Reads the command line and the environment; on a mistake says what to change and exits with code 2."""
    parser = flags.ServiceParser("actor", DESCRIPTION)
    parser.setting(
        "--learner", default="127.0.0.1:50051", kind=flags.address, metavar="ADDRESS", help="address of the learner"
    )
    parser.setting(
        "--hashcount",
        default="127.0.0.1:50061",
        kind=flags.address,
        metavar="ADDRESS",
        help="address of the hash-count service; dns:///name:port for all replicas behind a name",
    )
    parser.channel_tls_settings()
    parser.setting("--name", default=socket.gethostname(), kind=str, metavar="NAME", help="for logs and people")
    parser.setting(
        "--index",
        default=None,
        kind=flags.whole_number(0, 2**32 - 1),
        metavar="N",
        help="which of the run's actors this is: with the run's seed it decides what is played (default: random)",
    )
    parser.setting(
        "--threads",
        default="1",
        kind=flags.whole_number(1, 1024),
        metavar="N",
        help="processor threads of the policy's network",
    )
    parser.setting(
        "--compression",
        default="none",
        kind=flags.one_of(*COMPRESSIONS),
        metavar="NAME",
        help=f"of the trajectories on the wire: {' or '.join(COMPRESSIONS)}; for pixels over a slow network",
    )
    parser.setting("--metrics-host", default="127.0.0.1", kind=str, metavar="HOST", help="where metrics are served")
    parser.setting(
        "--metrics-port",
        default="9471",
        kind=flags.port_or_off,
        metavar="PORT",
        help="the port; 0 takes a free one, 'off' serves none",
    )
    parser.process_settings()
    parsed = parser.parse_args(arguments)
    return ActorSettings(
        learner=parsed.learner,
        hashcount=parsed.hashcount,
        tls=parser.channel_tls(parsed),
        name=parsed.name,
        index=secrets.randbits(32) if parsed.index is None else parsed.index,
        compression=parsed.compression,
        metrics_host=parsed.metrics_host,
        metrics_port=parsed.metrics_port,
        drain_seconds=parsed.drain_seconds,
        threads=parsed.threads,
        log_level=parsed.log_level,
        log_format=parsed.log_format,
    )
