"""The queue alone: who gets a place, what is taken, what is dropped, and what the actor is told."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from leco.rpc.codec import CodecError
from leco.rpc.interceptor import Refusal
from leco.types import EpisodeSummary, Trajectory
from services.learner import streams
from services.learner import trajectory_queue as module
from services.learner.metrics import LearnerMetrics
from services.learner.trajectory_queue import TrajectoryQueue
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import FrameType

    from services.learner.streams import Stream

EPISODE = EpisodeSummary(1.5, 7, success=True)


def made(number: int, version: int = 1, *, counted: bool = True, episodes: Sequence[EpisodeSummary] = ()) -> Trajectory:
    nothing = np.zeros(0, np.float32)
    return Trajectory(
        number=number,
        parameters_version=version,
        previous_action=-1,
        previous_reward=0.0,
        observation=np.zeros(0, np.uint8),
        start=np.zeros(0, np.bool_),
        terminal_observation=np.zeros(0, np.uint8),
        action=np.zeros(0, np.int32),
        reward=nothing,
        behaviour_logits=nothing,
        core_state=nothing,
        count=np.ones(1, np.uint32) if counted else None,
        episodes=tuple(episodes),
    )


class Case:
    """An queue with its metrics and the episodes that it told of. Version 1 is published."""

    def __init__(self, **changes: Any) -> None:
        self.registry = CollectorRegistry()
        self.told: list[tuple[int, Sequence[EpisodeSummary]]] = []
        settings: dict[str, Any] = {"capacity": 8, "window": 4, "max_policy_lag": 2, "needs_counts": True} | changes
        self.queue = TrajectoryQueue(
            **settings,
            metrics=LearnerMetrics(self.registry),
            on_episodes=lambda version, episodes: self.told.append((version, episodes)),
        )
        self.queue.published(1)

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"leco_learner_{name}", labels)
        assert value is not None, name
        return value

    def dropped(self) -> dict[str, float]:
        reasons = ("lag", "uncounted", "duplicate")
        return {reason: self.value("trajectories_dropped_total", reason=reason) for reason in reasons}

    def taken(self, count: int) -> list[int]:
        return [each.number for each in self.queue.take(count, 0) or ()]


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 20))

    run.__name__ = test.__name__
    return run


def name(actor: int) -> bytes:
    return actor.to_bytes(16, "big")


async def settled() -> None:
    """After everything that a thread asked the loop to do."""
    for _ in range(3):
        await asyncio.sleep(0)


@on_a_loop
async def test_the_answer_to_a_hello_is_what_is_known_and_the_first_credits() -> None:
    case = Case(capacity=3)
    assert await case.queue.open(name(1)).news() == (0, 3)
    assert await case.queue.open(name(2)).news() == (0, 0)


@on_a_loop
async def test_trajectories_are_taken_in_the_order_of_their_arrival() -> None:
    case = Case()
    one, other = case.queue.open(name(1)), case.queue.open(name(2))
    for stream, number in ((one, 1), (other, 5), (one, 2), (other, 6), (other, 7)):
        case.queue.offer(stream, made(number))
    assert case.queue.take(6, 0) is None
    assert case.taken(4) == [1, 5, 2, 6]
    assert case.taken(1) == [7]
    assert case.value("trajectories_taken_total") == 5


@on_a_loop
async def test_changes_that_nobody_read_are_one_answer() -> None:
    case = Case(capacity=4)
    stream = case.queue.open(name(1))
    await stream.news()
    for number in (1, 2, 3):
        case.queue.offer(stream, made(number))
    assert await stream.news() == (3, 0)
    assert case.taken(2) == [1, 2]
    assert await stream.news() == (3, 2)


@on_a_loop
async def test_a_take_in_another_thread_grants_at_once() -> None:
    case = Case(capacity=2, window=2)
    stream = case.queue.open(name(1))
    await stream.news()
    waiting = asyncio.create_task(asyncio.to_thread(case.queue.take, 2, 10))
    case.queue.offer(stream, made(1))
    assert await stream.news() == (1, 0)
    case.queue.offer(stream, made(2))
    assert await stream.news() == (2, 0)
    assert await asyncio.wait_for(stream.news(), PATIENCE) == (2, 2)
    assert [each.number for each in await waiting or ()] == [1, 2]


@on_a_loop
async def test_held_places_are_granted_when_they_are_freed_and_not_before() -> None:
    case = Case(capacity=3, window=3)
    stream = case.queue.open(name(1))
    for number in (1, 2):
        case.queue.offer(stream, made(number))
    assert [each.number for each in case.queue.take(2, 0, hold=True) or ()] == [1, 2]
    case.queue.offer(stream, made(3))
    case.queue.published(2)
    await settled()
    assert await stream.news() == (3, 3)
    assert (stream.credits, case.value("outstanding_credits")) == (0, 0)
    case.queue.free()
    await settled()
    assert await stream.news() == (3, 2)
    case.queue.free()
    await settled()
    assert stream.credits == 2, "they are freed once"


@on_a_loop
async def test_a_place_goes_to_the_stream_with_the_fewest_credits() -> None:
    case = Case(capacity=8, window=8)
    rich = case.queue.open(name(1))
    for number in (1, 2, 3, 4, 5):
        case.queue.offer(rich, made(number))
    poor, poorer = case.queue.open(name(2)), case.queue.open(name(3))
    for stream in (poor, poorer):
        case.queue.offer(stream, made(1, version=1, counted=False))
    assert (rich.credits, poor.credits, poorer.credits) == (3, 0, 0)
    assert case.taken(3) == [1, 2, 3]
    await settled()
    assert (rich.credits, poor.credits, poorer.credits) == (3, 2, 1)
    assert case.taken(2) == [4, 5]
    await settled()
    assert (rich.credits, poor.credits, poorer.credits) == (3, 3, 2)


@on_a_loop
async def test_among_equals_the_one_that_waited_longest_is_next() -> None:
    """With fewer places than streams, none starves."""
    case = Case(capacity=2, window=4)
    streams = [case.queue.open(name(actor)) for actor in range(8)]
    turns: list[int] = []
    for _ in range(20 + 40):
        holder = min((each.turn, actor) for actor, each in enumerate(streams) if each.credits)[1]
        case.queue.offer(streams[holder], made((streams[holder].last or 0) + 1))
        turns.append(holder)
        assert len(case.taken(1)) == 1
        await settled()
    assert Counter(turns[20:]) == dict.fromkeys(range(8), 5), "once the first come is no longer ahead"


@on_a_loop
async def test_no_stream_holds_more_than_the_window() -> None:
    case = Case(capacity=100, window=4)
    streams = [case.queue.open(name(actor)) for actor in range(3)]
    assert [stream.credits for stream in streams] == [4, 4, 4]
    assert case.value("outstanding_credits") == 12


@on_a_loop
async def test_the_credits_of_a_closed_stream_go_to_others() -> None:
    case = Case(capacity=4, window=4)
    first = case.queue.open(name(1))
    second = case.queue.open(name(2))
    assert (first.credits, second.credits) == (4, 0)
    case.queue.leave(first)
    case.queue.leave(first)  # twice is once
    assert second.credits == 4
    assert (case.value("open_streams"), case.value("outstanding_credits")) == (1, 4)


@on_a_loop
async def test_without_a_credit_nothing_is_taken() -> None:
    case = Case(capacity=1)
    stream = case.queue.open(name(1))
    case.queue.offer(stream, made(1))
    with pytest.raises(
        Refusal, match=r"^a trajectory came without a credit; expected none before one is granted$"
    ) as refusal:
        case.queue.offer(stream, made(2))
    assert refusal.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert case.taken(1) == [1]


@on_a_loop
async def test_a_duplicate_is_acknowledged_and_dropped_and_its_credit_returns() -> None:
    case = Case(capacity=4, window=2)
    stream = case.queue.open(name(1))
    case.queue.offer(stream, made(1))
    case.queue.offer(stream, made(2))
    await stream.news()
    case.queue.offer(stream, made(1, episodes=[EPISODE]))
    assert await stream.news() == (2, 1)
    assert stream.credits == 2
    assert case.dropped() == {"lag": 0, "uncounted": 0, "duplicate": 1}
    assert case.taken(2) == [1, 2]
    assert case.told == []


@on_a_loop
async def test_numbers_are_known_over_streams() -> None:
    case = Case()
    stream = case.queue.open(name(1))
    for number in (1, 2):
        case.queue.offer(stream, made(number))
    case.queue.leave(stream)
    again = case.queue.open(name(1))
    assert await again.news() == (2, 4)
    case.queue.offer(again, made(2))
    case.queue.offer(again, made(3))
    assert case.taken(3) == [1, 2, 3]


@pytest.mark.parametrize("number", [4, 10**9])
def test_a_skipped_number_is_refused_and_not_taken(number: int) -> None:
    async def test() -> None:
        case = Case()
        stream = case.queue.open(name(1))
        case.queue.offer(stream, made(2))
        with pytest.raises(Refusal, match=rf"^number is {number}, expected 3: a trajectory was skipped$") as refusal:
            case.queue.offer(stream, made(number))
        assert refusal.value.code is grpc.StatusCode.FAILED_PRECONDITION
        case.queue.leave(stream)
        assert await case.queue.open(name(1)).news() == (2, 4)
        assert case.taken(1) == [2]
        assert case.queue.take(1, 0) is None

    asyncio.run(test())


@on_a_loop
async def test_an_unknown_incarnation_may_begin_anywhere_until_it_has_begun() -> None:
    case = Case()
    case.queue.leave(case.queue.open(name(1)))
    stream = case.queue.open(name(1))
    assert await stream.news() == (0, 4)
    case.queue.offer(stream, made(40))
    with pytest.raises(Refusal):
        case.queue.offer(stream, made(42))
    assert await stream.news() == (40, 1)


@on_a_loop
async def test_no_number_of_other_incarnations_makes_a_trajectory_train_twice() -> None:
    case = Case(capacity=4)
    stream = case.queue.open(name(1))
    case.queue.offer(stream, made(1))
    case.queue.leave(stream)  # its acknowledgement is lost
    assert case.taken(1) == [1]
    for other in range(2, 20_000):
        stranger = case.queue.open(name(other))
        case.queue.offer(stranger, made(1, counted=other % 2 == 0))
        case.queue.leave(stranger)
        case.taken(1)
    again = case.queue.open(name(1))
    case.queue.offer(again, made(1))
    assert case.dropped()["duplicate"] == 1
    assert case.taken(1) == []


@on_a_loop
async def test_an_incarnation_is_forgotten_when_all_that_it_sent_would_be_too_old() -> None:
    case = Case(capacity=100, max_policy_lag=2)
    for version in range(1, 50):
        case.queue.published(version)
        for actor in (1000 + version, 7):
            stream = case.queue.open(name(actor))
            if actor != 7 or version < 10:
                case.queue.offer(stream, made((stream.last or 0) + 1, version))
            case.queue.leave(stream)  # 7 comes again and again, but sends no more
        dropped = case.queue.open(name(5000 + version))
        case.queue.offer(dropped, made(1, version, counted=False))
        case.queue.leave(dropped)
        assert len(case.queue._remembered) <= 5
        assert (name(7) in case.queue._remembered) == (version <= 11)
    late = case.queue.open(name(1001))
    case.queue.offer(late, made(1, 1))
    assert case.dropped()["lag"] > 0
    assert case.dropped()["duplicate"] == 0


@on_a_loop
async def test_a_second_stream_takes_over() -> None:
    case = Case(capacity=4)
    older = case.queue.open(name(1))
    case.queue.offer(older, made(1))
    newer = case.queue.open(name(1))
    assert await newer.news() == (1, 3)
    assert older.ending is not None
    assert older.ending[0] is grpc.StatusCode.ALREADY_EXISTS
    assert await older.news() == (1, 0)
    assert await older.news() is None
    with pytest.raises(Refusal):
        case.queue.offer(older, made(2))
    case.queue.leave(older)
    case.queue.offer(newer, made(2))
    assert case.taken(2) == [1, 2]
    assert case.value("open_streams") == 1


@on_a_loop
async def test_what_is_too_old_when_it_arrives_is_dropped() -> None:
    case = Case(max_policy_lag=2)
    case.queue.published(10)
    stream = case.queue.open(name(1))
    await stream.news()
    case.queue.offer(stream, made(1, 7, episodes=[EPISODE]))
    case.queue.offer(stream, made(2, 8, episodes=[EPISODE, EPISODE]))
    assert await stream.news() == (2, 2)
    assert case.dropped() == {"lag": 1, "uncounted": 0, "duplicate": 0}
    assert case.taken(1) == [2]
    assert case.told == [(7, (EPISODE,)), (8, (EPISODE, EPISODE))]
    assert case.value("policy_lag_versions_sum") == 2
    assert case.value("episodes_total") == 3


@on_a_loop
async def test_an_episode_whose_simulator_failed_is_in_no_statistic() -> None:
    case = Case()
    stream = case.queue.open(name(1))
    lost = EpisodeSummary(0.5, 3, success=False, dropped=True)
    case.queue.offer(stream, made(1, episodes=[lost, EPISODE]))
    assert case.told == [(1, (EPISODE,))]


@on_a_loop
async def test_what_became_too_old_while_it_waited_is_dropped() -> None:
    case = Case(capacity=3, max_policy_lag=2)
    case.queue.published(4)
    stream = case.queue.open(name(1))
    for number, version in ((1, 2), (2, 4), (3, 3)):
        case.queue.offer(stream, made(number, version, episodes=[EPISODE]))
    assert await stream.news() == (3, 3)
    case.queue.published(5)
    assert case.queue.take(3, 0) is None
    assert await asyncio.wait_for(stream.news(), PATIENCE) == (3, 1)
    assert case.dropped()["lag"] == 1
    assert case.taken(2) == [2, 3]
    assert len(case.told) == 3


@on_a_loop
async def test_a_version_from_the_future_is_malformed() -> None:
    case = Case()
    stream = case.queue.open(name(1))
    with pytest.raises(CodecError, match=r"^parameters_version is 2, expected at most 1, the newest one$"):
        case.queue.offer(stream, made(1, 2, episodes=[EPISODE]))
    assert await stream.news() == (0, 4)
    assert (case.queue.take(1, 0), case.told) == (None, [])


@on_a_loop
async def test_what_was_not_counted_is_dropped_where_counts_are_needed() -> None:
    for needed in (True, False):
        case = Case(needs_counts=needed)
        stream = case.queue.open(name(1))
        case.queue.offer(stream, made(1, counted=False, episodes=[EPISODE]))
        assert case.dropped()["uncounted"] == needed
        assert case.taken(1) == ([] if needed else [1])
        assert stream.last == 1
        assert case.told == [(1, (EPISODE,))]


@on_a_loop
async def test_a_drain_tells_what_was_taken_and_lets_the_trainer_finish() -> None:
    case = Case()
    stream = case.queue.open(name(1))
    for number in (1, 2, 3):
        case.queue.offer(stream, made(number))
    case.queue.drain()
    assert await stream.news() == (3, 0)
    assert await stream.news() is None
    assert stream.ending is not None
    assert stream.ending[0] is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(Refusal):
        case.queue.open(name(2))
    assert case.taken(2) == [1, 2]
    assert case.queue.take(2) is None, "it would wait for ever"


@on_a_loop
async def test_close_wakes_everybody() -> None:
    case = Case()
    stream = case.queue.open(name(1))
    await stream.news()
    trainer = asyncio.create_task(asyncio.to_thread(case.queue.take, 1))
    await asyncio.sleep(0.05)
    threading.Thread(target=case.queue.close).start()
    assert await asyncio.wait_for(trainer, PATIENCE) is None
    assert await asyncio.wait_for(stream.news(), PATIENCE) is None


def test_a_take_without_a_loop_and_after_its_end_is_no_error() -> None:
    case = Case()
    assert case.queue.take(1, 0.01) is None

    async def test() -> None:
        case.queue.offer(case.queue.open(name(1)), made(1))

    asyncio.run(test())
    assert case.taken(1) == [1]
    case.queue.close()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"capacity": 0}, "capacity is 0, expected at least 1"),
        ({"window": 0}, "window is 0, expected at least 1"),
        ({"max_policy_lag": -1}, "max_policy_lag is -1, expected at least 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(changes: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        Case(**changes)


def test_calls_that_make_no_sense_are_refused() -> None:
    case = Case(capacity=8)
    for count in (0, 9):
        with pytest.raises(ValueError, match=rf"^count is {count}, expected 1 to 8, the capacity$"):
            case.queue.take(count, 0)
    case.queue.published(3)
    case.queue.published(3)
    with pytest.raises(ValueError, match=r"^version is 2, expected at least 3: it only ever grows$"):
        case.queue.published(2)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_no_place_is_given_twice_and_none_is_lost(seed: int) -> None:
    """Random actors, a random trainer; after every step the places are counted by hand."""
    chance = random.Random(seed)

    async def test() -> None:
        capacity, window = 10, 4
        case = Case(capacity=capacity, window=window, max_policy_lag=3)
        queue, version = case.queue, 1
        streams: dict[int, Stream] = {}
        sent: dict[int, list[Trajectory]] = {actor: [] for actor in range(6)}  # number n is at n - 1
        at = dict.fromkeys(range(6), 0)  # how many of them were sent, since the actor last began to repeat some
        taken: list[Trajectory] = []
        for _ in range(1000):
            actor = chance.randrange(6)
            act = chance.random()
            stream = streams.get(actor)
            if stream is None or act < 0.05:
                streams[actor] = queue.open(name(actor))
            elif act < 0.1:
                queue.leave(streams.pop(actor))
            elif act < 0.2:
                taken += queue.take(chance.randint(1, 5), 0, hold=chance.random() < 0.5) or ()
            elif act < 0.22:
                queue.free()
            elif act < 0.25:
                version += 1
                queue.published(version)
            elif stream.credits:
                at[actor] = max(at[actor] - chance.choice([0, 0, 0, 1, 3]), 0)
                if at[actor] == len(sent[actor]):
                    played = max(version - chance.randrange(5), 1)
                    sent[actor].append(made(at[actor] + 1, played, counted=chance.random() < 0.9))
                queue.offer(stream, sent[actor][at[actor]])
                at[actor] += 1
            await settled()
            held = [each.credits for each in streams.values()]
            queued = len(queue._queue)
            assert all(0 <= each <= window for each in held)
            assert sum(held) == queue._outstanding
            known = [each.credits for each in streams.values() if each.delivered]
            new = [each.credits for each in streams.values() if not each.delivered]
            extra = capacity // 4 if known else 0
            left = capacity + extra - queued - sum(held) - queue._held
            assert left >= min(0, capacity - queued - sum(held)), "more than there are"
            reserved = max(extra - sum(new), 0)
            assert left <= reserved or all(each == window for each in known or new), "a free place, and a taker"
            assert not known or min(left, reserved) <= 0 or all(new), "a place for newcomers, and a taker"
            assert (case.value("queue_trajectories"), case.value("outstanding_credits")) == (queued, sum(held))
        assert len(set(map(id, taken))) == len(taken) > 0, "trained twice"

    asyncio.run(test())


def test_what_a_trajectory_costs_does_not_depend_on_how_many_streams_wait() -> None:
    """Counted are the interpreter's steps, which are the same on every machine."""

    async def steps(idle: int) -> int:
        case = Case(capacity=idle + 8, window=1, max_policy_lag=100, needs_counts=True)
        for actor in range(1, idle):
            other = case.queue.open(name(actor))
            case.queue.offer(other, made(1, counted=False))
        stream = case.queue.open(name(0))
        case.queue.offer(stream, made(1, counted=False))
        taken = 0

        def count(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            nonlocal taken
            frame.f_trace_opcodes = True
            taken += event == "opcode"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            for number in range(2, 22):
                case.queue.offer(stream, made(number, counted=False))
            case.queue.leave(stream)
            case.queue.open(name(idle))
        finally:
            sys.settrace(before)
        return taken

    few, many = asyncio.run(steps(10)), asyncio.run(steps(1000))
    assert many < 1.2 * few


@on_a_loop
async def test_the_trainer_is_woken_up_for_a_batch_and_not_for_each_trajectory() -> None:
    case = Case(capacity=8, window=8)
    stream = case.queue.open(name(1))
    taking = asyncio.create_task(asyncio.to_thread(case.queue.take, 8, PATIENCE))
    await asyncio.to_thread(until, lambda: case.queue._wanted == 8)
    woken = 0
    notify = case.queue._changed.notify

    def noted(n: int = 1) -> None:
        nonlocal woken
        woken += 1
        notify(n)

    case.queue._changed.notify = noted  # type: ignore[method-assign]
    for number in range(1, 9):
        case.queue.offer(stream, made(number))
    taken = await taking
    assert taken is not None
    assert [each.number for each in taken] == list(range(1, 9))
    assert woken == 1


class Turned:
    """The module's clock, which a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for each in (module, streams):
            monkeypatch.setattr(each, "time", self)

    def monotonic(self) -> float:
        return self.now


@on_a_loop
async def test_streams_that_never_send_anything_take_no_place_from_one_that_does() -> None:
    case = Case(capacity=8, window=8)
    good = case.queue.open(name(0))
    case.queue.offer(good, made(1))
    idle = [case.queue.open(name(actor)) for actor in range(1, 41)]
    for number in range(2, 100):
        assert sum(each.credits for each in idle) == 2, "a quarter more, with one credit each"
        case.queue.offer(good, made(number))
        if number % 8 == 0:
            assert len(case.taken(8)) == 8
            await settled()
    assert all(each.open for each in idle)


def test_newcomers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Turned(monkeypatch)

    async def test() -> None:
        case = Case(capacity=4, window=4)
        case.queue.offer(case.queue.open(name(0)), made(1))
        idle = case.queue.open(name(1))
        clock.now += module.UNUSED_SECONDS
        assert idle.credits == 1, "nobody else wants it"
        late = case.queue.open(name(2))
        assert (idle.open, idle.ending, late.credits) == (False, module.UNUSED, 1)

    asyncio.run(test())


def test_unused_credits_are_taken_back_while_the_trainer_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty streams came first, and hold every place; the trainer needs all of them."""
    clock = Turned(monkeypatch)

    async def test() -> None:
        case = Case(capacity=8, window=4)
        idle = [case.queue.open(name(actor)) for actor in range(40)]
        used = idle[0]
        case.queue.offer(used, made(1))
        good = case.queue.open(name(40))
        clock.now += module.UNUSED_SECONDS - 1
        case.queue.offer(used, made(2))
        case.queue._take_back()
        assert all(each.open for each in idle)
        clock.now += 1
        case.queue._take_back()
        gone = [each for each in idle if not each.open]
        assert used.open
        assert {each.ending for each in gone} == {module.UNUSED}
        assert gone == [idle[1]], "the other one that held places"
        for number in range(3, 9):
            case.queue.offer(used, made(number))
        assert case.taken(8) == list(range(1, 9))
        assert good.open

    asyncio.run(test())


def test_a_trainer_that_starves_asks_for_unused_credits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STARVED_SECONDS", 0.01)
    monkeypatch.setattr(module, "UNUSED_SECONDS", 0.05)

    async def test() -> None:
        case = Case(capacity=1, window=1)
        idle, good = case.queue.open(name(0)), case.queue.open(name(1))
        taking = asyncio.create_task(asyncio.to_thread(case.queue.take, 1, PATIENCE))
        assert await good.may_send()
        assert not idle.open
        case.queue.offer(good, made(1))
        taken = await taking
        assert taken is not None
        assert [each.number for each in taken] == [1]

    asyncio.run(asyncio.wait_for(test(), PATIENCE))
