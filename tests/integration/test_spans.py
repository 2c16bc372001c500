"""Spans of one process, as a real receiver gets them: what is part of a trace, and what is none."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from leco.telemetry import tracing
from support.trace_receiver import ReceivedSpan, TraceReceiver
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # W3C's
NOT_SAMPLED = EXAMPLE[:-1] + "0"
MALFORMED = ("", "00", EXAMPLE.upper(), EXAMPLE.replace("b7ad6b7169203331", "0" * 16), "x" * 1_000_000)


def traced(act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[ReceivedSpan]:
    """The spans that were sent."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("leco.telemetry.spans.LAST_SECONDS", PATIENCE)
    with TraceReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", receiver.address)
        stop = tracing.start_tracing("actor")
        try:
            act()
        finally:
            stop()
        assert tracing.begin("after the end").traceparent == ""
        return receiver.spans


@pytest.mark.parametrize("parent", MALFORMED, ids=range(len(MALFORMED)))
def test_what_belongs_to_no_trace_begins_none(parent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        with tracing.span("alone", parent=parent), tracing.answering("call", lambda: [("traceparent", parent)]):
            assert (tracing.traceparent(), tracing.calling()) == ("", None)
        with tracing.answering("call", lambda: None):
            pass

    assert traced(act, monkeypatch) == []


def test_what_is_not_sampled_is_not_sent_but_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        with tracing.span("accept", parent=NOT_SAMPLED):
            place = tracing.traceparent()
            assert place.startswith(NOT_SAMPLED[:35])
            assert place.endswith("-00")

    assert traced(act, monkeypatch) == []


def test_a_call_goes_on_in_the_trace_that_its_metadata_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        others: list[tuple[str, str | bytes]] = [("user-agent", "x"), ("some-bin", b"y")]
        with tracing.answering("Count", lambda: [*others, ("traceparent", EXAMPLE)]), tracing.span("store", episodes=3):
            pass

    store, call = traced(act, monkeypatch)
    assert (call.name, call.trace, call.parent, call.kind) == ("Count", EXAMPLE[3:35], EXAMPLE[36:52], "SERVER")
    assert (store.name, store.trace, store.parent) == ("store", call.trace, call.id)


def test_a_journey_begins_in_one_thread_and_ends_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        journey = tracing.begin("unroll", parameters_version=3)
        assert tracing.traceparent() == ""  # this thread is not inside of it

        def end() -> None:
            with journey, tracing.span("send"):
                assert tracing.traceparent()[3:35] == journey.traceparent[3:35]
            assert tracing.traceparent() == ""

        thread = threading.Thread(target=end)
        thread.start()
        thread.join()

    send, unroll = traced(act, monkeypatch)
    assert (unroll.name, unroll.parent) == ("unroll", "")
    assert (send.name, send.trace, send.parent) == ("send", unroll.trace, unroll.id)


def test_links_that_are_malformed_are_left_out_and_none_is_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    other = EXAMPLE.replace("0af7", "1af7")

    def act() -> None:
        with tracing.span("train", parent=EXAMPLE, links=[other, *MALFORMED, other]):
            pass

    [train] = traced(act, monkeypatch)
    assert train.links == ((other[3:35], other[36:52]),)


def test_what_fails_is_told_and_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        with pytest.raises(ValueError, match="bad"), tracing.span("accept", parent=EXAMPLE):
            raise ValueError("bad")

    [accept] = traced(act, monkeypatch)
    assert accept.failed
