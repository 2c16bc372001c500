"""The memory store's reckoning: its limit holds for real memory, and a full store still works."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import mmap
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from services.hashcount.distinct import Distinct
from services.hashcount.memory import PIECE_CODES, MemoryStore
from services.hashcount.store import Batch, Status
from services.hashcount.visit_tables import Codes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from services.hashcount.store import Outcome

LIMIT = 16 << 20


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(max_bytes=LIMIT, ttl=1e6, retry_window=1e6)


def send(store: MemoryStore, width: int, *batches: Batch) -> list[Outcome]:
    """Without an event loop: the store promises not to pause in so small a call."""
    try:
        store.count("run", width, batches).send(None)
    except StopIteration as done:
        outcomes: list[Outcome] = done.value
        return outcomes
    raise AssertionError("the store paused")


def codes(first: int, number: int, width: int) -> bytes:
    return b"".join((first + i).to_bytes(width, "little") for i in range(number))


def fill(store: MemoryStore, batch: Callable[[int], Batch], width: int) -> int:
    """Sends batches until the store is full; returns how many it took."""
    for n in itertools.count():
        [outcome] = send(store, width, batch(n))
        assert store.used_bytes <= LIMIT
        if outcome.status is Status.FULL:
            return n
        assert outcome.status is Status.COUNTED
    raise AssertionError


def resident(array: npt.NDArray[np.uint64]) -> int:
    """Bytes of an array of whole pages which are in memory."""
    in_memory = (ctypes.c_ubyte * (array.nbytes // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), in_memory) == 0
    return mmap.PAGESIZE * sum(page & 1 for page in in_memory)


@pytest.mark.parametrize(("size", "width"), [(8, 4), (96, 9), (96, 256), (5000, 4), (5000, 256)])
def test_real_memory_stays_within_the_limit_and_the_reckoning_is_not_far_off(size: int, width: int) -> None:
    tracemalloc.start()
    store = MemoryStore(max_bytes=LIMIT, ttl=1e6, retry_window=1e6)
    taken = fill(store, lambda n: Batch(f"episode-{n}", 0, codes(n, size, width), final=False), width)
    real, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    tables = resident(store._tables._arena.words_A)
    real, peak = real + tables, peak + tables
    assert taken > 0
    assert real <= store.used_bytes <= LIMIT
    assert real > 0.35 * LIMIT  # it does not refuse long before it must
    assert peak <= LIMIT + 4 * size * (width + 200)  # one batch on its way


def test_one_long_episode_is_refused_in_time_too(store: MemoryStore) -> None:
    taken = fill(store, lambda n: Batch("long", n, codes(96 * n, 96, 9), final=False), 9)
    assert 96 * taken > 25_000
    assert store.used_bytes <= LIMIT


def test_a_refused_batch_changed_nothing_and_counts_later(store: MemoryStore) -> None:
    send(store, 9, Batch("mine", 0, codes(0, 10, 9), final=False))
    taken = fill(store, lambda n: Batch(f"other-{n}", 0, codes(0, 5000, 9), final=False), 9)
    mine = Batch("mine", 1, codes(0, 5000, 9), final=False)
    [refused] = send(store, 9, mine)
    assert refused.status is Status.FULL
    assert refused.counts is None
    assert "--max-memory" in refused.detail
    [known] = send(store, 9, Batch("other-0", 0, codes(0, 5000, 9), final=False))
    assert known.status is Status.REPLAYED  # a retry is never FULL
    for n in range(taken):
        [ended] = send(store, 9, Batch(f"other-{n}", 1, codes(0, 5000, 9), final=True))
        assert ended.status is Status.COUNTED  # a final batch always gets through
        assert ended.counts == (2).to_bytes(4, "little") * 5000
    [outcome] = send(store, 9, mine)
    assert outcome.status is Status.COUNTED
    assert outcome.counts == (2).to_bytes(4, "little") * 10 + (1).to_bytes(4, "little") * 4990


def test_known_codes_still_count_when_the_store_is_full(store: MemoryStore) -> None:
    send(store, 9, Batch("mine", 0, codes(0, 10, 9), final=False))
    fill(store, lambda n: Batch(f"other-{n}", 0, codes(0, 1000, 9), final=False), 9)
    fill(store, lambda n: Batch(f"small-{n}", 0, codes(0, 1, 9), final=False), 9)
    [ended] = send(store, 9, Batch("other-0", 1, b"", final=True))
    assert ended.status is Status.COUNTED
    [outcome] = send(store, 9, Batch("mine", 1, codes(0, 10, 9), final=False))
    assert (outcome.status, outcome.counts) == (Status.COUNTED, (2).to_bytes(4, "little") * 10)


def test_a_limit_too_small_for_anything_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="at least"):
        MemoryStore(max_bytes=1 << 20, ttl=1, retry_window=1)


def test_everything_is_given_back() -> None:
    store = MemoryStore(max_bytes=LIMIT, ttl=10, retry_window=5, clock=lambda: now)
    used = []
    for now in (0.0, 100.0, 200.0):  # noqa: B007  # the store's clock reads it
        assert asyncio.run(store.live_episodes()) == 0
        used.append(store.used_bytes)
        for n in range(20):
            send(store, 9, Batch(f"e{n}", 0, codes(n, 500, 9), final=n % 2 == 0))
        assert asyncio.run(store.live_episodes()) == 10
        assert store.used_bytes > used[-1] + 10 * 500 * 9
    assert used[1] == used[2]  # the first round made places for counts, which are kept for the next


def test_a_count_that_would_not_fit_stays_at_the_largest(store: MemoryStore) -> None:
    send(store, 9, Batch("e", 0, codes(0, 1, 9), final=False))
    found = Distinct(9, [codes(0, 1, 9)])
    many = Codes(found.words_WD, found.hash_D, np.array([2**32 - 3], np.uint64))
    store._tables.visit([store._live["run", "e"].table], [1], many, add=True)  # as after 4,294,967,294 visits
    [outcome] = send(store, 9, Batch("e", 1, codes(0, 1, 9) * 3, final=False))
    assert outcome.counts == (2**32 - 1).to_bytes(4, "little") * 3
    [outcome] = send(store, 9, Batch("e", 2, codes(0, 1, 9), final=False))
    assert outcome.counts == (2**32 - 1).to_bytes(4, "little")


def test_others_are_served_while_a_large_call_is_counted() -> None:
    """Four times as much as is counted at once, in batches of one piece each."""
    store = MemoryStore(max_bytes=1 << 30, ttl=1e6, retry_window=1e6)
    large = [Batch(f"e{i}", 0, codes(0, PIECE_CODES, 4), final=False) for i in range(4)]
    served: list[int] = []

    async def test() -> list[Outcome]:
        counting = asyncio.create_task(store.count("run", 4, large))
        while not counting.done():
            [outcome] = await store.count("run", 4, [Batch("small", len(served), b"code", final=False)])
            assert outcome.counts is not None
            served.append(int.from_bytes(outcome.counts, "little"))
            await asyncio.sleep(0)
        return await counting

    outcomes = asyncio.run(test())
    assert [outcome.status for outcome in outcomes] == [Status.COUNTED] * 4
    assert all(outcome.counts == b"\1\0\0\0" * PIECE_CODES for outcome in outcomes)
    assert served == list(range(1, len(served) + 1))
    assert len(served) >= 4
