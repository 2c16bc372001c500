"""What counting means, for every store, directly and through gRPC."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import redis

from services.hashcount.store import Status
from support.harness import RETRY_WINDOW, TTL, Answer, Batch, redis_counting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.harness import Counting
    from support.redis_servers import RedisServer

RUNS = itertools.count()


class Run:
    """A run of its own for one test, with codes of one byte unless told."""

    def __init__(self, way: Counting) -> None:
        self.way = way
        self.name = f"run-{next(RUNS)}"

    def send(self, sequence: int, codes: str | Sequence[bytes], *, episode: str = "e", final: bool = False) -> Answer:
        split = [bytes([ord(c)]) for c in codes] if isinstance(codes, str) else codes
        [answer] = self.way.count(self.name, len(split[0]) if split else 1, [Batch(episode, sequence, split, final)])
        return answer


@pytest.fixture
def run(way: Counting) -> Run:
    return Run(way)


def counted(*counts: int) -> Answer:
    return Answer(Status.COUNTED, list(counts))


def replayed(*counts: int) -> Answer:
    return Answer(Status.REPLAYED, list(counts))


def test_counts_are_in_order_and_include_repeats_within_the_batch(run: Run) -> None:
    assert run.send(0, "ABACAB") == counted(1, 1, 2, 1, 3, 2)


def test_counts_go_on_over_batches(run: Run) -> None:
    run.send(0, "AAB")
    assert run.send(1, "ABC") == counted(3, 2, 1)
    assert run.send(2, "CA") == counted(2, 4)


def test_episodes_of_one_call_are_counted_apart_and_answered_in_order(run: Run) -> None:
    batches = [Batch(f"e{i}", 0, [b"x"] * (i + 1), final=False) for i in range(50)]
    assert run.way.count(run.name, 1, batches) == [counted(*range(1, i + 2)) for i in range(50)]


def test_more_episodes_and_codes_than_one_script_counts(run: Run) -> None:
    batches = [Batch(f"e{i}", 0, [b"%04d" % (j % 90) for j in range(i)], final=i == 0) for i in range(300)]
    expected = [[1 + j // 90 for j in range(i)] for i in range(300)]
    assert run.way.count(run.name, 4, batches) == [counted(*counts) for counts in expected]
    assert run.way.count(run.name, 4, batches) == [replayed(*counts) for counts in expected]


def test_equal_episode_ids_in_two_runs_are_two_episodes(way: Counting) -> None:
    first, second = Run(way), Run(way)
    assert first.send(0, "AA") == counted(1, 2)
    assert second.send(0, "A") == counted(1)
    assert second.send(1, "A") == counted(2)
    assert first.send(1, "A") == counted(3)


def test_a_retry_gets_the_same_answer_and_changes_nothing(run: Run) -> None:
    assert run.send(0, "AB") == counted(1, 1)
    for _ in range(3):
        assert run.send(0, "AB") == replayed(1, 1)
    assert run.send(1, "AAB") == counted(2, 3, 2)
    assert run.send(1, "AAB") == replayed(2, 3, 2)
    assert run.send(2, "A") == counted(4)


def test_a_late_duplicate_is_stale_and_changes_nothing(run: Run) -> None:
    run.send(0, "A")
    run.send(1, "A")
    answer = run.send(0, "A")
    assert (answer.status, answer.counts) == (Status.STALE, None)
    assert "sequence 0" in answer.detail
    assert "1 was counted" in answer.detail
    assert run.send(2, "A") == counted(3)


def test_a_skipped_batch_is_a_gap_and_changes_nothing(run: Run) -> None:
    run.send(0, "A")
    answer = run.send(2, "A")
    assert (answer.status, answer.counts) == (Status.GAP, None)
    assert "sequence 2" in answer.detail
    assert "1 is the next" in answer.detail
    assert run.send(1, "A") == counted(2)


def test_an_episode_that_does_not_begin_at_zero_is_lost(run: Run) -> None:
    answer = run.send(1, "A")
    assert (answer.status, answer.counts) == (Status.LOST, None)
    assert "no visit table" in answer.detail


@pytest.mark.parametrize(("codes", "final"), [("AC", False), ("A", False), ("BA", False), ("AB", True)])
def test_the_same_sequence_with_other_content_is_a_conflict(run: Run, codes: str, final: bool) -> None:
    run.send(0, "AB")
    answer = run.send(0, codes, final=final)
    assert (answer.status, answer.counts) == (Status.CONFLICT, None)
    assert run.send(1, "A") == counted(2)


def test_another_code_width_in_an_episode_is_a_conflict(run: Run) -> None:
    run.send(0, [b"ab", b"cd"])
    answer = run.send(1, [b"abc"])
    assert answer.status is Status.CONFLICT
    assert "codes of 3 bytes" in answer.detail
    assert run.send(1, [b"ab"]) == counted(2)


def test_a_final_batch_frees_the_table_and_its_answer_is_kept_for_retries(run: Run) -> None:
    before = run.way.live_episodes()
    run.send(0, "AB")
    assert run.way.live_episodes() == before + 1
    assert run.send(1, "AB", final=True) == counted(2, 2)
    assert run.way.live_episodes() == before
    run.way.advance(RETRY_WINDOW - 1)
    assert run.send(1, "AB", final=True) == replayed(2, 2)
    answer = run.send(2, "A")
    assert (answer.status, answer.counts) == (Status.FINISHED, None)
    assert run.send(0, "AB").status is Status.STALE
    run.way.advance(2)
    assert run.send(1, "AB", final=True).status is Status.LOST
    assert run.send(2, "A").status is Status.LOST


def test_an_episode_of_one_batch(run: Run) -> None:
    before = run.way.live_episodes()
    assert run.send(0, "ABA", final=True) == counted(1, 1, 2)
    assert run.send(0, "ABA", final=True) == replayed(1, 1, 2)
    assert run.way.live_episodes() == before


def test_an_empty_final_batch_ends_an_episode(run: Run) -> None:
    run.send(0, "A")
    assert run.send(1, "", final=True) == counted()
    assert run.send(1, "", final=True) == replayed()
    assert run.send(2, "A").status is Status.FINISHED


def test_an_abandoned_episode_expires_and_one_in_use_does_not(run: Run) -> None:
    run.send(0, "A", episode="abandoned")
    run.send(0, "A", episode="in-use")
    run.way.advance(TTL - 1)
    assert run.send(1, "A", episode="in-use") == counted(2)
    run.way.advance(2)
    assert run.send(1, "A", episode="abandoned").status is Status.LOST
    assert run.send(2, "A", episode="in-use") == counted(3)
    run.way.advance(TTL + 1)
    assert run.way.live_episodes() == 0


def test_an_expired_episode_may_begin_again_from_nothing(run: Run) -> None:
    run.send(0, "AAA")
    run.way.advance(TTL + 1)
    assert run.send(0, "A") == counted(1)


def test_codes_are_bytes_and_nothing_is_special_about_any(run: Run) -> None:
    codes = [b"\0\0", b"\0", b"\xff\0", b"\r\n", b"  ", b"00", b"\0\0"]
    padded = [code.rjust(2, b"\1") for code in codes]
    assert run.send(0, padded) == counted(1, 1, 1, 1, 1, 1, 2)
    trailing = [b"a\0", b"a\1", b"a\0"]
    assert run.send(1, trailing) == counted(1, 1, 2)


@pytest.mark.parametrize("width", [1, 9, 27, 256])
def test_code_widths(run: Run, width: int) -> None:
    assert run.send(0, [b"a" * width, b"a" * (width - 1) + b"b", b"a" * width]) == counted(1, 1, 2)


def test_the_largest_batch(run: Run) -> None:
    """65,535 codes: more than one chunk of the script, and multiplicities beyond one byte."""
    codes = [(i % 5000 if i % 3 else 7).to_bytes(2, "big") for i in range(65_535)]
    seen: dict[bytes, int] = {}
    expected = []
    for code in codes:
        seen[code] = seen.get(code, 0) + 1
        expected.append(seen[code])
    assert run.send(0, codes) == counted(*expected)
    assert run.send(0, codes) == replayed(*expected)
    assert run.send(1, [codes[0]]) == counted(seen[codes[0]] + 1)


def test_each_episode_of_a_call_has_its_own_outcome(run: Run) -> None:
    run.send(0, "A", episode="replayed")
    run.send(0, "A", episode="gap")
    batches = [
        Batch("lost", 4, [b"A"], final=False),
        Batch("replayed", 0, [b"A"], final=False),
        Batch("counted", 0, [b"A", b"A"], final=False),
        Batch("gap", 2, [b"A"], final=False),
    ]
    answers = run.way.count(run.name, 1, batches)
    assert [a.status for a in answers] == [Status.LOST, Status.REPLAYED, Status.COUNTED, Status.GAP]
    assert [a.counts for a in answers] == [None, [1], [1, 2], None]


def test_of_many_duplicates_at_once_exactly_one_counts(run: Run) -> None:
    batches = [Batch(f"e{i}", 0, [b"A", b"B", b"A"], final=False) for i in range(8)]
    with ThreadPoolExecutor(16) as pool:
        calls = list(pool.map(lambda _: run.way.count(run.name, 1, batches), range(32)))
    for answers in zip(*calls, strict=True):
        assert [a.counts for a in answers] == [[1, 1, 2]] * 32
        assert sorted(a.status for a in answers) == [Status.COUNTED] + [Status.REPLAYED] * 31
    assert run.send(1, "A", episode="e0") == counted(3)


def test_a_count_of_redis_that_would_not_fit_stays_at_the_largest(redis_server: RedisServer) -> None:
    with (
        redis_counting(redis_server.url, redis_server.advance) as way,
        redis.Redis.from_url(redis_server.url) as client,
    ):
        run = Run(way)
        run.send(0, "A")
        client.hset(f"leco1:{{{run.name}/e}}:t", "A", str(2**32 - 2))  # as after 4,294,967,294 visits
        assert run.send(1, "AAA") == counted(*[2**32 - 1] * 3)
        assert run.send(2, "AB") == counted(2**32 - 1, 1)
