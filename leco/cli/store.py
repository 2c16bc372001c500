"""The store of visit counts, asked before anything else starts."""

from __future__ import annotations

import os

from leco.cli.train_flags import STORE
from leco.config.experiment import ConfigError
from services.hashcount.address import parse_address
from services.hashcount.config import read_settings


def use_store(address: str) -> None:
    """Checks that a store answers, and hands its address to the services: by the environment, for it may hold a password.

    Raises:
        ConfigError: it is no address, or nothing answers there.
    """
    if address == "memory":
        return
    import redis  # noqa: PLC0415  # only these stores need it

    from services.hashcount.topology import connect  # noqa: PLC0415

    try:
        where = parse_address(address)
    except ValueError as error:
        raise ConfigError(f"--store: {error}") from None
    os.environ[STORE] = address
    settings = read_settings([])
    topology = connect(where, password=settings.store_password, threads=1)
    try:
        topology.learn()
        for server in topology.primaries():
            server.ping()
    except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException) as error:
        raise ConfigError(
            f"the store {settings.store_for_people} does not answer ({error}): start it, or choose another with --store"
        ) from None
    finally:
        topology.close()
