"""`leco health`, the probe of the images: what it says of a real service, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from leco.rpc.hashcount_client import SERVICE
from support.redis_servers import RedisServer
from support.service_process import ServiceProcess
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    import pytest


def ask(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "leco", "health", f"--seconds={PATIENCE:g}", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)


def test_a_service_whose_store_is_away_lives_but_does_not_serve() -> None:
    with RedisServer() as store, ServiceProcess("--store", store.url) as service:
        readiness = ("--address", service.address, "--service", SERVICE)
        until(lambda: ask(*readiness).returncode == 0)
        store.kill()
        until(lambda: ask(*readiness).returncode == 1)
        assert ask(*readiness).stderr == f"leco health: {service.address}: NOT_SERVING\n"
        assert ask("--address", service.address).returncode == 0


def test_what_is_wrong_is_said_in_a_line() -> None:
    with ServiceProcess() as service:
        unknown = ask("--address", service.address, "--service", "leco.v1.Nothing")
        assert (unknown.returncode, unknown.stderr) == (
            1,
            f"leco health: {service.address}: NOT_FOUND: no service 'leco.v1.Nothing' here\n",
        )
    away = ask("--address", service.address)
    assert away.returncode == 1
    assert away.stderr.startswith(f"leco health: {service.address}: UNAVAILABLE: ")
    assert away.stderr.count("\n") == 1


def test_a_page_must_answer() -> None:
    with ServiceProcess() as service:
        page = f"http://127.0.0.1:{service.metrics_port}/metrics"
        assert ask("--address", page).returncode == 0
    away = ask("--address", page)
    assert (away.returncode, "Connection refused" in away.stderr) == (1, True)


def test_a_proxy_for_the_world_is_not_asked_about_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ServiceProcess() as service:
        assert ask("--address", service.address).returncode == 0
        assert ask("--address", f"http://127.0.0.1:{service.metrics_port}/metrics").returncode == 0


def test_without_an_address_it_says_what_to_give() -> None:
    asked = ask()
    assert asked.returncode == 2
    assert "--address is missing: say whom to ask, for example --address 127.0.0.1:50061" in asked.stderr


def test_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, leco.cli.health; sys.exit(', '.join({'torch', 'numpy', 'redis', 'minigrid'} & sys.modules.keys()))"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert asked.stderr.strip() == ""
