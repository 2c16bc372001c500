"""`docker compose up` on a real engine: it trains, it is seen by Prometheus, and each part of it may die.

`make e2e` runs it; it takes minutes. Grafana is left out, because its image cannot be had everywhere: the queries of its
dashboards are run here, and the files that it is given are tested in tests/deploy/test_compose_files.py.
"""

from __future__ import annotations

import math
import subprocess
from typing import TYPE_CHECKING

import pytest

from support import dashboards
from support.compose_system import PROJECT, SERVICES, Container, System, docker, need_docker, wheels
from support.paths import ROOT
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

TARGETS = {"actor": 2, "hashcount": 1, "learner": 1, "prometheus": 1}
FRAMES = "leco_learner_run_frames"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Built, up and healthy; gone with its volumes afterwards."""
    need_docker()
    shipped = (ROOT / "deploy" / "compose" / "experiment.toml").read_text()
    experiment = tmp_path_factory.mktemp("experiment") / "experiment.toml"
    assert "[learner]" not in shipped
    experiment.write_text(shipped + "\n[learner]\ncheckpoint_every = 10\n")
    experiment.parent.chmod(0o755)
    system = System({"LECO_EXPERIMENT": str(experiment), "PROMETHEUS_PORT": "0"} | wheels())
    system.compose("down", "--volumes", "--timeout", "0")  # of a run that was interrupted
    system.compose("build")
    try:
        system.compose("up", "--detach", "--wait", *SERVICES)
        yield system
    finally:
        system.compose("down", "--volumes", "--timeout", "0")


def one(system: System, expr: str) -> float:
    """The value of a query that has one, or 0 if it has none yet."""
    return max((each.value for each in system.prometheus().query(expr)), default=0.0)


def trains_on(system: System) -> None:
    """Frames grow, and every actor gets newer parameters than any has now."""
    frames, version = one(system, FRAMES), one(system, "max(leco_actor_parameters_version)")
    until(lambda: one(system, FRAMES) > frames)
    until(lambda: one(system, "min(leco_actor_parameters_version)") > version)


def up(system: System) -> dict[str, int]:
    """How many targets of each job Prometheus reaches; those that it does not are an extra key."""
    found: dict[str, int] = {}
    for target in system.prometheus().get("targets", state="active")["activeTargets"]:
        name = target["labels"]["job"] + ("" if target["health"] == "up" else " " + target["health"])
        found[name] = found.get(name, 0) + 1
    return found


def test_every_container_is_healthy(system: System) -> None:
    containers = system.containers()
    assert sorted(each.service for each in containers) == sorted([*SERVICES, "actor"])
    assert {(each.state, each.health) for each in containers} == {("running", "healthy")}


def test_frames_grow_and_parameters_reach_the_actors(system: System) -> None:
    until(lambda: one(system, FRAMES) > 0)
    trains_on(system)
    assert one(system, "sum(leco_learner_trajectories_dropped_total)") == 0
    assert one(system, "sum(leco_actor_uncounted_trajectories_total)") == 0


def test_prometheus_reaches_every_replica_and_has_the_alerts(system: System) -> None:
    until(lambda: up(system) == TARGETS)
    groups = system.prometheus().get("rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}


@pytest.mark.parametrize("query", dashboards.queries(), ids=lambda each: f"{each.dashboard}: {each.panel}")
def test_a_query_of_a_dashboard_returns_data(system: System, query: dashboards.Query) -> None:
    until(lambda: any(math.isfinite(each.value) for each in system.prometheus().query(query.filled())))


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_can_do_little(system: System, service: str) -> None:
    container = system.containers(service)[0]
    status = dict(
        line.split(":\t", 1)
        for line in docker("exec", container.id, "cat", "/proc/1/status").splitlines()
        if ":\t" in line
    )
    assert "0" not in status["Uid"].split()
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapBnd")} == {0}
    assert status["NoNewPrivs"] == "1"
    write = subprocess.run(
        ["docker", "exec", container.id, "sh", "-c", "echo > /etc/x"], capture_output=True, text=True, check=False
    )
    assert "Read-only file system" in write.stderr
    host = system.inspect(container)["HostConfig"]
    assert host["Memory"] > 0
    assert host["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "3"}
    published = [each["HostIp"] for ports in host["PortBindings"].values() for each in ports]
    assert published == (["127.0.0.1"] if service == "prometheus" else [])


def test_redis_forgets_nothing_and_is_reached_by_hashcount_alone(system: System) -> None:
    [redis] = system.containers("redis")
    settings = docker("exec", redis.id, "redis-cli", "config", "get", "appendonly", "maxmemory*").split()
    read = dict(zip(settings[::2], settings[1::2], strict=True))
    assert (read["appendonly"], read["maxmemory-policy"]) == ("yes", "noeviction")
    assert 0 < int(read["maxmemory"]) < system.inspect(redis)["HostConfig"]["Memory"]
    connect = "import socket; socket.create_connection(('redis', 6379), 5)"
    reached = {}
    for service in ("hashcount", "learner", "actor"):
        container = system.containers(service)[0]
        command = ["docker", "exec", container.id, "python3", "-c", connect]
        reached[service] = subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert reached == {"hashcount": True, "learner": False, "actor": False}


def restarted(system: System, before: Container) -> bool:
    state = system.inspect(before)
    return bool(state["RestartCount"] > 0 and state["State"]["Running"])


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_that_is_killed_comes_back_and_training_goes_on(system: System, service: str) -> None:
    until(lambda: one(system, FRAMES) > 40_000)  # beyond the first checkpoints
    frames = one(system, FRAMES)
    container = system.containers(service)[0]
    system.kill(container)
    until(lambda: restarted(system, container))
    until(system.healthy)
    until(lambda: up(system) == TARGETS)
    trains_on(system)
    if service == "learner":  # from a checkpoint, and not from the beginning
        served = [line for line in system.compose("logs", "learner").splitlines() if " serving " in line]
        assert len(served) == 2
        assert int(served[1].split("frames=")[1].split()[0]) > 0
    if service == "prometheus":  # what it had measured is still there
        assert one(system, f"min_over_time({FRAMES}[1h])") < frames


def test_more_replicas_are_found_and_work(system: System) -> None:
    system.compose(
        "up", "--detach", "--wait", "--no-recreate", "--scale", "actor=4", "--scale", "hashcount=2", *SERVICES
    )
    until(lambda: up(system) == TARGETS | {"actor": 4, "hashcount": 2})
    for rate, replicas in (("leco_actor_frames_total", 4), ("leco_hashcount_codes_total", 2)):
        expr = f"count(sum by (instance) (rate({rate}[1m])) > 0)"
        until(lambda expr=expr, replicas=replicas: one(system, expr) == replicas)  # type: ignore[misc]
    trains_on(system)


def test_sigterm_drains_and_the_volumes_keep_the_run(system: System) -> None:
    system.compose("stop")
    ended = {each.service: each.exit_code for each in system.containers()}
    assert ended == dict.fromkeys(SERVICES, 0)
    last = system.compose("logs", "--no-log-prefix", "learner").splitlines()[-1]
    frames = int(last.split("frames=")[1])
    system.compose("down")
    system.compose("up", "--detach", "--wait", *SERVICES)
    until(lambda: one(system, FRAMES) >= frames)
    log = system.compose("logs", "--no-log-prefix", "learner")
    assert f"frames={frames}" in next(line for line in log.splitlines() if " serving " in line)
    trains_on(system)


def test_down_leaves_nothing(system: System) -> None:
    system.compose("down", "--volumes")
    mine = f"label=com.docker.compose.project={PROJECT}"
    assert docker("ps", "--all", "--quiet", "--filter", mine) == ""
    assert docker("volume", "ls", "--quiet", "--filter", mine) == ""
    assert docker("network", "ls", "--quiet", "--filter", mine) == ""
