"""The address of a Redis store, read with care for the password in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster")
# What may follow the question mark: files for TLS to Redis.
FILE_SETTINGS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_HINT = "; in a user or password write / ? # [ ] @ : and % as %2F %3F %23 %5B %5D %40 %3A and %25"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where Redis is, and who we are there."""

    cluster: bool
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    database: int
    username: str | None
    password: str | None = field(repr=False)
    files: tuple[tuple[str, str], ...]


def parse_address(text: str) -> StoreAddress:
    """Reads redis://[user[:password]@]host[:port][/database] and its relatives.

    rediss:// is with TLS, and takes ?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE. redis+cluster:// and
    rediss+cluster:// name one or more nodes, host:port[,host:port...], and no database.

    Raises:
        ValueError: what is wrong and what is expected. It repeats nothing that could be part of a password.
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(f"the store's address cannot be read{_HINT}") from None
    if parts.scheme not in SCHEMES:
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"the store must be memory or an address that begins with {schemes}")
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    cluster, tls = parts.scheme.endswith("+cluster"), parts.scheme.startswith("rediss")
    nodes = tuple(_host_and_port(host) for host in (hosts.split(",") if cluster else [hosts]))
    database = parts.path.strip("/")
    if cluster and database:
        raise ValueError("a cluster has no database numbers: the store's address must end after the hosts")
    if not (database.isascii() and database.isdigit()) and database:
        shown = f", and not {database!r}" if database.isalnum() else _HINT
        raise ValueError(f"the database in the store's address must be a number{shown}")
    if parts.fragment:
        raise ValueError(f"the store's address must not have a #{_HINT}")
    return StoreAddress(
        cluster=cluster,
        tls=tls,
        hosts=nodes,
        database=int(database or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
        files=_files(parts.query, tls=tls),
    )


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text.rpartition("]")[2] else (text, "", "6379")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"the store's address must name host:port, for example redis://localhost:6379/0{_HINT}")
    return host.strip("[]"), int(port)


def _files(query: str, *, tls: bool) -> tuple[tuple[str, str], ...]:
    try:
        settings = parse_qs(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        settings = {"": [""]}
    for name in settings:
        if name not in FILE_SETTINGS or not tls:
            shown = f" {name!r}" if name.isidentifier() else ""
            raise ValueError(
                f"the store's address has an unknown setting{shown} after the question mark; "
                f"rediss:// and rediss+cluster:// take {', '.join(FILE_SETTINGS)}{_HINT}"
            )
    return tuple((name, values[-1]) for name, values in settings.items())
