"""The distinct codes of a request, against looking at one code after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.hashcount import distinct as module
from services.hashcount.distinct import Distinct

if TYPE_CHECKING:
    from collections.abc import Sequence


def check(width: int, batches: Sequence[Sequence[bytes]]) -> None:
    """Compares everything with a naive computation."""
    found = Distinct(width, [b"".join(batch) for batch in batches])
    codes = found.codes.tolist()
    before = 1000 * np.arange(len(codes), dtype=np.uint64)
    counts = iter(np.frombuffer(found.counts(before), "<u4").tolist())
    assert len(found.spans) == len(batches)
    for batch, span in zip(batches, found.spans, strict=True):
        in_order = list(dict.fromkeys(batch))
        assert codes[span] == in_order
        assert found.times[span].tolist() == [batch.count(code) for code in in_order]
        for i, code in enumerate(batch):
            place, occurrence = divmod(next(counts), 1000)
            assert span.start <= place < span.stop
            assert codes[place] == code
            assert occurrence == batch[: i + 1].count(code)
    assert not list(counts)
    assert sum(span.stop - span.start for span in found.spans) == len(codes)


def test_by_hand() -> None:
    found = Distinct(1, [b"ABACA", b"AA"])
    assert found.codes.tolist() == [b"A", b"B", b"C", b"A"]
    assert found.spans == [slice(0, 3), slice(3, 4)]
    assert found.times.tolist() == [3, 1, 1, 2]
    before = np.array([0, 10, 2**32 - 2, 30], np.uint64)
    counts = np.frombuffer(found.counts(before), "<u4").tolist()
    assert counts == [1, 11, 2, 2**32 - 1, 3, 31, 32]


BATCHES = st.integers(1, 20).flatmap(
    lambda width: st.tuples(
        st.just(width),
        st.lists(st.lists(st.binary(min_size=width, max_size=width) | st.just(bytes(width)), max_size=12), max_size=4),
    )
)


@given(BATCHES)
def test_any_request(request: tuple[int, list[list[bytes]]]) -> None:
    check(*request)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 17, 256])
def test_codes_that_differ_in_one_byte_only(width: int) -> None:
    ends = [bytes(width - 1) + bytes([i]) for i in range(4)]
    begins = [bytes([i]) + bytes(width - 1) for i in range(4)]
    check(width, [[*ends, *begins, *ends], [*reversed(begins)]])


def test_codes_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all of them do: what is sorted is zero."""
    monkeypatch.setattr(module, "_MIX", np.uint64(0))
    check(2, [[b"ab", b"cd", b"ab", b"cd"], [b"cd", b"ab"], []])


def test_a_large_request() -> None:
    numbers = np.random.default_rng(1).integers(0, 300, (40, 500))
    check(3, [[int(n).to_bytes(3, "big") for n in row] for row in numbers])
