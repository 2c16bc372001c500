"""What run-wide counts mean, for every store, directly and through gRPC."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from leco.rpc.hashcount_client import CodeBatch, HashCountClient
from leco.v1 import hash_count_pb2
from services.hashcount import servicer
from services.hashcount.address import parse_address
from services.hashcount.distinct import parts_of
from services.hashcount.memory import MemoryStore
from services.hashcount.redis_store import RedisStore
from services.hashcount.run_counts import PART_BITS, PARTS
from services.hashcount.store import Status
from services.hashcount.topology import connect
from support.harness import (
    RETRY_WINDOW,
    TTL,
    Batch,
    Clock,
    Direct,
    LoopThread,
    memory_counting,
    redis_counting,
    through_grpc,
)
from support.redis_servers import HOST, Proxy
from support.run_counting import RunAnswer, count_run_wide
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import redis

    from support.harness import Counting, ThroughGrpc
    from support.redis_servers import RedisClusterServers, RedisServer

RUNS = itertools.count()
PART_LIMIT = 2


def part_of(code: bytes) -> int:
    return int(parts_of(np.frombuffer(code, f"V{len(code)}"), len(code), PART_BITS)[0])


class Run:
    """A run of its own for one test, with codes of one byte unless told."""

    def __init__(self, way: Counting) -> None:
        self.way = way
        self.name = f"whole-run-{next(RUNS)}"

    def send(
        self,
        sequence: int,
        codes: str | Sequence[bytes],
        *,
        episode: str = "e",
        final: bool = False,
        run_wide: bool = True,
    ) -> RunAnswer:
        [answer] = self.send_all([(episode, sequence, codes, final)], run_wide=run_wide)
        return answer

    def send_all(
        self, batches: Sequence[tuple[str, int, str | Sequence[bytes], bool]], *, run_wide: bool = True
    ) -> list[RunAnswer]:
        split = [
            Batch(episode, sequence, [bytes([ord(c)]) for c in codes] if isinstance(codes, str) else codes, final)
            for episode, sequence, codes, final in batches
        ]
        width = next((len(batch.codes[0]) for batch in split if batch.codes), 1)
        return count_run_wide(self.way, self.name, width, split, run_wide=run_wide)


@pytest.fixture
def run(way: Counting) -> Run:
    return Run(way)


def counted(counts: list[int], run_counts: list[int] | None) -> RunAnswer:
    return RunAnswer(Status.COUNTED, counts, run_counts)


def replayed(counts: list[int], run_counts: list[int] | None) -> RunAnswer:
    return RunAnswer(Status.REPLAYED, counts, run_counts)


def test_a_run_is_counted_over_its_episodes_and_in_the_order_of_the_batches(run: Run) -> None:
    assert run.send_all([("e", 0, "ABAC", False), ("f", 0, "AB", False), ("g", 0, "CAA", False)]) == [
        counted([1, 1, 2, 1], [1, 1, 2, 1]),
        counted([1, 1], [3, 2]),
        counted([1, 1, 2], [2, 4, 5]),
    ]
    assert run.send(1, "CBD", episode="f") == counted([1, 2, 1], [3, 3, 1])


def test_the_end_of_an_episode_frees_its_counts_and_not_the_run_s(run: Run) -> None:
    assert run.send(0, "AB", episode="e") == counted([1, 1], [1, 1])
    assert run.send(1, "AA", episode="e", final=True) == counted([2, 3], [2, 3])
    assert run.send(0, "AB", episode="f", final=True) == counted([1, 1], [4, 2])
    run.way.advance(RETRY_WINDOW + 1)
    assert run.send(0, "BA", episode="g") == counted([1, 1], [3, 5])


def test_an_empty_final_batch_has_no_counts_to_give(run: Run) -> None:
    run.send(0, "A")
    assert run.send(1, "", final=True) == counted([], [])
    assert run.send(1, "", final=True) == replayed([], [])
    assert run.send_all([("f", 0, "A", False), ("g", 0, "", True)]) == [counted([1], [2]), counted([], [])]


def test_two_runs_are_counted_apart(way: Counting) -> None:
    first, second = Run(way), Run(way)
    assert first.send(0, "AA") == counted([1, 2], [1, 2])
    assert second.send(0, "A") == counted([1], [1])
    assert first.send(0, "A", episode="f") == counted([1], [3])
    assert second.send(0, "AA", episode="f") == counted([1, 2], [2, 3])


def test_a_repeat_adds_nothing_and_gets_the_same_numbers_if_nothing_came_in_between(run: Run) -> None:
    assert run.send(0, "AABAC") == counted([1, 2, 1, 3, 1], [1, 2, 1, 3, 1])
    for _ in range(3):
        assert run.send(0, "AABAC") == replayed([1, 2, 1, 3, 1], [1, 2, 1, 3, 1])
    assert run.send(1, "A", final=True) == counted([4], [4])
    assert run.send(1, "A", final=True) == replayed([4], [4])
    assert run.send(0, "AB", episode="f") == counted([1, 1], [5, 2])


def test_a_repeat_gets_the_numbers_of_the_present_table_as_if_its_visits_were_the_last(run: Run) -> None:
    """By hand: A was seen 2 + 3 times, so two visits at the end are numbers 4 and 5. Nobody else saw B."""
    assert run.send(0, "AAB", episode="e") == counted([1, 2, 1], [1, 2, 1])
    assert run.send(0, "AAA", episode="f") == counted([1, 2, 3], [3, 4, 5])
    assert run.send(0, "AAB", episode="e") == replayed([1, 2, 1], [4, 5, 1])
    assert run.send(0, "A", episode="g") == counted([1], [6])


def test_each_batch_of_a_call_has_its_own_outcome(run: Run) -> None:
    """What is replayed sees the table as the call found it, not what other batches of the call add."""
    run.send(0, "AB", episode="replayed")
    run.send(0, "A", episode="gap")
    assert run.send_all(
        [
            ("lost", 4, "AAA", False),
            ("first", 0, "AC", False),
            ("replayed", 0, "AB", False),
            ("gap", 2, "A", False),
            ("second", 0, "CBA", False),
        ]
    ) == [
        RunAnswer(Status.LOST),
        counted([1, 1], [3, 1]),
        replayed([1, 1], [2, 1]),
        RunAnswer(Status.GAP),
        counted([1, 1, 1], [2, 2, 4]),
    ]


def test_what_is_refused_adds_nothing(run: Run) -> None:
    run.send(0, "A")
    run.send(1, "A")
    refused = [run.send(sequence, codes) for sequence, codes in ((0, "A"), (1, "B"), (3, "A"), (1, [b"ABC"]))]
    run.send(2, "", final=True)
    refused += [run.send(3, "A"), run.send(5, "A", episode="unknown")]
    assert refused == [
        RunAnswer(status)
        for status in (Status.STALE, Status.CONFLICT, Status.GAP, Status.CONFLICT, Status.FINISHED, Status.LOST)
    ]
    assert run.send(0, "AB", episode="f") == counted([1, 1], [3, 1])


def test_what_is_not_asked_for_is_not_answered_and_not_counted_in_the_run(run: Run) -> None:
    assert run.send(0, "AA", run_wide=False) == counted([1, 2], None)
    assert run.send(0, "A", episode="f") == counted([1], [1])
    assert run.send(1, "A", run_wide=False) == counted([3], None)
    assert run.send(2, "A") == counted([4], [2])


def test_a_batch_whose_counting_was_cut_short_is_missing_in_the_run_and_counts_in_its_episode(run: Run) -> None:
    """A crash between the two steps leaves what a call without run_wide leaves: counted in the episode only."""
    run.send(0, "A", episode="before")
    run.send(0, "AAAB", run_wide=False)
    assert run.send(0, "AAAB") == replayed([1, 2, 3, 1], [1, 2, 3, 1]), "at least its own visits"
    assert run.send(1, "AB") == counted([4, 2], [2, 1])


def test_codes_of_two_widths_in_a_run_are_different_codes(run: Run) -> None:
    assert run.send(0, [b"a", b"\0"], episode="narrow") == counted([1, 1], [1, 1])
    assert run.send(0, [b"a\0", b"\0\0", b"a\0"], episode="wide") == counted([1, 1, 2], [1, 1, 2])
    assert run.send(1, [b"a"], episode="narrow") == counted([2], [2])


@pytest.mark.parametrize("width", [1, 9, 27, 256])
def test_code_widths(run: Run, width: int) -> None:
    codes = [b"a" * width, b"a" * (width - 1) + b"b", b"a" * width]
    assert run.send(0, codes) == counted([1, 1, 2], [1, 1, 2])
    assert run.send(0, codes, episode="f") == counted([1, 1, 2], [3, 2, 4])


def test_many_codes(run: Run) -> None:
    """More in each part of the table than one chunk of the script, and more visits of one code than two bytes hold."""
    codes = [(i % 40_000 if i % 3 else 7).to_bytes(3, "big") for i in range(65_535)]
    seen: Counter[bytes] = Counter()
    for sequence in range(3):
        expected = []
        for code in codes:
            seen[code] += 1
            expected.append(seen[code])
        assert run.send(sequence, codes) == counted(expected, expected)
    assert seen[codes[0]] > 65_535
    assert run.send(0, [codes[0], codes[1]], episode="f") == counted([1, 1], [seen[codes[0]] + 1, seen[codes[1]] + 1])


def test_an_idle_run_is_forgotten(run: Run) -> None:
    run.send(0, "AAA", final=True)
    run.way.advance(TTL - 1)
    assert run.send(0, "A", episode="f", final=True) == counted([1], [4])
    run.way.advance(TTL + 1)
    assert run.send(0, "AA", episode="g") == counted([1, 2], [1, 2])


def test_a_code_that_comes_seldom_is_remembered_while_its_run_is_in_use(run: Run) -> None:
    """Also if no code of the same part of the table comes in between."""
    seldom = b"A"
    often = next(bytes([i]) for i in range(256) if part_of(bytes([i])) != part_of(seldom))
    run.send(0, [seldom], episode="first", final=True)
    for i in range(4):
        run.way.advance(TTL - 1)
        assert run.send(0, [often], episode=f"e{i}", final=True) == counted([1], [i + 1])
    assert run.send(0, [seldom], episode="last") == counted([1], [2])


def test_what_several_actors_count_at_once_sums_up(run: Run) -> None:
    """Of n visits of a code in the whole run each has its own number, 1 to n, and each episode its own counts."""
    actors, calls, codes = 8, 12, [b"A", b"B", b"A", b"C", b"A", b"B"]

    def act(actor: int) -> list[RunAnswer]:
        return [
            answer
            for call in range(calls)
            for answer in run.send_all([(f"{actor}-{e}", call, codes, call == calls - 1) for e in range(3)])
        ]

    with ThreadPoolExecutor(actors) as pool:
        answers = [answer for each in pool.map(act, range(actors)) for answer in each]
    numbers: dict[bytes, list[int]] = {code: [] for code in codes}
    for answer in answers:
        assert answer.status is Status.COUNTED
        assert answer.run_counts is not None
        for code, number in zip(codes, answer.run_counts, strict=True):
            numbers[code].append(number)
    for code, found in numbers.items():
        assert sorted(found) == list(range(1, actors * calls * 3 * codes.count(code) + 1))
    assert [answer.counts for answer in answers] == [
        [3 * i + 1, 2 * i + 1, 3 * i + 2, i + 1, 3 * i + 3, 2 * i + 2]
        for _ in range(actors)
        for i in range(calls)
        for _ in range(3)
    ]


def test_of_many_duplicates_at_once_one_adds_its_visits(run: Run) -> None:
    batches = [(f"e{i}", 0, "ABA", False) for i in range(4)]
    with ThreadPoolExecutor(8) as pool:
        calls = list(pool.map(lambda _: run.send_all(batches), range(16)))
    for answers in zip(*calls, strict=True):
        assert sorted(a.status for a in answers) == [Status.COUNTED] + [Status.REPLAYED] * 15
        assert all(a.run_counts is not None and min(a.run_counts) >= 1 for a in answers)
    assert run.send(0, "AB", episode="after") == counted([1, 1], [9, 5])


@contextlib.contextmanager
def store_of(
    kind: str, url: str, advance: Callable[[float], None], on_run_codes: Callable[[int, int], None]
) -> Iterator[Direct]:
    """A store whose runs may have PART_LIMIT codes in each part."""
    loop, clock = LoopThread(), Clock()
    limit = PARTS * PART_LIMIT
    store: MemoryStore | RedisStore
    if kind == "memory":
        store = MemoryStore(
            max_bytes=1 << 30,
            ttl=TTL,
            retry_window=RETRY_WINDOW,
            clock=clock,
            max_run_codes=limit,
            on_run_codes=on_run_codes,
        )
        advance = clock.advance
    else:
        topology = connect(parse_address(url), password=None, threads=4)
        store = RedisStore(
            topology,
            ttl=TTL,
            retry_window=RETRY_WINDOW,
            threads=4,
            on_round_trip=lambda _seconds, _failed: None,
            max_run_codes=limit,
            on_run_codes=on_run_codes,
        )
    try:
        yield Direct(store, loop, advance)
    finally:
        loop.run(store.close())
        loop.close()


@pytest.mark.parametrize("kind", ["memory", "redis", "cluster"])
def test_a_code_beyond_the_limit_is_new_each_time_and_the_others_go_on(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url, advance = "", lambda _: None
    if kind != "memory":
        server: RedisServer = request.getfixturevalue(f"redis_{'server' if kind == 'redis' else 'cluster'}")
        url, advance = server.url, server.advance
    told: list[tuple[int, int]] = []
    with store_of(kind, url, advance, lambda new, unstored: told.append((new, unstored))) as limited:
        run = Run(limited)
        codes = [i.to_bytes(2, "big") for i in range(300)]
        places = Counter[int]()
        stored = []  # the first PART_LIMIT of each part, in the order in which they come
        for code in codes:
            places[part_of(code)] += 1
            stored.append(places[part_of(code)] <= PART_LIMIT)
        assert sum(stored) == PARTS * PART_LIMIT, "the codes reach every part"
        twice = [*codes, *codes]
        assert run.send(0, twice) == counted([1] * 300 + [2] * 300, [1] * 300 + [2] * 300)
        assert told.pop() == (sum(stored), 300 - sum(stored))
        expected = [3 if kept else 1 for kept in stored]
        assert run.send(0, codes, episode="f") == counted([1] * 300, expected)
        assert told.pop() == (0, 300 - sum(stored))
        assert run.send(0, codes, episode="f") == replayed([1] * 300, expected)
        assert told.pop() == (0, 0), "a repeat would not have been stored anyway"
        assert run.send(1, codes, episode="f") == counted([2] * 300, [4 if kept else 1 for kept in stored])
        other = Run(limited)
        assert other.send(0, codes[:1]) == counted([1], [1]), "the limit is of each run"
        assert told == [(0, 300 - sum(stored)), (1, 0)]
        crowd = [i.to_bytes(3, "big") for i in range(40_000)]  # more in each part than one chunk of the script
        assert Run(limited).send(0, crowd) == counted([1] * 40_000, [1] * 40_000)
        assert told[2:] == [(PARTS * PART_LIMIT, 40_000 - PARTS * PART_LIMIT)]
        limited.advance(TTL + 1)
        assert run.send(0, codes[-1:], episode="g") == counted([1], [1])
        assert run.send(0, codes[-1:], episode="h") == counted([1], [2]), "a run that was forgotten has room again"


@pytest.mark.parametrize("kind", ["redis_server", "redis_cluster"])
def test_replicas_of_the_service_share_the_table(kind: str, request: pytest.FixtureRequest) -> None:
    server: RedisServer = request.getfixturevalue(kind)
    with redis_counting(server.url) as one, redis_counting(server.url) as other, through_grpc(other) as remote:
        first, second = Run(one), Run(remote)
        second.name = first.name
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(
                lambda run, name: [run.send(i, "AB", episode=name).run_counts for i in range(50)],
                (first, second),
                ("e", "f"),
            )
            numbers = [counts for each in found for counts in each if counts is not None]
        assert [sorted(numbers_of_code) for numbers_of_code in zip(*numbers, strict=True)] == [[*range(1, 101)]] * 2
        assert second.send(49, "AB", episode="e") == replayed([50, 50], [100, 100]), "a repeat may go to any replica"


def keys_of(client: redis.Redis, run: Run) -> list[bytes]:
    return sorted(client.scan_iter(match=f"leco1:{{{run.name}#*"))


def test_the_table_is_in_parts_with_an_expiry_that_a_cluster_spreads(redis_cluster: RedisClusterServers) -> None:
    with redis_counting(redis_cluster.url) as store:
        run = Run(store)
        run.send(0, [bytes([i]) for i in range(256)])
        found = []
        for node in redis_cluster.nodes:
            client = node.client()
            keys = keys_of(client, run)
            assert keys, "every node has some"
            assert all(0 < client.pttl(key) <= 1000 * TTL for key in keys)
            found += [client.hgetall(key) for key in keys]
        assert len(found) == PARTS
        assert {code: count for part in found for code, count in part.items()} == {bytes([i]): b"1" for i in range(256)}


def test_without_the_flag_redis_and_the_wire_see_nothing_of_it(redis_server: RedisServer) -> None:
    client = redis_server.client()
    with redis_counting(redis_server.url) as store:
        run = Run(store)
        client.config_resetstat()
        run.send(0, "ABA", run_wide=False)
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
        assert keys_of(client, run) == []
        run.send(1, "ABA")
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 2 + PARTS
        assert {int(key.partition(b"#")[2].partition(b"}")[0]) for key in keys_of(client, run)} == {
            part_of(b"A"),
            part_of(b"B"),
        }
    old = hash_count_pb2.CountRequest(run="r", code_width=1, codes=b"A")
    assert hash_count_pb2.CountRequest(run="r", code_width=1, codes=b"A", run_wide=False) == old
    with memory_counting() as memory, through_grpc(memory) as remote:
        answers: list[hash_count_pb2.CountResponse] = []
        for sequence, run_wide in enumerate((False, True)):
            batch = hash_count_pb2.EpisodeBatch(episode_id="e", sequence=sequence, size=1)
            sent = hash_count_pb2.CountRequest(run="r", code_width=1, codes=b"A", episodes=[batch], run_wide=run_wide)
            answers.append(raw_call(remote, sent))
        assert answers[0].run_counts == b""
        assert answers[0].ByteSize() + 6 == answers[1].ByteSize(), "four bytes for the count, two around them"


def raw_call(remote: ThroughGrpc, request: hash_count_pb2.CountRequest) -> hash_count_pb2.CountResponse:
    client = HashCountClient(remote.channel, run="r", code_width=1)
    return client._stub.Count(request, timeout=PATIENCE)


def test_a_part_that_cannot_be_had_makes_its_batches_unavailable_and_a_repeat_gives_what_there_is(
    redis_server: RedisServer,
) -> None:
    client = redis_server.client()
    with redis_counting(redis_server.url) as store:
        run = Run(store)
        bad = b"A"
        good = next(bytes([i]) for i in range(256) if part_of(bytes([i])) != part_of(bad))
        key = f"leco1:{{{run.name}#{part_of(bad)}}}:n"
        client.set(key, "not a table")
        assert run.send_all([("e", 0, [bad, good], False), ("f", 0, [good], False), ("g", 7, [bad], False)]) == [
            RunAnswer(Status.UNAVAILABLE),
            counted([1], [2]),
            RunAnswer(Status.LOST),
        ]
        client.delete(key)
        assert run.send(0, [bad, good], episode="e") == replayed([1, 1], [1, 2]), "the episode was counted once"
        assert run.send(1, [bad, good], episode="e") == counted([2, 2], [1, 3]), "and the visit of A is missing"


def test_visits_are_added_once_although_the_answer_is_lost_on_its_way(redis_server: RedisServer) -> None:
    """The episode's script is simply sent again; the run's is not, because that would add the visits twice."""
    with Proxy(HOST, redis_server.port) as proxy, contextlib.closing(LoopThread()) as loop:
        cut_next = False

        def after_each_round_trip(_seconds: float, _failed: bool) -> None:
            nonlocal cut_next
            if cut_next:
                proxy.cut_replies, cut_next = 1, False

        topology = connect(parse_address(proxy.url), password=None, threads=1)
        store = RedisStore(topology, ttl=TTL, retry_window=RETRY_WINDOW, threads=1, on_round_trip=after_each_round_trip)
        try:
            with through_grpc(Direct(store, loop, lambda _: None)) as remote:
                run = Run(remote)
                assert run.send(0, "AB") == counted([1, 1], [1, 1])
                cut_next = True
                answer = run.send(1, "AAB")
                assert proxy.cuts == 1
                assert answer == replayed([2, 3, 2], [2, 3, 2]), (
                    "the client repeated the call, and nothing was added twice"
                )
                assert run.send(2, "AB") == counted([4, 3], [4, 3])
                proxy.cut_replies = 1
                assert run.send(3, "A") == replayed([5], [4]), (
                    "here the first script's answer was lost: the visit is missing"
                )
                assert proxy.cuts == 2
                assert run.send(4, "A") == counted([6], [5])
        finally:
            loop.run(store.close())


def test_a_full_redis_adds_no_visits_and_still_answers(redis_server: RedisServer) -> None:
    client = redis_server.client()
    told: list[tuple[int, int]] = []
    with store_of("redis", redis_server.url, redis_server.advance, lambda *each: told.append(each)) as store:
        run = Run(store)
        run.send(0, "AAB", episode="e")
        client.config_set("maxmemory", 1)
        try:
            assert run.send(0, "A", episode="f").status is Status.FULL
            assert run.send(1, "ABC", episode="e", final=True) == counted([3, 2, 1], [3, 2, 1]), "it freed a table"
            assert told == [(2, 0), (0, 3)]
        finally:
            client.config_set("maxmemory", 0)
        assert run.send(0, "ABC", episode="f") == counted([1, 1, 1], [3, 2, 1])


def test_an_older_service_that_does_not_know_the_flag_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(
        request: hash_count_pb2.CountRequest, *rest: object, response: Callable[..., object] = servicer.response
    ) -> object:
        request.run_wide = False
        return response(request, *rest)

    monkeypatch.setattr(servicer, "response", old)
    with memory_counting() as memory, through_grpc(memory) as remote:
        client = HashCountClient(remote.channel, run="r", code_width=1)
        [result] = client.count([CodeBatch("e", 0, np.zeros((2, 1), np.uint8))], run_wide=True)
    assert result.counts is not None
    assert (result.counts.tolist(), result.run_counts) == ([1, 2], None)
    assert "does not know run-wide counts" in result.detail
