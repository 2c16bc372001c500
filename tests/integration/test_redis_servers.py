import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.retry import Retry

from support import redis_servers
from support.ports import free_port
from support.redis_servers import HOST, Proxy, RedisClusterServers, RedisServer


def children() -> set[int]:
    """The processes that this one started and that still run."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended while we looked
            continue
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    return {process for process, parent in parents.items() if parent == os.getpid()}


def client_of(url: str, *, timeout: float = 5.0, ca: str | None = None) -> redis.Redis:
    """A client that is connected already, so that the next request is the test's own, and that never retries."""
    tls = {"ssl_ca_data": ca} if ca else {}
    client = redis.Redis.from_url(url, socket_timeout=timeout, retry=Retry(NoBackoff(), 0), **tls)
    client.ping()
    return client


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer("--enable-debug-command", "yes") as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    shared_server.client().flushall()
    return shared_server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(HOST, server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[RedisClusterServers]:
    with RedisClusterServers() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: RedisClusterServers) -> RedisClusterServers:
    shared_cluster.flush()
    return shared_cluster


def cluster_client(cluster: RedisClusterServers) -> RedisCluster:
    return RedisCluster(host=HOST, port=cluster.nodes[0].port)


class TestServer:
    def test_it_answers_at_its_url_and_is_gone_after_the_block(self) -> None:
        before = children()
        with RedisServer("--maxmemory", "10mb") as server:
            with client_of(server.url) as client:
                assert client.info("server")["process_id"] == server.pid
                assert client.config_get("maxmemory") == {"maxmemory": str(10 * 2**20)}
            assert children() - before == {server.pid}
        assert children() == before
        with pytest.raises(redis.ConnectionError):
            client_of(server.url)

    def test_a_kill_loses_the_data_and_a_restart_serves_the_same_port(self) -> None:
        with RedisServer() as server:
            client, port, pid = server.client(), server.port, server.pid
            client.set("key", "value")
            server.kill()
            assert not server.running
            with pytest.raises(redis.ConnectionError):
                client.get("key")
            server.restart()
            assert (server.port, client.get("key")) == (port, None)
            assert server.pid != pid

    def test_persistence_is_there_when_asked_for(self) -> None:
        with RedisServer("--appendonly", "yes", "--appendfsync", "always") as server:
            server.client().set("key", "value")
            server.restart()
            assert server.client().get("key") == b"value"

    def test_advance_expires_exactly_the_keys_whose_time_has_come(self, server: RedisServer) -> None:
        client = server.client()
        client.set("forever", 1)
        client.set("due", 1, px=60_000)
        client.set("later", 1, px=61_500)
        client.hset("hash", "field", "1")
        client.expire("hash", 100)
        server.advance(60)
        assert set(client.keys()) == {b"forever", b"later", b"hash"}
        assert client.pttl("forever") == -1
        assert 0 < client.pttl("later") <= 1_500
        assert 38_000 < client.pttl("hash") <= 40_000
        server.advance(1.5)
        assert set(client.keys()) == {b"forever", b"hash"}

    def test_advance_works_when_the_memory_is_full(self) -> None:
        with RedisServer("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as server:
            with server.client().pipeline(transaction=False) as pipe:
                for number in range(200):
                    pipe.set(f"key{number}", b"x" * 20_000, ex=60)
                with pytest.raises(redis.OutOfMemoryError):
                    pipe.execute()
            server.advance(60)
            assert server.client().dbsize() == 0

    def test_a_paused_server_hangs_and_resumes_with_its_data(self, server: RedisServer) -> None:
        with client_of(server.url, timeout=0.2) as client:
            client.set("key", "value")
            server.pause()
            try:
                with pytest.raises(redis.TimeoutError):
                    client.get("key")
            finally:
                server.resume()
            assert client.get("key") == b"value"

    def test_a_paused_server_can_be_stopped(self) -> None:
        before = children()
        with RedisServer() as server:
            server.pause()
            started = time.monotonic()
        assert time.monotonic() - started < 4
        assert children() == before

    def test_a_failed_start_says_why_and_leaves_no_process(self) -> None:
        before = children()
        with pytest.raises(RuntimeError, match=r"--no-such-option(.|\n)*FATAL CONFIG"):
            RedisServer("--no-such-option", "1").start()
        assert children() == before

    def test_a_taken_port_is_an_error_when_it_was_asked_for(self, server: RedisServer) -> None:
        before = children()
        with pytest.raises(RuntimeError, match="Address already in use"):
            RedisServer(port=server.port).start()
        assert children() == before

    @pytest.mark.parametrize(("options", "offset"), [((), 0), (("--cluster-enabled", "yes"), 10_000)])
    def test_another_port_is_chosen_when_the_first_or_its_cluster_bus_is_in_use(
        self, options: tuple[str, ...], offset: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = free_port(), free_port()
        candidates = [first, second]
        monkeypatch.setattr(redis_servers, "free_port", lambda: candidates.pop(0))
        with socket.create_server((HOST, first + offset)), RedisServer(*options) as server:
            assert server.port == second
            assert server.client().ping()


class TestCluster:
    def test_every_node_serves_its_third(self, cluster: RedisClusterServers) -> None:
        keys = [f"key{number}" for number in range(30)]
        with cluster_client(cluster) as client:
            for key in keys:
                client.set(key, key)
            assert [client.get(key) for key in keys] == [key.encode() for key in keys]
        held = [set(node.client().keys()) for node in cluster.nodes]
        assert all(held)
        for key in keys:
            assert key.encode() in held[cluster.owner(key_slot(key.encode()))]
        ports = [node.port for node in cluster.nodes]
        assert cluster.url == f"redis+cluster://{HOST}:{ports[0]},{HOST}:{ports[1]},{HOST}:{ports[2]}"
        cluster.flush()
        assert [node.client().dbsize() for node in cluster.nodes] == [0, 0, 0]

    def test_advance_reaches_all_nodes_and_a_slot_that_is_on_its_way(self, cluster: RedisClusterServers) -> None:
        slot = key_slot(b"tag")
        target = (cluster.owner(slot) + 1) % 3
        with cluster_client(cluster) as client:
            for number in range(30):
                client.set(f"key{number}", 1, ex=60)
                client.set(f"late{number}", 1, ex=90)
            for number in range(4):
                client.set(f"{{tag}}{number}", 1, ex=60)
            cluster.begin_move(slot, target)
            cluster.advance(60)
            cluster.finish_move(slot, target)
            assert [client.exists(f"key{number}") for number in range(30)] == [0] * 30
            assert [client.exists(f"{{tag}}{number}") for number in range(4)] == [0] * 4
            assert [client.exists(f"late{number}") for number in range(30)] == [1] * 30

    def test_a_slot_on_its_way_is_asked_for_and_then_moved(self, cluster: RedisClusterServers) -> None:
        slot = key_slot(b"tag")
        source = cluster.owner(slot)
        target = (source + 1) % 3
        keys = ["{tag}a", "{tag}b", "{tag}c"]
        old, new = cluster.nodes[source].client(), cluster.nodes[target].client()
        with cluster_client(cluster) as client:
            for key in keys:
                client.set(key, key)

            cluster.begin_move(slot, target)
            assert (old.dbsize(), new.dbsize()) == (1, 2)
            for key in [*new.scan_iter(), "{tag}new"]:
                with pytest.raises(redis.exceptions.AskError) as ask:
                    old.get(key)
                assert (ask.value.slot_id, ask.value.port) == (slot, cluster.nodes[target].port)
            with pytest.raises(redis.exceptions.TryAgainError):
                old.mget(keys)
            assert [client.get(key) for key in keys] == [key.encode() for key in keys]
            assert cluster.owner(slot) == source

            cluster.finish_move(slot, target)
            assert cluster.owner(slot) == target
            assert (old.dbsize(), new.dbsize()) == (0, 3)
            with pytest.raises(redis.exceptions.MovedError):
                old.get(keys[0])
            assert [client.get(key) for key in keys] == [key.encode() for key in keys]

    def test_a_slot_moves_there_and_back(self, cluster: RedisClusterServers) -> None:
        slot = key_slot(b"key")
        home = cluster.owner(slot)
        away = (home + 1) % 3
        with cluster_client(cluster) as client:
            client.set("key", "value")
            for index in (away, home):
                cluster.move_slot(slot, index)
                assert cluster.owner(slot) == index
                assert cluster.nodes[index].client().get("key") == b"value"
                assert client.get("key") == b"value"

    def test_a_dead_node_leaves_the_other_slots_served_and_comes_back_empty(self, cluster: RedisClusterServers) -> None:
        keys = {cluster.owner(key_slot(key)): key for key in (b"%d" % number for number in range(30))}
        for index, node in enumerate(cluster.nodes):
            node.client().set(keys[index], "value", ex=60)
        cluster.nodes[0].kill()
        survivor = cluster.nodes[1].client()
        while int(survivor.execute_command("CLUSTER INFO")["cluster_slots_fail"]) == 0:
            time.sleep(0.01)  # until the death is noticed; before, nothing could differ
        assert [cluster.nodes[index].client().get(keys[index]) for index in (1, 2)] == [b"value", b"value"]
        cluster.advance(60)
        cluster.nodes[0].restart()
        cluster.wait_until_ok()
        assert [node.client().get(keys[index]) for index, node in enumerate(cluster.nodes)] == [None, None, None]
        cluster.nodes[0].client().set(keys[0], "value")

    def test_a_failed_start_leaves_no_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = children()
        cluster = RedisClusterServers()
        monkeypatch.setattr(cluster.nodes[2], "_args", ("--no-such-option", "1"))
        with pytest.raises(RuntimeError, match="--no-such-option"):
            cluster.start()
        assert children() == before


class TestProxy:
    def test_it_passes_everything_when_it_is_told_nothing(self, proxy: Proxy) -> None:
        with client_of(proxy.url) as client:
            large = os.urandom(3_000_000)
            client.set("large", large)
            assert client.get("large") == large
            with client.pipeline(transaction=False) as pipe:
                for _ in range(20):
                    pipe.get("large")
                assert pipe.execute() == [large] * 20
        assert (proxy.connections, proxy.cuts) == (1, 0)

    def test_a_cut_reply_is_of_a_command_that_took_effect(self, proxy: Proxy, server: RedisServer) -> None:
        with client_of(proxy.url) as client:
            proxy.cut_replies = 1
            with pytest.raises(redis.ConnectionError):
                client.incr("count")
            assert server.client().get("count") == b"1"
            assert client.incr("count") == 2
        assert (proxy.connections, proxy.cuts, proxy.cut_replies) == (2, 1, 0)

    def test_as_many_replies_are_cut_as_were_asked_for(self, proxy: Proxy) -> None:
        clients = [client_of(proxy.url) for _ in range(3)]
        proxy.cut_replies = 2
        for client in clients[:2]:
            with pytest.raises(redis.ConnectionError):
                client.incr("count")
        assert clients[2].incr("count") == 3
        assert proxy.cuts == 2
        for client in clients:
            client.close()

    def test_a_cut_reply_of_a_long_pipeline_is_of_all_its_commands(self, proxy: Proxy, server: RedisServer) -> None:
        with client_of(proxy.url) as client, client.pipeline(transaction=False) as pipe:
            for number in range(20_000):
                pipe.set(f"key{number}", "x" * 50)
                if number == 10_000:  # a silence is not the end
                    pipe.execute_command("DEBUG", "SLEEP", 0.2)
            proxy.cut_replies = 2
            with pytest.raises(redis.ConnectionError):
                pipe.execute()
        assert server.client().dbsize() == 20_000
        assert (proxy.cuts, proxy.cut_replies) == (1, 1)

    def test_a_cut_request_has_no_effect(self, proxy: Proxy, server: RedisServer) -> None:
        with client_of(proxy.url) as client:
            proxy.cut_requests = 1
            with pytest.raises(redis.ConnectionError):
                client.incr("count")
            assert server.client().get("count") is None
            assert client.incr("count") == 1
        assert (proxy.cuts, proxy.cut_requests) == (1, 0)

    def test_refusing_cuts_what_is_open_and_closes_what_comes(self, proxy: Proxy) -> None:
        with client_of(proxy.url) as client:
            proxy.refuse(True)
            assert proxy.cuts == 1
            for _ in range(2):
                with pytest.raises(redis.ConnectionError):
                    client.ping()
            proxy.refuse(False)
            assert client.ping()
        assert proxy.connections >= 3

    def test_a_delay_comes_before_the_reply_and_after_the_effect(self, proxy: Proxy, server: RedisServer) -> None:
        with client_of(proxy.url, timeout=0.3) as client:
            proxy.delay_seconds = 0.1
            started = time.monotonic()
            assert client.incr("count") == 1
            assert time.monotonic() - started >= 0.1
            proxy.delay_seconds = 1.0
            with pytest.raises(redis.TimeoutError):
                client.incr("count")
            assert server.client().get("count") == b"2"

    def test_a_dead_target_closes_the_connection(self) -> None:
        with RedisServer() as server, Proxy(HOST, server.port) as proxy, client_of(proxy.url) as client:
            server.kill()
            for _ in range(2):  # the connection that was open, and a new one
                with pytest.raises(redis.ConnectionError):
                    client.ping()
            server.restart()
            assert client.ping()

    def test_leaving_closes_the_port_and_what_is_open(self, server: RedisServer) -> None:
        with Proxy(HOST, server.port) as proxy:
            connection = socket.create_connection((HOST, proxy.port))
            connection.sendall(b"PING\r\n")
            assert connection.recv(100) == b"+PONG\r\n"
        with connection:
            assert connection.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, proxy.port))


class TestProxyWithTls:
    @pytest.fixture
    def authority(self) -> trustme.CA:
        return trustme.CA()

    @pytest.fixture
    def proxy(self, server: RedisServer, authority: trustme.CA) -> Iterator[Proxy]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(HOST).configure_cert(context)
        with Proxy(HOST, server.port, context) as proxy:
            yield proxy

    def test_a_client_that_trusts_the_authority_is_served(self, proxy: Proxy, authority: trustme.CA) -> None:
        assert proxy.url == f"rediss://{HOST}:{proxy.port}/0"
        large = os.urandom(3_000_000)
        with client_of(proxy.url, ca=authority.cert_pem.bytes().decode()) as client:
            client.set("large", large)
            assert client.get("large") == large

    def test_others_are_not(self, proxy: Proxy) -> None:
        with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            client_of(proxy.url, ca=trustme.CA().cert_pem.bytes().decode())
        with pytest.raises(redis.RedisError):
            client_of(proxy.url.replace("rediss:", "redis:"), timeout=1.0)

    def test_the_faults_are_the_same(self, proxy: Proxy, server: RedisServer, authority: trustme.CA) -> None:
        with client_of(proxy.url, ca=authority.cert_pem.bytes().decode()) as client:
            proxy.cut_replies = 1
            with pytest.raises(redis.ConnectionError):
                client.incr("count")
            assert server.client().get("count") == b"1"
            client.ping()
            proxy.cut_requests = 1
            with pytest.raises(redis.ConnectionError):
                client.incr("count")
            proxy.refuse(True)
            with pytest.raises(redis.ConnectionError):
                client.incr("count")
            proxy.refuse(False)
            assert client.incr("count") == 2
