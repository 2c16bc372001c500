"""The settings of the hash-count service, from flags and the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from services import flags
from services.hashcount.topology import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.rpc.tls import ServerTls
    from leco.telemetry import LogFormat

DESCRIPTION = """\
Counts how often each code was seen in its episode, exactly once however often a call is repeated.

Visit tables are kept in this process (--store memory: one replica only) or in Redis or Valkey, where any number of
replicas share them:
  --store redis://localhost:6379/0
  --store rediss://localhost:6380/0?ssl_ca_certs=/etc/redis/ca.pem
  --store redis+cluster://node1:6379,node2:6379,node3:6379
A password does not belong on a command line: put the whole address into LECO_HASHCOUNT_STORE, or only the password
into LECO_HASHCOUNT_STORE_PASSWORD or a file (--store-password-file)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the service runs with. Times are in seconds."""

    listen: str
    metrics_port: int | None
    tls: ServerTls | None
    drain_seconds: float
    log_level: str
    log_format: LogFormat
    store: str
    store_password: str | None
    store_connections: int
    ttl: float
    retry_window: float
    max_memory: int

    @property
    def store_for_people(self) -> str:
        """The store's address without its password and its files."""
        parts = urlsplit(self.store)
        return (
            self.store if self.store == "memory" else f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        )


def read_settings(arguments: Sequence[str]) -> Settings:
    """Reads the command line and the environment; on a mistake says what to change and exits with code 2."""
    parser = flags.ServiceParser("hashcount", DESCRIPTION)
    parser.common_settings(listen="127.0.0.1:50061", metrics_port="9461")
    parser.setting("--store", default="memory", metavar="ADDRESS", help="memory, or the address of Redis, as above")
    parser.setting(
        "--store-password-file",
        default=None,
        kind=flags.existing_file,
        metavar="FILE",
        help="file with the password for Redis",
    )
    parser.setting(
        "--store-connections", default="16", kind=_connections, metavar="N", help="connections to each Redis server"
    )
    parser.setting(
        "--ttl",
        default="2h",
        kind=flags.duration,
        metavar="TIME",
        help="an episode without a batch for this long is given up and its table freed: 90, 90s, 15m, 2h",
    )
    parser.setting(
        "--retry-window",
        default="2m",
        kind=flags.duration,
        metavar="TIME",
        help="how long the answer to an episode's final batch is kept for retries",
    )
    parser.setting(
        "--max-memory",
        default=None,
        kind=flags.size,
        metavar="SIZE",
        help="what --store memory may hold before it refuses batches: 512MiB, 2GiB (default: 1GiB)",
    )
    parsed = parser.parse_args(arguments)
    on_command_line = any(each.startswith("--store") and not each.startswith("--store-") for each in arguments)
    scheme = "memory" if parsed.store == "memory" else urlsplit(parsed.store).scheme
    if scheme != "memory" and scheme not in SCHEMES:
        parser.error(f"--store must be memory or an address that begins with {', '.join(s + '://' for s in SCHEMES)}")
    if on_command_line and ":" in urlsplit(parsed.store).netloc.rpartition("@")[0]:
        parser.error(
            "--store has a password on the command line, where every process can read it: put the address into the "
            "environment variable LECO_HASHCOUNT_STORE, or the password into --store-password-file"
        )
    if scheme != "memory" and parsed.max_memory is not None:
        parser.error(
            "--max-memory is for --store memory; for Redis set its own `maxmemory`, with `maxmemory-policy noeviction`"
        )
    password = os.environ.get("LECO_HASHCOUNT_STORE_PASSWORD") or None
    if parsed.store_password_file is not None:
        password = parsed.store_password_file.read_text().strip()
    return Settings(
        listen=parsed.listen,
        metrics_port=parsed.metrics_port,
        tls=parser.tls(parsed),
        drain_seconds=parsed.drain_seconds,
        log_level=parsed.log_level,
        log_format=parsed.log_format,
        store=parsed.store,
        store_password=password,
        store_connections=parsed.store_connections,
        ttl=parsed.ttl,
        retry_window=parsed.retry_window,
        max_memory=parsed.max_memory if parsed.max_memory is not None else 1 << 30,
    )


def _connections(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise ValueError(f"must be a whole number from 1 to 1024, and not {text!r}")
    return int(text)
