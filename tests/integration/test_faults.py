"""No wrong count, ever: whatever fails on the way to Redis, in it or in the service, a count that is given is right.

Right is what a naive recount of the batches gives that the client knows to be in the episode; `Episode` holds every
answer against it. Two levels: the store called directly, and the real client of a service in a process of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.crc import key_slot

from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import SERVICE, HashCountClient
from services.hashcount.store import Status, StoreUnavailableError
from support.harness import Answer, Batch, Direct, count_by_client, memory_counting, redis_counting, through_grpc
from support.redis_servers import HOST, SLOTS, Proxy, RedisClusterServers, RedisServer
from support.service_process import ServiceProcess
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

log = logging.getLogger(__name__)  # what was refused and why, which pytest shows of a test that failed

RUN = "faults"
NAMES = (f"e{number}" for number in itertools.count())  # an episode's name is never used again, as the contract wants
COUNTED, REPLAYED, GAP, LOST = Status.COUNTED, Status.REPLAYED, Status.GAP, Status.LOST
FULL, UNAVAILABLE = Status.FULL, Status.UNAVAILABLE
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Way(Protocol):
    """Something that counts."""

    def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Answer]: ...


class Client:
    """The real client, on a channel that the test opened; with `attempts` it gives up after so many."""

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        attempt_seconds: float = PATIENCE,
        patience_seconds: float = PATIENCE,
        attempts: int | None = None,
    ) -> None:
        self.channel = channel
        self._seconds = {"attempt_seconds": attempt_seconds, "patience_seconds": patience_seconds}
        self._attempts = attempts

    def count(self, run: str, width: int, batches: Sequence[Batch]) -> list[Answer]:
        client = HashCountClient(self.channel, run=run, code_width=width, **self._seconds)
        if self._attempts is not None:
            _end_patience(client, self._attempts)
        return count_by_client(client, width, batches)


def _end_patience(client: HashCountClient, attempts: int) -> None:
    """Has a client give up by the number of its attempts, which is the same on any machine, instead of by time."""
    attempt, numbers = client._attempt, itertools.count(1)

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(numbers) == attempts:
            client.give_up()
        return attempt(*arguments, **options)

    client._attempt = counted  # type: ignore[method-assign]


class Episode:
    """What a client knows of its episode: the batches that were counted. No answer gets past it unchecked."""

    def __init__(self, way: Way, name: str | None = None) -> None:
        self.way = way
        self.name = name or next(NAMES)
        self.counted: list[Batch] = []

    def next(self, codes: str | Sequence[bytes], *, final: bool = False) -> Batch:
        split = [code.encode() for code in codes] if isinstance(codes, str) else codes
        return Batch(self.name, len(self.counted), split, final)

    def check(self, batch: Batch, answer: Answer) -> Status:
        assert (answer.counts is not None) == (answer.status in (COUNTED, REPLAYED))
        if answer.counts is not None:
            before = [code for earlier in self.counted[: batch.sequence] for code in earlier.codes]
            assert answer.counts == recount(before, batch.codes), f"{batch} after {self.counted}"
            if batch.sequence == len(self.counted):
                self.counted.append(batch)
        else:
            log.warning("%s batch %d: %s: %s", self.name, batch.sequence, answer.status.name, answer.detail)
        return answer.status

    def send(self, codes: str | Sequence[bytes], *, final: bool = False, way: Way | None = None) -> Status:
        """Has the next batch of the episode counted; the status. Until it is counted, the next is the same."""
        return send_all({self: self.next(codes, final=final)}, way)[0]

    def repeat(self, back: int = 1, *, way: Way | None = None) -> Status:
        """Sends the last batch that was counted again, or an earlier one."""
        return send_all({self: self.counted[-back]}, way)[0]

    def send_until_answered(self, codes: str) -> tuple[Status, int]:
        """Does what the contract asks of a caller whose store cannot be reached. The status, and the failures before it."""
        deadline = time.monotonic() + PATIENCE
        for failures in itertools.count():
            with contextlib.suppress(StoreUnavailableError):
                return self.send(codes), failures
            assert time.monotonic() < deadline, "the store was never reached again"
        raise AssertionError


def recount(before: Sequence[bytes], codes: Sequence[bytes]) -> list[int]:
    """The count of each of `codes` by definition: how often it occurs up to and including its own place."""
    seen: dict[bytes, int] = {}
    for code in (*before, *codes):
        seen[code] = seen.get(code, 0) + 1
    counts = []
    for code in reversed(codes):
        counts.append(seen[code])
        seen[code] -= 1
    return counts[::-1]


def send_all(batches: dict[Episode, Batch], way: Way | None = None) -> list[Status]:
    """One call for all; each answer checked by its episode."""
    way = way or next(iter(batches)).way
    width = next((len(batch.codes[0]) for batch in batches.values() if batch.codes), 1)
    answers = way.count(RUN, width, list(batches.values()))
    return [episode.check(batch, answer) for (episode, batch), answer in zip(batches.items(), answers, strict=True)]


@contextlib.contextmanager
def client_of(*addresses: str, patience_seconds: float = PATIENCE) -> Iterator[Client]:
    with open_channel(f"ipv4:{','.join(addresses)}", service=SERVICE) as channel:
        yield Client(channel, patience_seconds=patience_seconds)


def health(channel: grpc.Channel) -> int:
    """What the service says: whether calls make sense now."""
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    stub = health_pb2_grpc.HealthStub(channel)
    return int(stub.Check(request, timeout=PATIENCE).status)  # type: ignore[attr-defined]


def serves(client: Client) -> bool:
    """Whether the client's channel has found a replica that serves."""
    try:
        return health(client.channel) == SERVING
    except grpc.RpcError:
        return False


@contextlib.contextmanager
def traffic(episodes: Sequence[Episode], codes: str = "ABAC") -> Iterator[Callable[[], int]]:
    """A thread for each episode sends batch after batch, repeating what failed. Yields how many the slowest had counted.

    At the end every batch was counted or the test fails: none is missing.
    """
    stop = threading.Event()

    def drive(episode: Episode) -> None:
        while not stop.is_set():
            status, _ = episode.send_until_answered(codes)
            assert status in (COUNTED, REPLAYED), f"{status!r}"

    with ThreadPoolExecutor(len(episodes)) as pool:
        drives = [pool.submit(drive, episode) for episode in episodes]
        try:
            # A thread that has failed holds nobody up: its error comes at the end.
            yield lambda: min(
                (len(e.counted) for e, d in zip(episodes, drives, strict=True) if not d.done()), default=1 << 30
            )
        finally:
            stop.set()
    for each in drives:
        each.result()


def wait_for_more(counted: Callable[[], int], number: int) -> None:
    goal = counted() + number
    until(lambda: counted() >= goal)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def shared_proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(HOST, server.port) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    """Between Redis and both `store` and `service`; a test that fails leaves no fault to the next one."""
    yield shared_proxy
    shared_proxy.cut_replies = shared_proxy.cut_requests = 0
    shared_proxy.refuse(False)


@pytest.fixture(scope="module")
def store(shared_proxy: Proxy) -> Iterator[Direct]:
    with redis_counting(shared_proxy.url) as direct:
        yield direct


@pytest.fixture(scope="module")
def service(shared_proxy: Proxy) -> Iterator[ServiceProcess]:
    with ServiceProcess("--store", shared_proxy.url) as process:
        yield process


@pytest.fixture(scope="module")
def replica(server: RedisServer) -> Iterator[ServiceProcess]:
    """A second service on the same Redis."""
    with ServiceProcess("--store", server.url) as process:
        yield process


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[Client]:
    with client_of(service.address) as client:
        until(lambda: serves(client))
        yield client


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[RedisClusterServers]:
    with RedisClusterServers() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: RedisClusterServers) -> RedisClusterServers:
    for node in shared_cluster.nodes:
        if not node.running:  # a test failed between its death and its return
            node.start()
    shared_cluster.wait_until_ok()
    shared_cluster.flush()
    return shared_cluster


class TestStoreWhoseConnectionIsCut:
    def test_a_lost_reply_is_asked_for_again_and_is_the_same(self, store: Direct, proxy: Proxy) -> None:
        episode = Episode(store)
        assert episode.send("AAB") is COUNTED
        for _ in range(5):
            proxy.cut_replies = 1
            assert episode.send("ABAC") is REPLAYED
            assert episode.send("BA") is COUNTED

    @pytest.mark.parametrize("cuts", [2, 3, 5])
    def test_when_several_are_lost_in_a_row_the_store_gives_up_and_the_repeat_is_exact(
        self, store: Direct, proxy: Proxy, cuts: int
    ) -> None:
        episode = Episode(store)
        assert episode.send("AAB") is COUNTED
        proxy.cut_replies = cuts
        status, failures = episode.send_until_answered("ABAC")
        assert (status, proxy.cut_replies) == (REPLAYED, 0)
        assert failures >= 1
        assert episode.send("ABC") is COUNTED

    @pytest.mark.parametrize("cuts", [1, 2, 5])
    def test_a_request_cut_half_way_has_no_effect_until_it_is_repeated(
        self, store: Direct, proxy: Proxy, cuts: int
    ) -> None:
        episode = Episode(store)
        assert episode.send("AAB") is COUNTED
        proxy.cut_requests = cuts
        status, failures = episode.send_until_answered("ABAC")
        assert (status, proxy.cut_requests) == (COUNTED, 0)
        assert (failures > 0) == (cuts > 1)
        assert episode.send("ABC") is COUNTED

    def test_a_pipeline_cut_in_its_middle_takes_effect_for_a_part_and_the_rest_follows(
        self, store: Direct, proxy: Proxy
    ) -> None:
        episodes = [Episode(store) for _ in range(400)]
        seen = set()
        for _ in range(50):  # Redis may also hear of the cut before it has read the first half: then there is no effect
            proxy.cut_requests = 1
            statuses = send_all({each: each.next("AAB") for each in episodes})
            assert statuses == sorted(statuses, reverse=True)  # the first half came through, and is now replayed
            seen.add(frozenset(statuses))
            if {COUNTED, REPLAYED} in seen:
                break
        assert {COUNTED, REPLAYED} in seen
        assert set(send_all({each: each.next("AAB") for each in episodes})) == {COUNTED}

    def test_refused_connections_are_reported_at_once_and_change_nothing(self, store: Direct, proxy: Proxy) -> None:
        episode = Episode(store)
        assert episode.send("AAB") is COUNTED
        proxy.refuse(True)
        before = proxy.connections
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                episode.send("AB")
        assert proxy.connections - before <= 6, "each is tried a second time, and then reported"
        proxy.refuse(False)
        assert episode.send("AB") is COUNTED


class TestServiceWhoseConnectionToRedisIsCut:
    """Its watch of the store uses the proxy too and may take a cut now and then: so no single cut is expected to hit."""

    @pytest.mark.parametrize("cuts", [1, 3])
    def test_lost_replies(self, client: Client, proxy: Proxy, cuts: int) -> None:
        episode = Episode(client)
        statuses: list[Status] = []
        while statuses.count(REPLAYED) < 2 and len(statuses) < 100:
            assert episode.send("AAB") is COUNTED
            proxy.cut_replies = cuts
            statuses.append(episode.send("ABAC"))
            proxy.cut_replies = 0
        assert statuses.count(REPLAYED) == 2
        assert set(statuses) <= {COUNTED, REPLAYED}

    @pytest.mark.parametrize("cuts", [1, 3])
    def test_requests_cut_half_way(self, client: Client, proxy: Proxy, cuts: int) -> None:
        episode = Episode(client)
        for _ in range(3):
            assert episode.send("AAB") is COUNTED
            proxy.cut_requests = cuts
            assert episode.send("ABAC") is COUNTED
            proxy.cut_requests = 0

    def test_connections_refused_for_a_while(self, client: Client, proxy: Proxy) -> None:
        episode = Episode(client)
        assert episode.send("AAB") is COUNTED
        proxy.refuse(True)
        refused = proxy.connections
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(episode.send, "ABAC")
            until(lambda: proxy.connections >= refused + 4)  # two calls, each with its own second try
            proxy.refuse(False)
            assert sent.result() is COUNTED
        assert episode.send("ABC") is COUNTED


class TestClientWhoseConnectionIsCut:
    @pytest.fixture
    def wire(self, service: ServiceProcess) -> Iterator[Proxy]:
        with Proxy(HOST, int(service.address.rpartition(":")[2])) as wire:
            yield wire

    @pytest.fixture
    def client(self, wire: Proxy) -> Iterator[Client]:
        with client_of(f"{HOST}:{wire.port}") as client:
            until(lambda: serves(client))
            yield client

    def test_a_lost_answer_is_the_same_when_the_client_repeats(self, client: Client, wire: Proxy) -> None:
        episode = Episode(client)
        statuses: list[Status] = []
        # A cut may also meet one of the pings and window updates of HTTP/2.
        while statuses.count(REPLAYED) < 3 and len(statuses) < 100:
            assert episode.send("AAB") is COUNTED
            wire.cut_replies = 1
            statuses.append(episode.send("ABAC"))
            wire.cut_replies = 0
        assert statuses.count(REPLAYED) == 3
        assert set(statuses) <= {COUNTED, REPLAYED}

    def test_a_request_cut_half_way_is_counted_once(self, client: Client, wire: Proxy) -> None:
        episode = Episode(client)
        for cuts in (1, 2, 1):
            assert episode.send("AAB") is COUNTED
            wire.cut_requests = cuts
            assert episode.send([b"A", b"B"] * 500) in (COUNTED, REPLAYED)
            wire.cut_requests = 0

    def test_a_service_out_of_reach_for_a_while(self, client: Client, wire: Proxy) -> None:
        episode = Episode(client)
        assert episode.send("AAB") is COUNTED
        wire.refuse(True)
        refused = wire.connections
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(episode.send, "ABAC")
            until(lambda: wire.connections >= refused + 2)
            wire.refuse(False)
            assert sent.result() is COUNTED
        assert episode.send("ABC") is COUNTED


class TestRedisThatIsKilled:
    def test_one_that_comes_back_empty_has_lost_its_episodes_and_nothing_is_counted_from_zero(self) -> None:
        with (
            RedisServer() as server,
            ServiceProcess("--store", server.url) as service,
            client_of(service.address) as client,
            grpc.insecure_channel(service.address) as plain,  # which calls also who does not serve
            redis_counting(server.url) as store,
        ):
            until(lambda: serves(client))
            hasty = Client(client.channel, attempts=2)
            old, older = Episode(client), Episode(store)
            for episode in (old, older):
                assert [episode.send("AAB"), episode.send("AB")] == [COUNTED, COUNTED]

            server.kill()
            assert old.send("ABAC", way=hasty) is UNAVAILABLE
            with pytest.raises(StoreUnavailableError):
                older.send("ABAC")
            until(lambda: health(plain) == NOT_SERVING)
            assert old.send("ABAC", way=hasty) is UNAVAILABLE

            server.restart()
            assert old.send("ABAC") is LOST  # as soon as an answer comes, also while the service's health lags behind
            for episode in (old, older):
                assert [episode.send("ABAC"), episode.repeat(), episode.send("", final=True)] == [LOST] * 3
            until(lambda: health(plain) == SERVING)
            for way in (client, store):
                new = Episode(way)
                assert [new.send("ABA"), new.send("ABA"), new.repeat()] == [COUNTED, COUNTED, REPLAYED]
                server.client().script_flush()
                assert [new.send("ABA"), new.repeat(), new.send("A", final=True)] == [COUNTED, REPLAYED, COUNTED]

    def test_one_that_writes_everything_down_goes_on_exactly(self) -> None:
        with (
            RedisServer("--appendonly", "yes", "--appendfsync", "always") as server,
            redis_counting(server.url) as store,
        ):
            episodes = [Episode(store) for _ in range(4)]
            with traffic(episodes) as counted:
                for _ in range(3):
                    wait_for_more(counted, 20)
                    server.restart()
            assert [each.repeat() for each in episodes] == [REPLAYED] * 4
            assert [each.send("ABCD", final=True) for each in episodes] == [COUNTED] * 4

    def test_one_that_goes_back_in_time_leaves_a_gap(self) -> None:
        with RedisServer() as server, redis_counting(server.url) as store:
            one, two, ended, begun = (Episode(store) for _ in range(4))
            for episode in (one, two, ended):
                assert [episode.send("AAB"), episode.send("ABC")] == [COUNTED, COUNTED]
            server.client().save()
            assert [one.send("CAB"), two.send("CAB"), two.send("ABAC")] == [COUNTED] * 3
            assert [ended.send("AB", final=True), begun.send("A"), begun.send("A")] == [COUNTED] * 3
            server.restart()

            assert [one.send("A"), two.send("A"), two.repeat(), begun.send("A")] == [GAP, GAP, GAP, LOST]
            assert one.repeat() is COUNTED  # again, and with the same counts as the first time
            assert [one.send("ABC"), one.repeat()] == [COUNTED, REPLAYED]
            assert [two.repeat(back=2), two.repeat(), two.send("ABC")] == [COUNTED] * 3
            assert [ended.repeat(), ended.repeat()] == [COUNTED, REPLAYED]

    def test_a_memory_store_that_is_killed_has_lost_its_episodes(self) -> None:
        with ServiceProcess("--store", "memory") as service, client_of(service.address) as client:
            episode = Episode(client)
            until(lambda: serves(client))
            assert [episode.send("AAB"), episode.send("AB")] == [COUNTED, COUNTED]
            service.kill()
            assert episode.send("ABC", way=Client(client.channel, attempts=2)) is UNAVAILABLE
            with ServiceProcess("--store", "memory", "--listen", service.address):
                assert [episode.send("ABC"), episode.repeat()] == [LOST, LOST]
                new = Episode(client)
                assert [new.send("ABA"), new.send("ABA"), new.repeat()] == [COUNTED, COUNTED, REPLAYED]


class TestTwoReplicas:
    @pytest.fixture
    def clients(self, service: ServiceProcess, replica: ServiceProcess) -> Iterator[list[Client]]:
        with client_of(service.address) as first, client_of(replica.address) as second:
            until(lambda: serves(first) and serves(second))
            yield [first, second]

    def test_a_batch_sent_to_both_in_turn_is_counted_once(self, clients: list[Client]) -> None:
        episode = Episode(clients[0])
        for number in range(20):
            first, second = clients[number % 2], clients[(number + 1) % 2]
            assert episode.send("AAB", final=number == 19, way=first) is COUNTED
            assert [episode.repeat(way=each) for each in (second, first)] == [REPLAYED, REPLAYED]

    def test_of_repeats_at_the_same_moment_exactly_one_counts(self, clients: list[Client]) -> None:
        episodes = [Episode(clients[0]) for _ in range(5)]
        start = threading.Barrier(12)

        def send(number: int, batches: list[Batch]) -> list[Answer]:
            start.wait()
            return clients[number % 2].count(RUN, 1, batches)

        with ThreadPoolExecutor(12) as pool:
            for _ in range(10):
                batches = [episode.next("ABAC") for episode in episodes]
                calls = list(pool.map(send, range(12), [batches] * 12))
                for episode, batch, answers in zip(episodes, batches, zip(*calls, strict=True), strict=True):
                    statuses = sorted(episode.check(batch, answer) for answer in answers)
                    assert statuses == [COUNTED] + [REPLAYED] * 11

    def test_when_one_is_killed_the_other_goes_on_without_a_wrong_or_missing_count(
        self, server: RedisServer, replica: ServiceProcess
    ) -> None:
        with (
            ServiceProcess("--store", server.url) as doomed,
            client_of(doomed.address, replica.address) as client,
        ):
            until(lambda: serves(client))
            episodes = [Episode(client) for _ in range(6)]
            with traffic(episodes) as counted:
                wait_for_more(counted, 30)
                doomed.kill()
                wait_for_more(counted, 60)
            assert [each.repeat() for each in episodes] == [REPLAYED] * 6
            assert [each.send("ABCD", final=True) for each in episodes] == [COUNTED] * 6


def slot_of(episode: Episode) -> int:
    return int(key_slot(f"{RUN}/{episode.name}".encode()))


class TestCluster:
    @pytest.fixture
    def store(self, cluster: RedisClusterServers) -> Iterator[Direct]:
        with redis_counting(cluster.url) as store:
            yield store

    def test_an_episode_is_in_one_slot_and_episodes_are_in_many(
        self, store: Direct, cluster: RedisClusterServers
    ) -> None:
        episodes = [Episode(store, name) for name in ("-", "a.b", "r", "t", *(next(NAMES) for _ in range(30)))]
        assert set(send_all({each: each.next("AAB") for each in episodes})) == {COUNTED}
        asked = cluster.nodes[0].client()
        slots: dict[str, list[int]] = {each.name: [] for each in episodes}
        for node in cluster.nodes:
            keys = list(node.client().scan_iter())
            assert keys
            for key in keys:
                name = key.decode().partition("/")[2].partition("}")[0]
                slots[name].append(asked.execute_command("CLUSTER KEYSLOT", key))
        assert all(len(each) == 2 and len(set(each)) == 1 for each in slots.values())
        assert len({each[0] for each in slots.values()}) > 20

    def test_a_dead_node_takes_only_its_own_episodes_with_it(self, store: Direct, cluster: RedisClusterServers) -> None:
        with through_grpc(store) as grpc_way:
            client = Client(grpc_way.channel, attempts=3)
            episodes = [Episode(client) for _ in range(12)]
            for _ in range(2):
                assert set(send_all({each: each.next("AAB") for each in episodes})) == {COUNTED}
            held = cluster.nodes[0].client().keys()
            away = [any(f"/{each.name}}}".encode() in key for key in held) for each in episodes]
            assert 0 < sum(away) < 12

            cluster.nodes[0].kill()
            statuses = send_all({each: each.next("ABAC") for each in episodes})
            # COUNTED and not REPLAYED: the client did not send again what had been counted.
            assert statuses == [UNAVAILABLE if dead else COUNTED for dead in away]
            statuses = send_all({each: each.next("CB") for each in episodes}, way=store)
            assert statuses == [UNAVAILABLE if dead else COUNTED for dead in away]

            cluster.nodes[0].restart()
            cluster.wait_until_ok()
            statuses = send_all({each: each.next("ABC") for each in episodes})
            assert statuses == [LOST if dead else COUNTED for dead in away]
            again = [Episode(client) for _ in range(12)]
            for _ in range(2):
                assert set(send_all({each: each.next("ABA") for each in again})) == {COUNTED}
            assert cluster.nodes[0].client().dbsize() > 0

    def test_a_slot_that_another_node_took_over_from_a_dead_one_is_found_there(
        self, store: Direct, cluster: RedisClusterServers
    ) -> None:
        old = Episode(store)
        assert [old.send("AAB"), old.send("ABC")] == [COUNTED, COUNTED]
        slot = slot_of(old)
        dead = cluster.nodes[cluster.owner(slot)]
        heir, witness = (node for node in cluster.nodes if node is not dead)
        dead.kill()
        for node in (heir, witness):
            cluster._command(node, "SETSLOT", slot, "NODE", cluster._node_id(heir))
        cluster._command(heir, "BUMPEPOCH")  # so that the dead one does not claim its slot when it returns

        assert (
            old.send_until_answered("ABAC")[0] is LOST
        )  # nobody is left to say MOVED: the store must ask for the slots anew
        new = next(each for each in (Episode(store) for _ in itertools.count()) if slot_of(each) == slot)
        assert [new.send("ABA"), new.send("ABA"), new.repeat()] == [COUNTED, COUNTED, REPLAYED]
        dead.start()
        cluster.wait_until_ok()
        assert [new.send("ABA"), old.send("ABAC")] == [COUNTED, LOST]

    def test_traffic_goes_on_while_slots_move(self, store: Direct, cluster: RedisClusterServers) -> None:
        episodes = [Episode(store) for _ in range(4)]
        slots = [slot_of(each) for each in episodes]
        with traffic(episodes) as counted:
            for slot in slots * 2:
                wait_for_more(counted, 5)
                cluster.move_slot(slot, (cluster.owner(slot) + 1) % 3)
            wait_for_more(counted, 5)
        assert [each.repeat() for each in episodes] == [REPLAYED] * 4
        assert [each.send("ABCD", final=True) for each in episodes] == [COUNTED] * 4

    def test_a_slot_that_is_half_moved(self, store: Direct, cluster: RedisClusterServers) -> None:
        torn, other = Episode(store), Episode(store)
        slot = slot_of(torn)
        new = next(each for each in (Episode(store) for _ in itertools.count()) if slot_of(each) == slot)
        source = cluster.owner(slot)
        target = (source + 1) % 3
        for _ in range(2):
            assert send_all({torn: torn.next("AAB"), other: other.next("AAB")}) == [COUNTED, COUNTED]

        cluster.begin_move(slot, target)  # its record is on one node and its table on the other
        assert [node.client().dbsize() for node in (cluster.nodes[source], cluster.nodes[target])].count(1) >= 1
        assert send_all({torn: torn.next("ABAC"), other: other.next("ABAC")}) == [UNAVAILABLE, COUNTED]
        cluster._migrate(cluster.nodes[source], cluster.nodes[target], cluster._keys(cluster.nodes[source], slot))
        # Both are on the new node, which serves only who was sent by the old one.
        assert send_all({torn: torn.next("ABAC"), other: other.next("ABAC")}) == [COUNTED, COUNTED]
        assert [torn.repeat(), torn.send("ABC"), torn.repeat()] == [REPLAYED, COUNTED, REPLAYED]
        # Redis answers TRYAGAIN for two keys that do not exist, since they may be on their way.
        assert send_all({new: new.next("ABA"), other: other.next("A")}) == [UNAVAILABLE, COUNTED]
        cluster.finish_move(slot, target)
        assert [torn.repeat(), torn.send("ABC"), torn.repeat()] == [REPLAYED, COUNTED, REPLAYED]
        assert [new.send("ABA"), new.send("ABA"), new.repeat()] == [COUNTED, COUNTED, REPLAYED]


def test_a_node_of_a_cluster_can_be_addressed_as_if_it_were_alone() -> None:
    """It refuses a script with the keys of many episodes. It holds all slots here, so each episode alone can be counted."""
    with RedisServer("--cluster-enabled", "yes") as server:
        client = server.client()
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        with redis_counting(server.url) as store:
            episodes = [Episode(store) for _ in range(20)]
            for _ in range(2):
                assert set(send_all({each: each.next("AAB") for each in episodes})) == {COUNTED}


def wide(first: int, number: int) -> list[bytes]:
    """So many distinct codes of 64 bytes."""
    return [b"%064d" % (first + i) for i in range(number)]


class TestRedisWithoutMemory:
    def test_a_full_one_refuses_batches_whole_and_lets_episodes_end(self) -> None:
        limits = ("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
        with RedisServer(*limits) as server, redis_counting(server.url) as store, through_grpc(store) as grpc_way:
            client = Client(grpc_way.channel)
            episodes: list[Episode] = []
            while not episodes or episodes[-1].counted:
                episodes.append(Episode(store))
                assert episodes[-1].send(wide(0, 500)) in (COUNTED, FULL)
            *live, refused = episodes
            assert len(live) > 5

            big = wide(250, 3000)  # three HSETs of the script, for codes that are new and codes that are not
            assert live[0].send(big) is FULL
            assert [live[0].repeat(), refused.send(wide(0, 500))] == [REPLAYED, FULL]
            assert refused.send(wide(0, 1), final=True) is FULL  # without a table to free it needs memory
            assert send_all({live[0]: live[0].next(big), live[1]: live[1].next(wide(250, 500), final=True)}) == [
                FULL,
                COUNTED,
            ]

            with ThreadPoolExecutor(1) as pool:
                batches = {live[0]: live[0].next(big), live[2]: live[2].next(wide(250, 500), final=True)}
                patient = pool.submit(send_all, batches, client)
                until(lambda: patient.done() or server.client().exists(f"leco1:{{{RUN}/{live[2].name}}}:t") == 0)
                assert [each.send(wide(250, 500), final=True) for each in live[3:]] == [COUNTED] * (len(live) - 3)
                # The other one COUNTED and not REPLAYED: only what was FULL was sent again.
                assert patient.result() == [COUNTED, COUNTED]
            assert [live[0].send(wide(0, 500)), live[0].repeat()] == [COUNTED, REPLAYED]
            assert [refused.send(wide(0, 500)), refused.send(wide(250, 500))] == [COUNTED, COUNTED]

    @pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
    def test_one_that_evicts_loses_episodes_and_miscounts_none(self, policy: str) -> None:
        with (
            RedisServer("--maxmemory", "4mb", "--maxmemory-policy", policy) as server,
            redis_counting(server.url) as store,
        ):
            episodes = [Episode(store) for _ in range(40)]
            evicted = server.client()
            lost = went_on = 0
            for number, i in itertools.product(range(12), range(40)):
                status = episodes[i].send(wide(100 * number, 150))
                assert status in (COUNTED, LOST)
                if status is LOST:
                    lost += 1
                    episodes[i] = Episode(store)
                elif len(episodes[i].counted) > 1 and evicted.info("stats")["evicted_keys"]:
                    went_on += 1
            assert lost >= 10
            assert went_on >= 10


class TestMemoryStoreThatIsNearlyFull:
    def test_a_large_last_batch_is_counted_or_refused_and_nothing_breaks(self) -> None:
        """What is left of the memory is enough for the answer to the last batch, but codes have used up the spare places."""
        with memory_counting() as roomy:
            for _ in range(6):
                assert Episode(roomy).send(wide(0, 10_000)) is COUNTED
            taken = roomy.store.used_bytes  # type: ignore[attr-defined]
        with memory_counting(max_bytes=taken + 2_500_000) as store:
            first, *others, last = [Episode(store) for _ in range(7)]
            assert [each.send(wide(0, 10_000)) for each in (first, *others)] == [COUNTED] * 6
            assert last.send(wide(0, 10_000)) in (COUNTED, FULL)
            assert first.send(wide(20_000, 65_535), final=True) in (COUNTED, FULL)
            assert [each.send(wide(5_000, 10_000), final=True) for each in others] == [COUNTED] * 5
            assert Episode(store).send(wide(0, 10_000)) is COUNTED


class TestKeysThatSomebodyDeletes:
    @pytest.fixture
    def episode(self, store: Direct) -> Episode:
        return Episode(store)

    def keys(self, server: RedisServer, episode: Episode) -> tuple[bytes, bytes]:
        """The record and the table, as Redis knows them."""
        client = server.client()
        kinds = {client.type(key): key for key in client.scan_iter(f"*/{episode.name}}}*")}
        return kinds[b"string"], kinds[b"hash"]

    def test_without_its_table_an_episode_is_lost_though_its_last_answer_is_not(
        self, server: RedisServer, episode: Episode
    ) -> None:
        assert [episode.send("AAB"), episode.send("ABC")] == [COUNTED, COUNTED]
        server.client().delete(self.keys(server, episode)[1])
        assert [episode.send("AB"), episode.repeat(), episode.send("AB", final=True)] == [LOST, REPLAYED, LOST]

    def test_a_table_that_lacks_a_code_is_as_good_as_none(self, server: RedisServer, episode: Episode) -> None:
        assert [episode.send("AAB"), episode.send("ABC")] == [COUNTED, COUNTED]
        server.client().hdel(self.keys(server, episode)[1], b"A")
        assert [episode.send("AB"), episode.send("AB", final=True)] == [LOST, LOST]

    def test_without_its_record_an_episode_is_lost(self, server: RedisServer, episode: Episode) -> None:
        assert [episode.send("AAB"), episode.send("ABC")] == [COUNTED, COUNTED]
        server.client().delete(self.keys(server, episode)[0])
        assert [episode.send("AB"), episode.repeat(), episode.send("AB", final=True)] == [LOST, LOST, LOST]

    @pytest.mark.parametrize("final", [False, True])
    def test_a_first_batch_without_its_record_starts_from_nothing(
        self, server: RedisServer, episode: Episode, final: bool
    ) -> None:
        assert episode.send("AAB") is COUNTED
        server.client().delete(self.keys(server, episode)[0])
        # The table still holds the codes: a repeat that added to it would double them.
        first = Episode(episode.way, episode.name)
        assert [first.send("AAB", final=final), first.repeat()] == [COUNTED, REPLAYED]
        if not final:
            assert [first.send("ABC"), first.send("ABC", final=True)] == [COUNTED, COUNTED]

    def test_a_repeat_of_the_first_batch_without_its_table_is_replayed_and_the_next_is_lost(
        self, server: RedisServer, episode: Episode
    ) -> None:
        assert episode.send("AAB") is COUNTED
        server.client().delete(self.keys(server, episode)[1])
        assert [episode.repeat(), episode.send("AB")] == [REPLAYED, LOST]


class TestKeysThatAreSomethingElse:
    def test_an_episode_whose_table_is_no_hash_holds_up_no_other(self, server: RedisServer, store: Direct) -> None:
        before, broken, after = episodes = [Episode(store) for _ in range(3)]
        assert send_all({each: each.next("AAB") for each in episodes}) == [COUNTED] * 3
        server.client().set(f"leco1:{{{RUN}/{broken.name}}}:t", "other")
        for _ in range(2):
            assert send_all({each: each.next("ABC") for each in episodes}) == [COUNTED, UNAVAILABLE, COUNTED]
        with pytest.raises(StoreUnavailableError, match="WRONGTYPE"):
            broken.send("ABC")
        assert [before.repeat(), after.repeat()] == [REPLAYED, REPLAYED]


class TestRedisThatHangs:
    def test_a_call_ends_in_time_and_what_redis_does_late_is_not_counted_twice(self) -> None:
        with (
            RedisServer() as server,
            ServiceProcess("--store", server.url) as service,
            client_of(service.address) as client,
            redis_counting(server.url) as store,
        ):
            until(lambda: serves(client))
            hasty = Client(client.channel, attempt_seconds=0.4, patience_seconds=1.5)
            served, direct, crowd = Episode(client), Episode(store), [Episode(client) for _ in range(10)]
            everyone = [served, direct, *crowd]
            assert [each.send("AAB") for each in everyone] == [COUNTED] * 12

            server.pause()
            with ThreadPoolExecutor(12) as pool:
                waiting = pool.submit(direct.send, "ABAC")
                hurried = [pool.submit(each.send, "ABAC", way=hasty) for each in crowd]
                answered = [pool.submit(served.send, "ABAC", way=Client(client.channel, patience_seconds=4.0))]
                assert {each.result(PATIENCE) for each in hurried} == {UNAVAILABLE}
                assert [each.result(PATIENCE) for each in answered] == [UNAVAILABLE]
                with pytest.raises(StoreUnavailableError):
                    waiting.result(PATIENCE)
            server.resume()

            # The calls were given up, but Redis had their requests and executes them now.
            assert {each.send("ABAC") for each in (served, *crowd)} <= {COUNTED, REPLAYED}
            redis, record = server.client(), f"leco1:{{{RUN}/{direct.name}}}:r"
            until(lambda: redis.getrange(record, 0, 3) == b"\1\0\0\0")  # the sequence: nobody has repeated this one yet
            assert direct.send("ABAC") is REPLAYED
            assert [each.send("ABAC") for each in everyone] == [COUNTED] * 12


class TestClientAndItsPatience:
    def test_it_ends_in_time_without_counts(self) -> None:
        with Proxy(HOST, 9) as nobody, client_of(f"{HOST}:{nobody.port}", patience_seconds=1.0) as client:
            begin = time.monotonic()
            [answer] = client.count(RUN, 1, [Batch("e", 0, [b"A"], final=False)])
            assert (answer.status, answer.counts) == (UNAVAILABLE, None)
            assert answer.detail
            assert 0.3 < time.monotonic() - begin < PATIENCE / 8

    def test_a_mistake_is_raised_at_once_and_nothing_of_the_call_is_counted(self, client: Client) -> None:
        good = Episode(client)
        begin = time.monotonic()
        with pytest.raises(grpc.RpcError, match=r"episodes\[1\].episode_id") as refusal:
            client.count(RUN, 1, [good.next("A"), Batch("no/name", 0, [b"A"], final=False)])
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert time.monotonic() - begin < PATIENCE / 8, "it is not repeated until patience ends"
        assert good.send("A") is COUNTED
