"""The order in which streams are granted credits, and what it takes to keep it."""

from __future__ import annotations

import random

from services.learner.streams import FEW, Line, Stream


def stream(turn: int, held: int = 0, *, delivered: bool = True) -> Stream:
    return Stream(turn.to_bytes(16, "big"), None, 0, turn, credits=held, delivered=delivered)


def test_the_fewest_credits_are_first_and_among_equals_the_longest_without() -> None:
    line = Line(delivered=True)
    streams = [stream(3, 1), stream(2, 1), stream(5, 0), stream(4, 0)]
    for each in streams:
        line.add(each)
    order = []
    while (first := line.first()) is not None:
        order.append(first.turn)
        first.end(None)
    assert order == [4, 5, 2, 3]


def test_who_has_delivered_is_in_another_line() -> None:
    line = Line(delivered=False)
    new = stream(1, delivered=False)
    line.add(new)
    assert line.first() is new
    new.delivered = True
    assert line.first() is None


def test_whatever_changes_the_first_is_the_one_that_a_look_at_all_would_find() -> None:
    chance, line = random.Random(1), Line(delivered=True)
    streams, turn = [stream(number) for number in range(50)], 50
    for each in streams:
        line.add(each)
    for _ in range(5000):
        each = chance.choice([one for one in streams if one.open])
        if chance.random() < 0.5 and each.credits:
            each.credits -= 1
        else:
            each.grant(turn)
            turn += 1
        line.add(each)
        if chance.random() < 0.002:
            each.end(None)
        first = line.first()
        assert first is min((one for one in streams if one.open), key=lambda one: (one.credits, one.turn))
        assert len(line._heap) <= 2 * len(streams) + FEW, "what is no longer so is forgotten"
