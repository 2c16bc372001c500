"""Requests that nobody should send: each is refused clearly, counts nothing, and the service goes on as before.

Between any two of them a normal client counts its episode with the real service and gets exactly the counts that it would get
alone. Most refused requests also carry that client's next batch: were it counted, the client would notice.
"""

from __future__ import annotations

import os
import random
import socket
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leco.v1.hash_count_pb2 import CountRequest, CountResponse, EpisodeBatch
from leco.v1.hash_count_pb2_grpc import HashCountServiceStub
from services.hashcount.store import Status
from support.redis_servers import RedisServer
from support.service_process import ServiceProcess
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

METHOD = "/leco.v1.HashCountService/Count"
NAMES = "1 to 64 characters of A-Z a-z 0-9 . _ -"
MIB = 1 << 20
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT


class Target:
    """A service, a way to send it anything, and its normal client."""

    def __init__(self, service: ServiceProcess, channel: grpc.Channel) -> None:
        self.service = service
        self.channel = channel
        self._episode, self._sequence = 0, 0
        self._stub = HashCountServiceStub(channel)

    @property
    def next_batch(self) -> EpisodeBatch:
        """The normal client's, with the codes "AA" of width 1."""
        return EpisodeBatch(episode_id=f"normal-{self._episode}", sequence=self._sequence, size=2)

    def ask(self, request: CountRequest) -> CountResponse:
        return self._stub.Count(request, timeout=PATIENCE)

    def ask_raw(self, request: bytes) -> bytes:
        return call_raw(self.channel, METHOD, request)

    def refusal(self, request: CountRequest | bytes) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.ask_raw(request if isinstance(request, bytes) else request.SerializeToString())
        return caught.value.code(), caught.value.details() or ""

    def count_normally(self) -> Status:
        """Sends the normal client's next batch and checks its counts."""
        response = self.ask(CountRequest(run="normal", code_width=1, episodes=[self.next_batch], codes=b"AA"))
        [status] = statuses_of(response)
        counts = np.frombuffer(response.counts, "<u4").tolist()
        if status is Status.COUNTED:
            assert counts == [2 * self._sequence + 1, 2 * self._sequence + 2]
            self._sequence += 1
        elif (
            status is not Status.FULL
        ):  # somebody meddled with the episode: the next test shall not suffer from it, too
            self._episode, self._sequence = self._episode + 1, 0
        return status

    def counts_normally(self) -> bool:
        return self.count_normally() is Status.COUNTED

    def batches(self) -> float:
        """How many batches had any outcome at all."""
        values = self.service.metrics()
        return sum(values[f"leco_hashcount_batches_total {status.name.lower()}"] for status in Status)


@pytest.fixture(scope="module", params=["memory", "redis"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with RedisServer() as redis:
        store = ("--max-memory", "32MiB") if request.param == "memory" else ("--store", redis.url)
        with ServiceProcess(*store) as service, open_widely(service.address) as channel:
            target = Target(service, channel)
            assert target.counts_normally()
            yield target


def call_raw(channel: grpc.Channel, method: str, request: bytes) -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    return call(request, timeout=PATIENCE)


def statuses_of(response: CountResponse) -> list[Status]:
    return [Status(result.status) for result in response.episodes]


def open_widely(address: str) -> grpc.Channel:
    """A channel that sends anything of any size."""
    return grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])


def normal(batch: EpisodeBatch, *others: EpisodeBatch, **changes: object) -> CountRequest:
    """The normal client's next request with something wrong in it."""
    fields = {"run": "normal", "code_width": 1, "episodes": [batch, *others], "codes": b"AA"} | changes
    return CountRequest(**fields)  # type: ignore[arg-type]


def named(name: str) -> EpisodeBatch:
    return EpisodeBatch(episode_id=name, size=1)


def sized(size: int) -> EpisodeBatch:
    return EpisodeBatch(episode_id="other", size=size)


class Case(NamedTuple):
    request: Callable[[EpisodeBatch], CountRequest]
    message: str


def run_case(run: str) -> Case:
    return Case(lambda batch: normal(batch, run=run), f"run must be {NAMES}, and not {run!r}")


def name_case(name: str) -> Case:
    return Case(
        lambda batch: normal(batch, named(name), codes=b"AAB"),
        f"episodes[1].episode_id must be {NAMES}, and not {name!r}",
    )


def codes_case(codes: bytes, *, width: int = 1) -> Case:
    return Case(
        lambda batch: normal(batch, codes=codes, code_width=width),
        f"codes must have {2 * width} bytes (2 codes of {width} bytes, by the sizes of the episodes), and not {len(codes)}",
    )


def width_case(width: int) -> Case:
    return Case(lambda batch: normal(batch, code_width=width), f"code_width must be 1 to 256 bytes, and not {width}")


CASES = {
    "an empty request": Case(lambda _: CountRequest(), f"run must be {NAMES}, and not ''"),
    "no run": run_case(""),
    "a run with a space": run_case("a run"),
    "a run with a line break at its end": run_case("run\n"),
    "a run with a slash, as in a key of Redis": run_case("a/b"),
    "a run in braces, as a slot of Redis": run_case("{run}"),
    "a run with a NUL": run_case("a\0b"),
    "a run that is not ASCII": run_case("läuft"),
    "a run of digits that are not ASCII": run_case("٣"),
    "a run of 65 characters": run_case("r" * 65),
    "no width": width_case(0),
    "a width of 257": width_case(257),
    "the largest width": width_case(2**32 - 1),
    "no episodes": Case(
        lambda _: CountRequest(run="normal", code_width=1), "episodes must be 1 to 4096 in a call, and not 0"
    ),
    "4,097 episodes": Case(
        lambda batch: normal(batch, *(named(f"e{i}") for i in range(4096)), codes=bytes(2 + 4096)),
        "episodes must be 1 to 4096 in a call, and not 4097",
    ),
    "codes cut off": codes_case(b"A"),
    "codes cut off within a code": codes_case(b"ABA", width=2),
    "no codes": codes_case(b""),
    "a code too many": codes_case(b"AAA"),
    "half a code too many": codes_case(b"ABABA", width=2),
    "a size that is a lie": Case(
        lambda batch: normal(batch, sized(5)),
        "codes must have 7 bytes (7 codes of 1 bytes, by the sizes of the episodes), and not 2",
    ),
    "sizes that add up to 17 GB": Case(
        lambda batch: normal(
            batch, *(EpisodeBatch(episode_id=f"e{i}", size=65_535) for i in range(1023)), code_width=256
        ),
        f"a call must have at most 524288 codes, and not {2 + 1023 * 65_535}; make it two calls",
    ),
    "a size of 65,536": Case(
        lambda batch: normal(batch, sized(65_536), codes=bytes(2 + 65_536)),
        "episodes[1].size must be at most 65535, and not 65536",
    ),
    "the largest size": Case(
        lambda batch: normal(batch, sized(2**32 - 1)), "episodes[1].size must be at most 65535, and not 4294967295"
    ),
    "a batch of nothing": Case(
        lambda batch: normal(batch, sized(0)), "episodes[1].size may be 0 only in a final batch"
    ),
    "an episode twice": Case(
        lambda batch: normal(batch, named("e"), named("e"), codes=b"AAAA"),
        "episodes[2]: episode 'e' is in the call twice; put it into two calls",
    ),
    "an episode without a name": name_case(""),
    "an episode in braces": name_case("{normal}"),
    "an episode with a closing brace": name_case("normal}:t"),
    "an episode with a line break": name_case("normal\n"),
    "an episode with a NUL": name_case("normal\0"),
    "an episode that is not ASCII": name_case("эпизод"),
    "an episode that looks like another": name_case("nοrmal"),  # noqa: RUF001  # with a Greek omicron
    "an episode of 65 characters": name_case("e" * 65),
    "an episode of a million characters": Case(
        lambda batch: normal(batch, named("ä" * MIB), codes=b"AAB"),
        f"episodes[1].episode_id must be {NAMES}, and not {'ä' * 60!r}... ({MIB} characters)",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_request_against_the_contract_is_refused_and_counts_nothing(target: Target, case: Case) -> None:
    before = target.batches()
    assert target.refusal(case.request(target.next_batch)) == (INVALID_ARGUMENT, case.message)
    assert target.batches() == before
    assert target.counts_normally()


@pytest.mark.parametrize("sequence", [1, 2**32 - 1])
def test_an_unknown_run_is_lost_for_each_episode(target: Target, sequence: int) -> None:
    batches = [EpisodeBatch(episode_id=f"e{i}", sequence=sequence, size=1, final=i % 2 == 0) for i in range(10)]
    response = target.ask(CountRequest(run="nobody-knows", code_width=1, episodes=batches, codes=bytes(10)))
    assert statuses_of(response) == [Status.LOST] * 10
    assert all(f"sequence {sequence} came" in result.detail for result in response.episodes)
    assert response.counts == bytes(4 * 10)
    assert target.counts_normally()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_of_5_mb_is_too_large_however_it_is_packed(target: Target, compression: grpc.Compression) -> None:
    before = target.batches()
    request = normal(target.next_batch, codes=bytes(5 * MIB))
    with pytest.raises(grpc.RpcError) as caught:
        HashCountServiceStub(target.channel).Count(request, timeout=PATIENCE, compression=compression)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in (caught.value.details() or "")
    assert target.batches() == before
    assert target.counts_normally()


def test_headers_of_a_megabyte_are_too_large(target: Target) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        HashCountServiceStub(target.channel).Count(
            normal(target.next_batch), timeout=PATIENCE, metadata=(("large", "x" * MIB),)
        )
    assert caught.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    assert target.counts_normally()


@pytest.mark.parametrize(
    "method", ["/leco.v1.HashCountService/Discount", "/leco.v1.HashCountService/", "/leco.v9.Nothing/Count", "nonsense"]
)
def test_a_method_that_does_not_exist_is_said_not_to(target: Target, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call_raw(target.channel, method, b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert target.counts_normally()


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="HTTP/1"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), id="TLS"),
        pytest.param(b"*1\r\n$4\r\nPING\r\n" * 10, id="Redis"),
        pytest.param(random.Random(1).randbytes(100_000), id="random"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100, id="HTTP/2 that goes wrong"),
    ],
)
def test_another_protocol_on_the_port_is_cut_off(target: Target, garbage: bytes) -> None:
    host, _, port = target.service.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        assert target.counts_normally(), "while the other one has said nothing yet"
        try:
            connection.sendall(garbage)
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass  # cut off even before we had said everything
    assert target.counts_normally()


def test_bytes_that_are_no_request_at_all_are_an_invalid_argument(target: Target) -> None:
    """A malformed request is INVALID_ARGUMENT by the contract, and no reason for a traceback in the log."""
    lines = len(target.service.lines)
    for request in (b"\xff" * 20, b"\x0a\x03run\xff", b"\x0a\x02\xff\xfe"):
        code, detail = target.refusal(request)
        assert (code, bool(detail)) == (INVALID_ARGUMENT, True)
    assert target.counts_normally()
    assert [line for line in target.service.lines[lines:] if "Traceback" in line] == []


def is_allowed(request: CountRequest) -> bool:
    """The contract of CountRequest, word by word from its proto file."""
    allowed = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
    names = [request.run, *(batch.episode_id for batch in request.episodes)]
    return (
        all(1 <= len(name) <= 64 and set(name) <= allowed for name in names)
        and 1 <= request.code_width <= 256
        and 1 <= len(request.episodes) <= 4096
        and len(set(names[1:])) == len(names[1:])
        and all(batch.size <= 65_535 and (batch.size > 0 or batch.final) for batch in request.episodes)
        and len(request.codes) == request.code_width * sum(batch.size for batch in request.episodes)
    )


def check_any_answer(target: Target, raw: bytes) -> None:
    """What holds for any bytes whatever: counts for what the contract allows, a refusal of the client for all else."""
    try:
        request = CountRequest.FromString(raw)
    except Exception:  # noqa: BLE001  # protobuf has several ways to say that it cannot be read
        request = None
    if request is not None and is_allowed(request):
        response = CountResponse.FromString(target.ask_raw(raw))
        assert len(response.episodes) == len(request.episodes)
        counts = np.frombuffer(response.counts, "<u4")
        assert len(counts) == sum(batch.size for batch in request.episodes)
        begin = 0
        for batch, result in zip(request.episodes, response.episodes, strict=True):
            ours = counts[begin : begin + batch.size]
            counted = Status(result.status) in (Status.COUNTED, Status.REPLAYED)
            assert np.all(ours > 0) if counted else not ours.any() and result.detail
            begin += batch.size
    else:
        code, detail = target.refusal(raw)
        assert detail
        # To be read as "INVALID_ARGUMENT"; that bytes which are no message at all are, too, has a test of its own above.
        assert code is INVALID_ARGUMENT if request is not None else code is not grpc.StatusCode.UNAVAILABLE
    assert target.counts_normally()


FUZZ = settings(max_examples=150, derandomize=True, deadline=None, database=None)
MODEL = CountRequest(
    run="fuzzed-run",
    code_width=3,
    episodes=[
        EpisodeBatch(episode_id="first", size=4),
        EpisodeBatch(episode_id="second", size=2, final=True),
        EpisodeBatch(episode_id="third", size=1, sequence=70_000),
    ],
    codes=b"abcdefghiabc" + b"xyzxyz" + b"123",
).SerializeToString()


@FUZZ
@given(raw=st.binary(max_size=200))
def test_random_bytes_get_an_answer(target: Target, raw: bytes) -> None:
    check_any_answer(target, raw)


@FUZZ
@given(
    keep=st.integers(0, len(MODEL)),
    flips=st.lists(st.integers(0, 8 * len(MODEL) - 1), max_size=3),
    tail=st.binary(max_size=4),
)
def test_requests_damaged_on_the_way_get_an_answer(
    target: Target, keep: int, flips: Sequence[int], tail: bytes
) -> None:
    damaged = bytearray(MODEL)
    for bit in flips:
        damaged[bit // 8] ^= 1 << bit % 8
    check_any_answer(target, bytes(damaged[:keep]) + tail)


@pytest.mark.parametrize("target", ["memory"], indirect=True)
def test_thousands_of_hostile_requests_leave_no_memory_behind(target: Target) -> None:
    small = [case for case in CASES.values() if len(case.request(target.next_batch).SerializeToString()) < 10_000]

    def attack(rounds: int) -> None:
        for _ in range(rounds):
            for case in small:
                assert target.refusal(case.request(target.next_batch))[0] is INVALID_ARGUMENT
            target.refusal(random.Random(rounds).randbytes(500))

    attack(10)
    before = target.service.memory_bytes()
    attack(100)
    assert len(small) * 100 > 3000
    assert target.service.memory_bytes() - before < 30 * MIB
    assert target.counts_normally()


def test_large_refused_requests_are_not_kept() -> None:
    """Not even for a while: a few dozen would be enough to have the process killed by whoever limits its memory."""
    lie = CountRequest(run="r", code_width=2, episodes=[named("e")], codes=os.urandom(4 * MIB - 1000))
    with ServiceProcess("--max-memory", "32MiB") as service, open_widely(service.address) as channel:
        check_memory_stays(Target(service, channel), lie, INVALID_ARGUMENT)


def test_large_requests_are_not_kept_when_redis_is_away() -> None:
    batches = [EpisodeBatch(episode_id=f"e{i}", size=65_000) for i in range(8)]
    valid = CountRequest(run="r", code_width=8, episodes=batches, codes=os.urandom(8 * 65_000 * 8))
    with (
        ServiceProcess("--store", "redis://127.0.0.1:1/0") as service,  # where nobody listens
        open_widely(service.address) as channel,
    ):
        check_memory_stays(Target(service, channel), valid, grpc.StatusCode.UNAVAILABLE)


def check_memory_stays(target: Target, request: CountRequest, code: grpc.StatusCode) -> None:
    for _ in range(2):
        assert target.refusal(request)[0] is code
    peak = target.service.memory_bytes("VmHWM")
    for _ in range(8):
        assert target.refusal(request)[0] is code
    assert target.service.memory_bytes("VmHWM") - peak < 100 * MIB


class Shape(NamedTuple):
    """What fills a store: in each call so many new episodes of so many codes, all different, of so many bytes."""

    episodes: int
    codes: int
    width: int


SHAPES = {
    "few large tables": Shape(1, 20_000, 9),
    "many tiny tables": Shape(4096, 1, 1),
    "wide codes": Shape(4, 1000, 256),
}


class Filler:
    """Fills a memory store with episodes of one shape, and knows which of them it holds."""

    LIMIT = 32 * MIB

    def __init__(self, target: Target, shape: Shape) -> None:
        self.target = target
        self.shape = shape
        self.held: list[str] = []
        self._names = (f"filler-{number}" for number in count())
        self._codes = b"".join(number.to_bytes(shape.width, "big") for number in range(shape.codes))

    def ask(self, names: Sequence[str], sequence: int, *, count: int, final: bool = False) -> list[Status]:
        """One batch with all codes for each; the count of each of them must be `count`."""
        batches = [EpisodeBatch(episode_id=n, sequence=sequence, size=self.shape.codes, final=final) for n in names]
        codes = self._codes * len(names)
        response = self.target.ask(CountRequest(run="fill", code_width=self.shape.width, episodes=batches, codes=codes))
        statuses = statuses_of(response)
        counts = [count if status in (Status.COUNTED, Status.REPLAYED) else 0 for status in statuses]
        assert np.array_equal(np.frombuffer(response.counts, "<u4"), np.repeat(counts, self.shape.codes))
        for status, result in zip(statuses, response.episodes, strict=True):
            assert ("--max-memory" in result.detail) == (status is Status.FULL)
        assert self.target.service.metrics()["leco_hashcount_memory_bytes"] <= self.LIMIT
        return statuses

    def add(self) -> bool:
        """One call with new episodes; whether all were taken."""
        names = [next(self._names) for _ in range(self.shape.episodes)]
        statuses = self.ask(names, 0, count=1)
        assert set(statuses) <= {Status.COUNTED, Status.FULL}
        self.held += [name for name, status in zip(names, statuses, strict=True) if status is Status.COUNTED]
        return Status.FULL not in statuses

    def fill(self) -> None:
        """Adds until the store is full."""
        while self.add():
            assert len(self.held) * self.shape.codes * self.shape.width < 2 * self.LIMIT, "it never gets full"

    def replay(self) -> None:
        """Asks again for everything that is held: it must all be there."""
        for names in batched(self.held, self.shape.episodes):
            assert self.ask(names, 0, count=1) == [Status.REPLAYED] * len(names)

    def end(self) -> None:
        """Ends everything that is held, with a second visit of each code."""
        for names in batched(self.held, self.shape.episodes):
            assert self.ask(names, 1, count=2, final=True) == [Status.COUNTED] * len(names)
        self.held.clear()


def batched(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[begin : begin + size] for begin in range(0, len(names), size)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_full_memory_store_refuses_to_grow_and_forgets_nothing(shape: Shape) -> None:
    with (
        ServiceProcess("--max-memory", "32MiB", "--retry-window", "1s") as service,
        open_widely(service.address) as channel,
    ):
        target = Target(service, channel)
        filler = Filler(target, shape)
        assert service.metrics()["leco_hashcount_memory_limit_bytes"] == Filler.LIMIT
        assert target.counts_normally()
        filler.add()  # so that what a call of this size needs by itself is there already
        before = service.memory_bytes()

        filler.fill()
        first = len(filler.held)
        values = service.metrics()
        assert values["leco_hashcount_batches_total full"] >= 1
        assert values["leco_hashcount_memory_bytes"] > 0.75 * Filler.LIMIT, "full before it is full"
        assert service.memory_bytes() - before > Filler.LIMIT / 4, "full of what?"

        assert target.count_normally() in (Status.COUNTED, Status.FULL)
        filler.replay()  # nothing was evicted to make room
        filler.end()  # which works although the store is full
        until(target.counts_normally)
        until(lambda: not filler.add() and len(filler.held) > 0.95 * first)  # when all the final answers have expired
        filler.replay()
        assert service.memory_bytes("VmHWM") - before < Filler.LIMIT + 16 * MIB
