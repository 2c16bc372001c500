"""Pieces of memory: never two in one place, zero when they are new, one again when all are free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.hashcount.arena import SMALLEST, WORD, Arena

LIMIT = 1 << 20


def ends(arena: Arena) -> int:
    return arena.touched_bytes // WORD


@given(st.lists(st.tuples(st.booleans(), st.integers(SMALLEST, 13), st.integers(0, 1000)), max_size=80))
def test_pieces_do_not_overlap_are_empty_and_join_again(steps: list[tuple[bool, int, int]]) -> None:
    arena = Arena(LIMIT)
    taken: dict[int, int] = {}  # order by begin
    for take, order, which in steps:
        if take:
            begin = arena.allocate(order, LIMIT)
            if begin is None:
                assert ends(arena) + (1 << order) > LIMIT // WORD  # only what was never touched can be missing
                continue
            assert begin % (1 << order) == 0
            assert all(begin + (1 << order) <= at or at + (1 << other) <= begin for at, other in taken.items())
            assert not arena.words_A[begin : begin + (1 << order)].any()
            arena.words_A[begin : begin + (1 << order)] = 7
            taken[begin] = order
        elif taken:
            begin = sorted(taken)[which % len(taken)]
            arena.release(begin, taken.pop(begin))
        assert max((at + (1 << order) for at, order in taken.items()), default=0) <= ends(arena) <= LIMIT // WORD
    for begin, order in taken.items():
        arena.release(begin, order)
    touched = ends(arena)
    if touched:  # what was touched serves the largest piece that fits in
        assert arena.allocate(touched.bit_length() - 1, 0) == 0


def test_a_limit_below_that_of_the_arena_holds() -> None:
    arena = Arena(LIMIT)
    assert arena.allocate(10, WORD << 10) == 0
    assert arena.allocate(10, (WORD << 11) - 1) is None
    assert arena.touched_bytes == WORD << 10
    assert arena.allocate(10, WORD << 11) == 1 << 10
