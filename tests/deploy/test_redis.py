"""Redis as deploy/k8s runs it: real servers with its configuration, scripts and probes, and the hash-count service in front."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest
import redis
import trustme

from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import SERVICE, CodeBatch, HashCountClient
from support import needs
from support.kustomized import Built
from support.pods import PASSWORD, Pod, redis_pod
from support.ports import free_port
from support.service_process import ServiceProcess
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [needs.kustomize.mark, needs.redis.mark]
with_and_without_tls = pytest.mark.parametrize("tls", [(), ("tls",)], ids=["clear", "tls"])
NODES = 6


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def client(pod: Pod, port: int, **changes: object) -> redis.Redis:
    """A client with the certificates of a pod, if there are any."""
    folder = pod.folder / "etc" / "leco" / "tls"
    files = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "tls.crt", "ssl_keyfile": "tls.key"}
    secure = {"ssl": True} | {key: f"{folder}/{name}" for key, name in files.items()} if folder.is_dir() else {}
    settings: dict[str, object] = {"password": PASSWORD, "host": "localhost", **secure, **changes}
    return redis.Redis(port=port, **settings)  # type: ignore[arg-type]


class Counting(ServiceProcess):
    """The hash-count service with the variables of its pod about the store, which is on this machine."""

    def __init__(self, built: Built, folder: Path, port: int, authority: trustme.CA, *, password: bool = True) -> None:
        names = {"//redis": "//localhost"}
        pod = Pod(built, "hashcount", folder, ports={6379: port}, names=names, authority=authority, password=password)
        super().__init__(env={key: value for key, value in pod.variables.items() if "_STORE" in key})

    def count(self, episode: str, number: int) -> list[int]:
        """Counts one code twice."""
        with open_channel(self.address, service=SERVICE) as channel:
            counting = HashCountClient(
                channel, run="run", code_width=4, attempt_seconds=PATIENCE, patience_seconds=PATIENCE
            )
            [result] = counting.count([CodeBatch(episode, number, np.zeros((2, 4), np.uint8))])
            assert result.counts is not None, result
            return [int(each) for each in result.counts]


@with_and_without_tls
def test_redis_has_a_password_keeps_what_it_counted_and_is_probed(
    tls: tuple[str, ...], tmp_path: Path, authority: trustme.CA
) -> None:
    built, port = Built("minigrid", tls), free_port()
    pod = redis_pod(built, tmp_path / "redis", port, authority)
    with pod:
        pod.until_probe("startup")
        pod.until_probe("readiness")
        assert pod.probe("liveness").returncode == 0
        with client(pod, port) as known:
            settings = known.config_get("*")
            assert settings["maxmemory-policy"] == "noeviction"
            assert settings["appendonly"] == "yes"
            assert int(settings["maxmemory"]) == 2**30
        with client(pod, port, password=None) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        if tls:
            with client(pod, port, ssl=False) as plain, pytest.raises(redis.ConnectionError):
                plain.ping()
            with client(pod, port, ssl_certfile=None, ssl_keyfile=None) as nobody, pytest.raises(redis.ConnectionError):
                nobody.ping()
        with Counting(built, tmp_path / "hashcount", port, authority) as hashcount:
            assert hashcount.count("episode", 0) == [1, 2]
            until(lambda: b"episode" in next((pod.folder / "data").rglob("*.incr.aof")).read_bytes())
            pod.kill()
            assert pod.probe("liveness").returncode != 0
            with pod:
                pod.until_probe("readiness")
                assert hashcount.count("episode", 1) == [3, 4]  # as if nothing had happened
    assert PASSWORD not in pod.log.read_text()


@with_and_without_tls
def test_without_the_secret_everything_runs_without_a_password_and_says_so(
    tls: tuple[str, ...], tmp_path: Path, authority: trustme.CA
) -> None:
    built, port = Built("minigrid", tls), free_port()
    pod = redis_pod(built, tmp_path / "redis", port, authority, password=False)
    with pod:
        pod.until_probe("readiness")
        assert pod.probe("startup").returncode == pod.probe("liveness").returncode == 0
        assert "there is no secret redis-password" in pod.log.read_text()
        with client(pod, port, password=None) as anybody:
            # Otherwise Redis would answer nobody but processes of its own pod.
            assert anybody.config_get("protected-mode") == {"protected-mode": "no"}
        with Counting(built, tmp_path / "hashcount", port, authority, password=False) as hashcount:
            hashcount.until_logged("Redis is used without a password")
            assert hashcount.count("episode", 0) == [1, 2]
        # The secret is made later: a server that runs has no password until it is started again.
        (pod.folder / "etc" / "leco" / "redis" / "password").write_text(PASSWORD + "\n")
        assert pod.probe("readiness").returncode == 0
        pod.terminate()
    with pod:
        pod.until_probe("readiness")
        with client(pod, port, password=None) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with Counting(built, tmp_path / "hashcount", port, authority) as hashcount:
            assert hashcount.count("episode", 1) == [3, 4]
            assert not [line for line in hashcount.lines if "without a password" in line]


def test_redis_that_reads_its_file_lives_but_is_not_ready(tmp_path: Path, authority: trustme.CA) -> None:
    port = free_port()
    pod = redis_pod(Built("minigrid", ()), tmp_path, port, authority)
    with pod:
        pod.until_probe("readiness")
        with client(pod, port) as known:
            for number in range(300):
                known.mset({f"{number}/{each}": "x" * 100 for each in range(1000)})
            known.bgrewriteaof()
            until(lambda: known.info("persistence")["aof_rewrite_in_progress"] == 0)
        pod.terminate()
    with (tmp_path / "etc" / "redis" / "redis.conf").open(
        "a"
    ) as conf:  # Redis' own settings for tests: it reads slowly
        conf.write("key-load-delay 1000\nloading-process-events-interval-bytes 1024\n")
    with pod:
        pod.until_probe("startup")
        assert pod.probe("readiness").returncode != 0
        assert pod.probe("liveness").returncode == 0


class Cluster:
    """The six pods of the component redis-cluster."""

    def __init__(
        self, built: Built, folder: Path, authority: trustme.CA, stack: ExitStack, *, password: bool = True
    ) -> None:
        self.built, self.folder, self.authority, self._stack = built, folder, authority, stack
        self._password = password

    def start(self) -> None:
        """Starts all nodes; from the second time on with their data, and at other addresses."""
        self.ports = [free_port() for _ in range(NODES)]
        self.peers = " ".join(f"127.0.0.1:{port}" for port in self.ports)
        self.pods = [
            redis_pod(
                self.built,
                self.folder / str(n),
                port,
                self.authority,
                password=self._password,
                REDIS_PEERS=self.peers,
            )
            for n, port in enumerate(self.ports)
        ]
        for pod in self.pods:
            self._stack.enter_context(pod)
        for pod in self.pods:
            pod.until_probe("readiness")

    def set_up(self) -> str:
        """Runs the job; the last line that it said."""
        variables = {"REDIS_PEERS": self.peers}
        folder = self.folder / "job"
        job = Pod(
            self.built,
            "redis-setup",
            folder,
            ports={},
            authority=self.authority,
            variables=variables,
            password=self._password,
        )
        done = subprocess.run(
            job.command(), env=job.variables, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]

    def info(self, node: int) -> dict[str, str]:
        with client(self.pods[node], self.ports[node], password=PASSWORD if self._password else None) as known:
            answer: dict[str, str] = known.execute_command("CLUSTER INFO")
            return answer

    def until_whole(self) -> None:
        """Every node knows all others, and they are up."""
        wanted = {"cluster_state": "ok", "cluster_known_nodes": str(NODES), "cluster_slots_ok": "16384"}
        until(lambda: all(wanted.items() <= self.info(node).items() for node in range(NODES)))


@with_and_without_tls
def test_six_nodes_become_a_cluster_once_and_find_each_other_again_when_all_addresses_changed(
    tls: tuple[str, ...], tmp_path: Path, authority: trustme.CA
) -> None:
    built = Built("minigrid", ("redis-cluster", *tls))
    with ExitStack() as stack:
        cluster = Cluster(built, tmp_path, authority, stack)
        cluster.start()
        # The service starts with the nodes, before they are a cluster, and waits for that.
        early = stack.enter_context(Counting(built, tmp_path / "early", cluster.ports[0], authority))
        early.until_logged("the store cannot be reached; calls are answered with UNAVAILABLE until it is back")
        assert cluster.set_up() == "[OK] All 16384 slots covered."
        cluster.until_whole()
        early.until_logged("the store is back")
        assert early.count("early", 0) == [1, 2]
        assert cluster.info(0)["cluster_size"] == "3"
        assert cluster.set_up() == "the cluster is there"
        with Counting(built, tmp_path / "hashcount", cluster.ports[0], authority) as hashcount:
            for episode in range(20):  # which are spread over all three
                assert hashcount.count(f"episode-{episode}", 0) == [1, 2]
        for pod in cluster.pods:
            pod.terminate()
        cluster.start()
        cluster.until_whole()
        assert cluster.set_up() == "the cluster is there"
        with Counting(built, tmp_path / "hashcount", cluster.ports[0], authority) as hashcount:
            for episode in range(20):
                assert hashcount.count(f"episode-{episode}", 1) == [3, 4]


def test_six_nodes_become_a_cluster_without_a_password_too(tmp_path: Path, authority: trustme.CA) -> None:
    built = Built("minigrid", ("redis-cluster",))
    with ExitStack() as stack:
        cluster = Cluster(built, tmp_path, authority, stack, password=False)
        cluster.start()
        assert cluster.set_up() == "[OK] All 16384 slots covered."
        cluster.until_whole()
        for pod in cluster.pods:
            pod.terminate()
        cluster.start()
        cluster.until_whole()
        with Counting(built, tmp_path / "hashcount", cluster.ports[0], authority, password=False) as hashcount:
            assert hashcount.count("episode", 0) == [1, 2]
