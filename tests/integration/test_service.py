"""The hash-count service as an operator meets it: start, health, reflection, metrics, drain, and its answers to trouble."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from prometheus_client import CollectorRegistry

from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import SERVICE
from leco.rpc.interceptor import RpcMetrics
from leco.v1 import hash_count_pb2, hash_count_pb2_grpc
from services.hashcount.memory import MemoryStore
from services.hashcount.metrics import HashCountMetrics
from services.hashcount.store import Status
from support.harness import LoopThread, serving
from support.redis_servers import HOST, Proxy, RedisServer
from support.service_process import ServiceProcess
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from services.hashcount.store import Batch, Outcome
    from support.harness import Serving

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    """For tests that change nothing but their own episodes."""
    with ServiceProcess() as service:
        yield service


def request(sequence: int, codes: str, *, episode: str = "e", final: bool = False) -> hash_count_pb2.CountRequest:
    batch = hash_count_pb2.EpisodeBatch(episode_id=episode, sequence=sequence, size=len(codes), final=final)
    return hash_count_pb2.CountRequest(run="run", code_width=1, episodes=[batch], codes=codes.encode())


def count(
    channel: grpc.Channel, sequence: int, codes: str, *, episode: str = "e", final: bool = False
) -> tuple[Status, list[int]]:
    sent = request(sequence, codes, episode=episode, final=final)
    return read(hash_count_pb2_grpc.HashCountServiceStub(channel).Count(sent, timeout=PATIENCE))


def read(response: hash_count_pb2.CountResponse) -> tuple[Status, list[int]]:
    [result] = response.episodes
    return Status(result.status), np.frombuffer(response.counts, "<u4").tolist()


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""


def health(channel: grpc.Channel, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)  # whose annotations forget its methods
    return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE).status)


def watch(channel: grpc.Channel) -> Any:
    """A stream of states that can be cancelled."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=PATIENCE)


def test_the_service_imports_no_package_that_it_does_not_need(tmp_path: Path) -> None:
    """A start takes a fraction of a second. An import that is only tried would slow it down for those who have the package."""
    heavy = ("torch", "matplotlib", "pandas", "scipy", "minigrid", "gymnasium", "hypothesis", "pytest")
    for name in heavy:
        (tmp_path / f"{name}.py").touch()
    code = f"import sys, services.hashcount.__main__; print([name for name in {heavy} if name in sys.modules])"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert child.stdout == "[]\n"


def test_health_is_serving_and_a_service_that_does_not_exist_has_none(service: ServiceProcess) -> None:
    with grpc.insecure_channel(service.address) as channel:
        until(lambda: health(channel, SERVICE) == SERVING)
        assert health(channel, "") == SERVING
        code, _ = refusal(lambda: health(channel, "leco.v1.Nonsense"))
        assert code is grpc.StatusCode.NOT_FOUND


def test_health_follows_redis_away_and_back() -> None:
    with (
        RedisServer() as redis,
        ServiceProcess("--store", redis.url) as service,
        grpc.insecure_channel(service.address) as channel,
    ):
        states = (int(answer.status) for answer in watch(channel))
        until(lambda: next(states) == SERVING)
        assert count(channel, 0, "A") == (Status.COUNTED, [1])

        redis.kill()
        assert next(states) == NOT_SERVING
        line = service.until_logged("the store cannot be reached")
        assert line["level"] == "error"
        assert "Connection refused" in line["error"]
        assert health(channel, "") == SERVING, "the process is fine: to restart it would not help"
        code, detail = refusal(lambda: count(channel, 1, "A"))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert detail.startswith("the store cannot be reached: ")
        assert service.metrics()["leco_hashcount_store_up"] == 0
        assert service.metrics()["leco_hashcount_store_errors_total"] >= 1
        until(lambda: service.metrics().get("leco_hashcount_rpc_requests_total UNAVAILABLE Count") == 1)

        redis.start()
        assert next(states) == SERVING
        assert service.until_logged("the store is back")["level"] == "warning"
        assert service.metrics()["leco_hashcount_store_up"] == 1
        assert count(channel, 0, "A", episode="another") == (Status.COUNTED, [1])
        assert count(channel, 1, "A")[0] is Status.LOST, "this Redis keeps nothing on disk"


def test_a_service_starts_before_its_redis_does() -> None:
    redis = RedisServer()
    with redis:
        pass  # now it has a port
    with ServiceProcess("--store", redis.url) as service, grpc.insecure_channel(service.address) as channel:
        service.until_logged("the store cannot be reached")
        assert health(channel, SERVICE) == NOT_SERVING
        with redis:
            service.until_logged("the store is back")
            assert count(channel, 0, "A") == (Status.COUNTED, [1])


def test_reflection_lists_the_services_and_gives_the_contract(service: ServiceProcess) -> None:
    with grpc.insecure_channel(service.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) == {SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME}
        contract = database.FindFileContainingSymbol(SERVICE)
    assert contract.SerializeToString() == hash_count_pb2.DESCRIPTOR.serialized_pb


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_service(redis_server: RedisServer, number: signal.Signals) -> None:
    with (
        Proxy(HOST, redis_server.port) as proxy,
        ServiceProcess("--store", proxy.url, "--drain-seconds", f"{2 * PATIENCE:g}") as service,
        grpc.insecure_channel(service.address) as channel,
    ):
        states = watch(channel)
        until(lambda: next(states).status == SERVING)
        episode = f"drained-by-{number.name}"
        assert count(channel, 0, "A", episode=episode) == (Status.COUNTED, [1])
        proxy.delay_seconds = 2.5  # just short of what the service waits for Redis
        stub = hash_count_pb2_grpc.HashCountServiceStub(channel)
        in_progress = stub.Count.future(request(1, "AA", episode=episode), timeout=PATIENCE)
        until(lambda: service.metrics()["leco_hashcount_rpc_in_progress Count"] == 1)

        service.terminate(number)
        assert next(states).status == NOT_SERVING
        states.cancel()
        assert service.until_logged("draining")["signal"] == number.name
        until(lambda: not accepts_connections(service.address))
        code, _ = refusal(lambda: count(channel, 0, "A", episode="too-late"))
        assert code is grpc.StatusCode.UNAVAILABLE
        status, counts = read(in_progress.result(timeout=PATIENCE))
        assert status in (Status.COUNTED, Status.REPLAYED)  # if the service asked Redis twice
        assert counts == [2, 3]
        assert service.wait() == 0, "it ends when the calls have ended, long before --drain-seconds"
        without_password, *events = [line["event"] for line in service.logged()]
        assert without_password.startswith("Redis is used without a password")
        assert events == ["serving", "draining", "stopped"]


def test_a_client_of_ours_does_not_hold_up_the_drain() -> None:
    """Its channel watches health for as long as it lives, and that is a call in progress too."""
    drain = ("--drain-seconds", f"{2 * PATIENCE:g}")
    with ServiceProcess(*drain) as service, open_channel(service.address, service=SERVICE) as channel:
        until(lambda: health(channel, SERVICE) == SERVING)
        assert count(channel, 0, "A") == (Status.COUNTED, [1])
        service.terminate()
        assert service.wait() == 0


def test_a_second_signal_ends_the_service_at_once(redis_server: RedisServer) -> None:
    with (
        Proxy(HOST, redis_server.port) as proxy,
        ServiceProcess("--store", proxy.url) as service,
        grpc.insecure_channel(service.address) as channel,
    ):
        assert count(channel, 0, "A", episode="cut-off") == (Status.COUNTED, [1])
        proxy.delay_seconds = 60
        stub = hash_count_pb2_grpc.HashCountServiceStub(channel)
        in_progress = stub.Count.future(request(1, "A", episode="cut-off"), timeout=PATIENCE)
        until(lambda: service.metrics()["leco_hashcount_rpc_in_progress Count"] == 1)
        service.terminate()
        service.until_logged("draining")
        service.terminate()
        assert service.wait() == -signal.SIGTERM
        code, _ = refusal(in_progress.result)
        assert code is grpc.StatusCode.UNAVAILABLE


def test_a_client_that_reads_nothing_does_not_hold_up_the_drain_for_ever() -> None:
    with ServiceProcess("--drain-seconds", "1") as service, watch_without_reading(service.address):
        service.terminate()
        assert service.wait() == 0


def test_a_second_service_on_the_same_port_says_so_and_exits(service: ServiceProcess) -> None:
    child = start("--listen", service.address, "--metrics-port", "off")
    assert child.returncode == 1
    assert f"leco hashcount: cannot listen on {service.address}: is the port in use" in child.stderr
    assert "Traceback" not in child.stderr


def test_a_metrics_port_that_is_taken_is_said_and_the_service_exits(service: ServiceProcess) -> None:
    child = start("--listen", "127.0.0.1:0", "--metrics-port", str(service.metrics_port))
    assert child.returncode == 1
    assert f"cannot serve metrics on 127.0.0.1:{service.metrics_port}: Address already in use" in child.stderr
    assert "Traceback" not in child.stderr


def test_every_metric_has_its_value_after_known_traffic() -> None:
    with RedisServer("--maxmemory", "64mb") as redis, ServiceProcess("--store", redis.url) as service:
        with grpc.insecure_channel(service.address) as channel:
            assert count(channel, 0, "ABA", episode="a") == (Status.COUNTED, [1, 1, 2])
            assert count(channel, 0, "B", episode="b") == (Status.COUNTED, [1])
            for _ in range(2):
                assert count(channel, 0, "ABA", episode="a") == (Status.REPLAYED, [1, 1, 2])
            assert count(channel, 1, "AC", episode="a") == (Status.COUNTED, [3, 1])
            assert count(channel, 1, "", episode="b", final=True) == (Status.COUNTED, [])
            assert count(channel, 5, "A", episode="a") == (Status.GAP, [0])
            assert count(channel, 0, "ABA", episode="a") == (Status.STALE, [0, 0, 0])
            assert count(channel, 3, "A", episode="c") == (Status.LOST, [0])
            assert count(channel, 1, "X", episode="a") == (Status.CONFLICT, [0])
            assert count(channel, 2, "A", episode="b") == (Status.FINISHED, [0])
            for _ in range(3):
                code, _ = refusal(lambda: count(channel, 0, "A", episode="not a name"))
                assert code is grpc.StatusCode.INVALID_ARGUMENT
            health(channel, SERVICE)
            until(lambda: service.metrics()["leco_hashcount_rpc_in_progress Count"] == 0)
        values = service.metrics()
        batches = {status: values[f"leco_hashcount_batches_total {status.name.lower()}"] for status in Status}
        assert batches == {
            Status.COUNTED: 4,
            Status.REPLAYED: 2,
            Status.GAP: 1,
            Status.STALE: 1,
            Status.LOST: 1,
            Status.CONFLICT: 1,
            Status.FINISHED: 1,
            Status.FULL: 0,
            Status.UNAVAILABLE: 0,
        }
        assert values["leco_hashcount_codes_total"] == 3 + 1 + 2
        assert values["leco_hashcount_new_codes_total"] == 2 + 1 + 1
        requests = {
            name: value for name, value in values.items() if name.startswith("leco_hashcount_rpc_requests_total")
        }
        assert requests == {
            "leco_hashcount_rpc_requests_total OK Count": 11,
            "leco_hashcount_rpc_requests_total INVALID_ARGUMENT Count": 3,
        }, "and nothing of health and reflection"
        assert values["leco_hashcount_rpc_duration_seconds_count Count"] == 14
        assert 0 < values["leco_hashcount_rpc_duration_seconds_sum Count"] < PATIENCE
        assert values["leco_hashcount_store_round_trip_seconds_count"] == 11
        assert 0 < values["leco_hashcount_store_round_trip_seconds_sum"] < PATIENCE
        assert values["leco_hashcount_store_errors_total"] == 0
        assert values["leco_hashcount_store_up"] == 1
        assert values["process_resident_memory_bytes"] > 10e6
        assert values["leco_hashcount_memory_bytes"] > 100_000, "what Redis says"
        assert values["leco_hashcount_memory_limit_bytes"] == 64 << 20
        with ServiceProcess("--store", redis.url) as replica:  # which looks up live episodes when it starts
            until(lambda: replica.metrics()["leco_hashcount_live_episodes"] == 1)
            assert replica.metrics()["leco_hashcount_batches_total counted"] == 0


def test_the_metrics_page_has_every_metric_from_the_start(service: ServiceProcess) -> None:
    registry = CollectorRegistry()
    HashCountMetrics(registry)
    RpcMetrics(registry, "hashcount")
    page = service.metrics_page()
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"# HELP {name} {family.documentation}\n# TYPE {name} {family.type}\n" in page
    assert service.metrics()["leco_hashcount_memory_limit_bytes"] == 1 << 30


class Held(MemoryStore):
    """Answers only once it is released."""

    def __init__(self) -> None:
        super().__init__(max_bytes=1 << 30, ttl=100, retry_window=100)
        self._released = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Outcome]:
        self._loop = asyncio.get_running_loop()
        await self._released.wait()
        return await super().count(run, width, batches)

    def release(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._released.set)


class Broken(MemoryStore):
    """Has a bug."""

    def __init__(self, error: Exception) -> None:
        super().__init__(max_bytes=1 << 30, ttl=100, retry_window=100)
        self._error = error

    async def count(
        self,
        run: str,  # noqa: ARG002
        width: int,  # noqa: ARG002
        batches: Sequence[Batch],  # noqa: ARG002
    ) -> list[Outcome]:
        raise self._error


@contextlib.contextmanager
def server_of(store: MemoryStore, *, max_seconds: float = PATIENCE) -> Iterator[tuple[Serving, grpc.Channel]]:
    with (
        contextlib.closing(LoopThread()) as loop,
        serving(store, loop, max_seconds=max_seconds) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        try:
            yield running, channel
        except BaseException:
            loop.run(running.server.drain(1.0))  # which `serving` does only after a test that passed
            raise


def calls_ended(running: Serving, code: str) -> float:
    labels = {"method": "Count", "code": code}
    return running.registry.get_sample_value("leco_hashcount_rpc_requests_total", labels) or 0


def calls_in_progress(running: Serving) -> float:
    return running.registry.get_sample_value("leco_hashcount_rpc_in_progress", {"method": "Count"}) or 0


def test_a_call_that_takes_too_long_is_given_up() -> None:
    with server_of(Held(), max_seconds=0.2) as (running, channel):
        assert refusal(lambda: count(channel, 0, "A")) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "Count took longer than 0.2 s and was given up",
        )
        until(lambda: calls_ended(running, "DEADLINE_EXCEEDED") == 1)
        assert calls_in_progress(running) == 0


def test_a_bug_is_answered_without_details_and_is_counted_and_logged() -> None:
    bug = LookupError("a table of the inside")
    with structlog.testing.capture_logs() as logged, server_of(Broken(bug)) as (running, channel):
        assert refusal(lambda: count(channel, 0, "A")) == (
            grpc.StatusCode.INTERNAL,
            "internal error; see the service's log",
        )
        until(lambda: calls_ended(running, "INTERNAL") == 1)
        assert calls_in_progress(running) == 0
        [line] = logged
        assert (line["event"], line["log_level"]) == ("a call failed unexpectedly", "error")
        assert line["method"] == "Count"
        assert line["exc_info"]
        assert health(channel, SERVICE) == SERVING, "one bad call does not end the service"


def test_a_timeout_inside_the_service_is_not_taken_for_its_own_time_limit() -> None:
    """Nothing took 30 s, so to say that would send whoever looks into it the wrong way."""
    with structlog.testing.capture_logs() as logged, server_of(Broken(TimeoutError("of a socket"))) as (_, channel):
        assert refusal(lambda: count(channel, 0, "A")) == (
            grpc.StatusCode.INTERNAL,
            "internal error; see the service's log",
        )
        assert [line["event"] for line in logged] == ["a call failed unexpectedly"]


def test_a_call_that_its_client_gives_up_is_counted_as_cancelled() -> None:
    with server_of(Held()) as (running, channel):
        call = hash_count_pb2_grpc.HashCountServiceStub(channel).Count.future(request(0, "A"), timeout=PATIENCE)
        until(lambda: calls_in_progress(running) == 1)
        call.cancel()
        until(lambda: calls_ended(running, "CANCELLED") == 1)
        assert calls_in_progress(running) == 0


@contextlib.contextmanager
def as_many_calls_as_allowed() -> Iterator[grpc.Channel]:
    """A channel to a server that has 192 calls in progress, all that one host may have.

    They are answered at the end, whatever came in between. Each connection may have 100, so there are two.
    """
    store = Held()
    with server_of(store) as (running, channel), own_connection(running.address) as other:
        stubs = [hash_count_pb2_grpc.HashCountServiceStub(each) for each in (channel, other)]
        calls = [stubs[i % 2].Count.future(request(0, "AA", episode=f"e{i}"), timeout=PATIENCE) for i in range(192)]
        until(lambda: calls_in_progress(running) == 192)
        try:
            yield channel
        finally:
            store.release()
            assert [read(call.result(timeout=PATIENCE)) for call in calls] == [(Status.COUNTED, [1, 2])] * 192
        assert count(channel, 0, "A", episode="later") == (Status.COUNTED, [1])


def test_more_calls_than_allowed_are_refused_and_the_others_are_answered() -> None:
    with as_many_calls_as_allowed() as channel:
        code, detail = refusal(lambda: count(channel, 0, "A", episode="one-too-many"))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert detail == "192 calls by ipv4:127.0.0.1 are in progress, which is the most; repeat later"


def test_health_is_answered_when_there_are_as_many_calls_as_allowed() -> None:
    """Otherwise Kubernetes restarts a service because it is busy."""
    with as_many_calls_as_allowed() as channel:
        assert health(channel, "") == SERVING


def test_clients_that_watch_health_leave_room_for_calls(service: ServiceProcess) -> None:
    """Every client of ours watches the health of every replica all the time, and there may be more than 256 clients."""
    with contextlib.ExitStack() as stack:
        channels = [stack.enter_context(own_connection(service.address)) for _ in range(40)]
        watches = [watch(channel) for channel in channels for _ in range(8)]
        for each in watches:
            stack.callback(each.cancel)
        assert {next(each).status for each in watches} <= {SERVING, NOT_SERVING}
        assert count(channels[0], 0, "A", episode="among-watchers") == (Status.COUNTED, [1])
        with pytest.raises(grpc.RpcError, match=r"8 calls of this kind by .* are in progress"):
            next(watch(channels[0]))


def own_connection(address: str) -> grpc.Channel:
    """A channel that shares its connection with no other."""
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def start(*flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a service that is expected to end by itself."""
    command = [sys.executable, "-m", "services.hashcount", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def accepts_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def watch_without_reading(address: str) -> Iterator[None]:
    """A client that watches health and allows the server to send no byte of the answer.

    No client library does that, so these are the frames of HTTP/2 themselves (RFC 9113, section 4.1).
    """

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Watch",
        ":authority": address,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        b"\0" + b"".join(bytes([len(word)]) + word.encode() for word in header) for header in headers.items()
    )
    message = health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString()
    no_window = frame(4, 0, 0, struct.pack(">HI", 4, 0))  # SETTINGS: SETTINGS_INITIAL_WINDOW_SIZE = 0
    call = frame(1, 4, 1, block) + frame(0, 1, 1, b"\0" + struct.pack(">I", len(message)) + message)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + no_window + call)
        received = b""
        while b"application/grpc" not in received:  # the server's headers: it is about to send the first state
            received += connection.recv(4096)
        yield
