"""The page that Prometheus scrapes."""

from __future__ import annotations

import errno
import socket
import urllib.request
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, Counter

from leco.telemetry import logging
from leco.telemetry.logging import serve_metrics
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("leco_test_things", "Things.", registry=registry).inc(3)
    return registry


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_client_that_says_nothing_is_cut_off(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "METRICS_SECONDS", 0.2)
    port, stop = serve_metrics(registry, host="127.0.0.1", port=0)
    try:
        for said in (b"", b"GET /metrics HT", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
                silent.sendall(said)
                assert silent.recv(1) == b""
    finally:
        stop()


def test_metrics_are_served_until_they_are_stopped(registry: CollectorRegistry) -> None:
    port, stop = serve_metrics(registry, host="127.0.0.1", port=0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
            assert "\nleco_test_things_total 3.0\n" in page.read().decode()
    finally:
        stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    port_again, stop = serve_metrics(registry, host="127.0.0.1", port=port)
    stop()
    assert port_again == port


def test_a_port_that_is_taken_is_named(registry: CollectorRegistry, taken_port: int) -> None:
    with pytest.raises(
        OSError, match=f"cannot serve metrics on 127.0.0.1:{taken_port}: Address already in use"
    ) as caught:
        serve_metrics(registry, host="127.0.0.1", port=taken_port)
    assert caught.value.errno == errno.EADDRINUSE


def test_a_host_that_is_not_this_machine_is_named(registry: CollectorRegistry) -> None:
    with pytest.raises(OSError, match=r"cannot serve metrics on 203\.0\.113\.1:0: "):
        serve_metrics(registry, host="203.0.113.1", port=0)
