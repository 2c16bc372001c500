"""Connections to where the keys are: one Redis server, or a cluster."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from services.hashcount.address import StoreAddress


class Topology(Protocol):
    """Where the keys are: one server, or the nodes of a cluster."""

    known: bool
    """Whether the servers are known. If not, `learn` must be called before the rest."""
    together: bool
    """Whether one command may use any keys, and not only those of one slot."""

    def learn(self) -> None:
        """Finds out which server holds which keys. Blocks."""
        ...

    def split(self, keys: Sequence[str]) -> Iterable[tuple[redis.Redis, list[int]]]:
        """Groups the positions of `keys` by the server that holds them; leaves out those that none holds. Does not block."""
        ...

    def follow(self, *command: object) -> Any:  # what Redis answers
        """Runs one command wherever its key has moved to. Blocks."""
        ...

    def forget(self) -> None:
        """Hears that a server could not be reached: what is known may be out of date. Does not block."""
        ...

    def primaries(self) -> Iterable[redis.Redis]:
        """Every server that holds keys. Does not block."""
        ...

    def close(self) -> None:
        """Closes all connections."""
        ...


def connect(address: StoreAddress, *, password: str | None, threads: int) -> Topology:
    """Prepares connections; they are made when the store is first used, so that a service can start before its Redis.

    Args:
        address: Where Redis is.
        password: Takes the place of one in the address.
        threads: How many connections may be in use at once.
    """
    settings: dict[str, Any] = {
        "username": address.username,
        "password": password or address.password,
        "socket_connect_timeout": 1.0,
        "socket_timeout": 3.0,
        "retry": Retry(NoBackoff(), 0),  # the store repeats by itself, and its clients do
        "health_check_interval": 30,
        "max_connections": threads + 2,
        **dict(address.files),
        **({"ssl": True} if address.tls else {}),
    }
    if address.cluster:
        return Cluster(address.hosts, settings)
    [(host, port)] = address.hosts
    return SingleServer(host, port, address.database, settings)


class SingleServer:
    """All keys are on one server."""

    known = True
    together = True

    def __init__(self, host: str, port: int, database: int, settings: dict[str, Any]) -> None:
        self._client = redis.Redis(host=host, port=port, db=database, **settings)

    def learn(self) -> None:
        """See `Topology.learn`: nothing to find out."""

    def split(self, keys: Sequence[str]) -> Iterable[tuple[redis.Redis, list[int]]]:
        """See `Topology.split`."""
        return [(self._client, list(range(len(keys))))]

    def follow(self, *command: object) -> Any:  # what Redis answers
        """See `Topology.follow`: there is nowhere else to go."""
        return self._client.execute_command(*command)

    def forget(self) -> None:
        """See `Topology.forget`: the next use connects anew."""

    def primaries(self) -> Iterable[redis.Redis]:
        """See `Topology.primaries`."""
        return [self._client]

    def close(self) -> None:
        """See `Topology.close`."""
        self._client.close()


@contextlib.contextmanager
def _not_formed() -> Iterator[None]:
    """Names the error of a cluster that is not one yet: its nodes answer, but none holds a slot.

    The client takes the first of the primaries, of which there is none, and raises an IndexError.
    """
    try:
        yield
    except IndexError as error:
        raise redis.exceptions.ClusterDownError("the nodes do not form a cluster yet: none holds a slot") from error


class Cluster:
    """Keys are spread over the primaries of a cluster by their slots."""

    together = False

    def __init__(self, seeds: Sequence[tuple[str, int]], settings: dict[str, Any]) -> None:
        self._seeds = seeds
        self._settings = settings
        self._cluster: RedisCluster | None = None
        self._lock = threading.Lock()
        self.known = False

    def learn(self) -> None:
        """See `Topology.learn`. Threads that come together wait for the first one's answer."""
        with self._lock:
            if self.known:
                return
            with _not_formed():
                if self._cluster is None:
                    nodes = [ClusterNode(host, port) for host, port in self._seeds]
                    self._cluster = RedisCluster(startup_nodes=nodes, require_full_coverage=False, **self._settings)
                else:
                    self._cluster.nodes_manager.initialize()
            self.known = True

    def _connected(self) -> RedisCluster:
        if self._cluster is None:
            raise redis.exceptions.ClusterDownError("the nodes of the cluster are not known yet")
        return self._cluster

    def split(self, keys: Sequence[str]) -> Iterable[tuple[redis.Redis, list[int]]]:
        """See `Topology.split`."""
        cluster = self._connected()
        groups: dict[str, tuple[redis.Redis, list[int]]] = {}
        for position, key in enumerate(keys):
            try:
                node = cluster.get_node_from_key(key)
            except redis.exceptions.SlotNotCoveredError:
                self.forget()
                continue
            if node.name not in groups:
                groups[node.name] = (cluster.get_redis_connection(node), [])
            groups[node.name][1].append(position)
        return groups.values()

    def follow(self, *command: object) -> Any:  # what Redis answers
        """See `Topology.follow`: the client of the cluster follows redirections and learns from them."""
        with _not_formed():  # which it may find out when it learns
            return self._connected().execute_command(*command)

    def forget(self) -> None:
        """See `Topology.forget`: a replica may have taken over."""
        self.known = False

    def primaries(self) -> Iterable[redis.Redis]:
        """See `Topology.primaries`."""
        cluster = self._connected()
        return [cluster.get_redis_connection(node) for node in cluster.get_primaries()]

    def close(self) -> None:
        """See `Topology.close`."""
        if self._cluster is not None:
            self._cluster.close()
