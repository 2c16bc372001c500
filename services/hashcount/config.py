"""The settings of the hash-count service, from flags and the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services import flags
from services.hashcount.address import StoreAddress, parse_address
from services.hashcount.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.rpc.tls import ServerTls
    from leco.telemetry.logging import LogFormat

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
class HashCountSettings:
    """What the service runs with. Times are in seconds."""

    listen: str
    metrics_port: int | None
    tls: ServerTls | None
    drain_seconds: float
    log_level: str
    log_format: LogFormat
    store: StoreAddress | None  # None: memory
    store_password: str | None
    store_connections: int
    ttl: float
    retry_window: float
    max_memory: int

    @property
    def store_is_open(self) -> bool:
        """Whether the store is a Redis that is used without a password."""
        return self.store is not None and not (self.store_password or self.store.password)

    @property
    def store_for_people(self) -> str:
        """The store's address without its password and its files."""
        if self.store is None:
            return "memory"
        scheme = ("rediss" if self.store.tls else "redis") + ("+cluster" if self.store.cluster else "")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.store.hosts)
        return f"{scheme}://{hosts}" + ("" if self.store.cluster else f"/{self.store.database}")


def read_settings(arguments: Sequence[str]) -> HashCountSettings:
    """Reads the command line and the environment; on a mistake says what to change and exits with code 2."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    store: StoreAddress | None = parsed.store
    on_command_line = any(each.partition("=")[0] == "--store" for each in arguments)
    if on_command_line and store is not None and store.password is not None:
        parser.error(
            "--store has a password on the command line, where every process can read it: put the address into the "
            "environment variable LECO_HASHCOUNT_STORE, or the password into --store-password-file"
        )
    max_memory = parsed.max_memory
    if store is not None and max_memory is not None:
        parser.error(
            "--max-memory is for --store memory; for Redis set its own maxmemory, with maxmemory-policy noeviction"
        )
    if max_memory is not None and max_memory < MemoryStore.LEAST_BYTES:
        parser.error(
            f"--max-memory must be at least {-(-MemoryStore.LEAST_BYTES >> 20)}MiB, and not {max_memory} bytes"
        )
    return HashCountSettings(
        listen=parsed.listen,
        metrics_port=parsed.metrics_port,
        tls=parser.tls(parsed),
        drain_seconds=parsed.drain_seconds,
        log_level=parsed.log_level,
        log_format=parsed.log_format,
        store=store,
        store_password=(
            parsed.store_password_file
            or parsed.store_optional_password_file
            or os.environ.get("LECO_HASHCOUNT_STORE_PASSWORD")
            or None
        ),
        store_connections=parsed.store_connections,
        ttl=parsed.ttl,
        retry_window=parsed.retry_window,
        max_memory=max_memory or 1 << 30,
    )


def _parser() -> flags.ServiceParser:
    parser = flags.ServiceParser("hashcount", DESCRIPTION)
    parser.common_settings(listen="127.0.0.1:50061", metrics_port="9461")
    parser.setting(
        "--store", default="memory", kind=_store, metavar="ADDRESS", help="memory, or the address of Redis, as above"
    )
    parser.setting(
        "--store-password-file",
        default=None,
        kind=_password,
        metavar="FILE",
        help="file with the password for Redis",
    )
    parser.setting(
        "--store-optional-password-file",
        default=None,
        kind=_optional_password,
        metavar="FILE",
        help="the same, but without the file there is no password: for a secret that need not exist",
    )
    parser.setting(
        "--store-connections",
        default="16",
        kind=flags.whole_number(1, 1024),
        metavar="N",
        help="connections to each Redis server",
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
    return parser


def _store(text: str) -> StoreAddress | None:
    return None if text == "memory" else parse_address(text)


def _password(text: str) -> str:
    """The content of the file, without the line end that editors leave."""
    try:
        password = flags.existing_file(text).read_text().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{text} is not a text file") from None
    if not password:
        raise ValueError(f"{text} is empty")
    return password


def _optional_password(text: str) -> str | None:
    """The same, or None if there is no such file. One that is there but cannot be read is a mistake."""
    try:
        Path(text).lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{text} cannot be read: {error.strerror}") from error
    return _password(text)
