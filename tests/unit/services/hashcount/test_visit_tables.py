"""Visit tables, against a dictionary for each."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.hashcount import distinct as module
from services.hashcount.distinct import Distinct
from services.hashcount.visit_tables import Codes, Table, VisitTables

LIMIT = 8 << 20


class Naive:
    """Tables of both kinds side by side; what they say must be the same."""

    def __init__(self, width: int, tables: int) -> None:
        self.width = width
        self.real = VisitTables(LIMIT)
        self.table: list[Table | None] = [None] * tables
        self.naive: list[Counter[bytes]] = [Counter() for _ in range(tables)]

    def visit(self, batches: list[list[bytes]], *, add: bool) -> None:
        """A batch for each table."""
        words = -(-self.width // 8)
        found = Distinct(self.width, [b"".join(batch) for batch in batches])
        numbers = [span.stop - span.start for span in found.spans]
        moves = []
        for i, number in enumerate(numbers if add else []):
            old, entries = self.table[i], len(self.naive[i]) + number
            if old is None or not old.has_room(entries):
                new = self.real.make(entries, words, LIMIT)
                assert new is not None
                self.table[i] = new
                if old is not None:
                    moves.append((old, new))
        if moves:
            self.real.move(moves, words)
        codes = Codes(found.words_WD, found.hash_D, found.times)
        before = self.real.visit(self.table, numbers, codes, add=add).tolist()
        expected = [
            naive[code] for naive, batch in zip(self.naive, batches, strict=True) for code in dict.fromkeys(batch)
        ]
        assert before == expected
        if add:
            for naive, batch in zip(self.naive, batches, strict=True):
                naive.update(batch)


BATCHES = st.tuples(st.integers(1, 20), st.integers(1, 4)).flatmap(
    lambda sizes: st.tuples(
        st.just(sizes[0]),
        st.lists(
            st.tuples(
                st.booleans(),
                st.lists(
                    st.lists(st.binary(min_size=sizes[0], max_size=sizes[0]) | st.just(bytes(sizes[0])), max_size=20),
                    min_size=sizes[1],
                    max_size=sizes[1],
                ),
            ),
            max_size=6,
        ),
    )
)


@given(BATCHES)
def test_any_visits(given_: tuple[int, list[tuple[bool, list[list[bytes]]]]]) -> None:
    width, steps = given_
    both = Naive(width, len(steps[0][1]) if steps else 1)
    for add, batches in steps:
        both.visit(batches, add=add)


@pytest.mark.parametrize("collide", [False, True])
def test_tables_that_grow_much(collide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all codes have one hash, so that each must be looked for in all slots before its own."""
    if collide:
        monkeypatch.setattr(module, "_MIX", np.uint64(0))
    random = np.random.default_rng(1)
    both = Naive(3, 3)
    for _ in range(6):
        numbers = random.integers(0, 60 if collide else 3000, (3, 40 if collide else 900))
        both.visit([[int(n).to_bytes(3, "big") for n in row] for row in numbers], add=True)
    both.visit([[bytes(3), b"new"], [], [b"new"]], add=False)


def test_a_released_table_is_empty_when_its_place_is_used_again() -> None:
    both = Naive(1, 1)
    both.visit([[b"A", b"B"]], add=True)
    [table] = both.table
    assert table is not None
    taken = both.real.bytes
    both.real.release(table)
    both.table, both.naive = [None], [Counter()]
    both.visit([[b"A", b"C"]], add=True)
    assert both.real.bytes == taken


def test_a_count_stays_at_the_largest() -> None:
    tables = VisitTables(LIMIT)
    table = tables.make(1, 1, LIMIT)
    found = Distinct(1, [b"A"])
    near = Codes(found.words_WD, found.hash_D, np.array([2**32 - 3], np.uint64))
    more = near._replace(times_D=np.array([65_535], np.uint64))
    before = [tables.visit([table], [1], codes, add=True).tolist() for codes in (near, more, more)]
    assert before == [[0], [2**32 - 3], [2**32 - 1]]


def test_no_table_is_made_beyond_the_limit() -> None:
    tables = VisitTables(LIMIT)
    assert tables.make(LIMIT, 1, LIMIT) is None
    small = tables.make(10, 1, tables.bytes + 512)
    assert small is not None
    assert tables.make(10, 1, tables.bytes) is None
