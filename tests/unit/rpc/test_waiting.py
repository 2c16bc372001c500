"""A client that waits for a service that is away says so within seconds, and then now and then."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from structlog.testing import capture_logs

from leco.rpc import hashcount_client, learner_client, waiting
from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import CodeBatch, HashCountClient
from leco.rpc.learner_client import LearnerClient
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_a_wait_is_said_after_two_seconds_and_then_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    away = waiting.Waiting("the learner")
    said = []
    for now in (100.5, 101.9, 102.0, 103.0, 161.0, 162.0, 200.0, 230.0):
        with capture_logs() as logs:
            away.say("it is away")
        said += [(now, each["event"], each["seconds"], each["reason"]) for each in logs]
    event = "waiting for the learner"
    assert said == [(now, event, now - 100, "it is away") for now in (102.0, 162.0, 230.0)]


def test_an_actor_that_waits_for_the_learner_says_so(nobody: str) -> None:
    with open_channel(nobody, service=learner_client.SERVICE) as channel, capture_logs() as logs:
        client = LearnerClient(channel, actor_name="a", software_version="1", max_unacknowledged=1)

        def join() -> None:
            with pytest.raises(learner_client.Closed):
                client.join(give_up_after=PATIENCE)

        thread = threading.Thread(target=join)
        thread.start()
        until(lambda: bool(logs))
        client.close()
        thread.join()
    assert (logs[0]["event"], logs[0]["log_level"]) == ("waiting for the learner", "warning")
    assert "UNAVAILABLE" in logs[0]["reason"]


def test_an_actor_that_waits_for_counts_says_so_long_before_it_gives_up(nobody: str) -> None:
    with open_channel(nobody, service=hashcount_client.SERVICE) as channel, capture_logs() as logs:
        client = HashCountClient(channel, run="r", code_width=1, patience_seconds=PATIENCE)
        thread = threading.Thread(target=client.count, args=([CodeBatch("e", 0, np.zeros((1, 1), np.uint8))],))
        thread.start()
        until(lambda: bool(logs))
        client.give_up()
        thread.join()
    assert (logs[0]["event"], logs[0]["log_level"]) == ("waiting for the hash-count service", "warning")
    assert "UNAVAILABLE" in logs[0]["reason"]
