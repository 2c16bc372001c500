"""compose.yaml on a real Docker engine, under a project name, volumes and a port of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.paths import ROOT
from support.prometheus_server import PrometheusApi

PROJECT = "leco-e2e"
# Everything but Grafana, whose image is not always to be had; what it is given is tested without it.
SERVICES = ("redis", "hashcount", "learner", "actor", "prometheus")


def docker(*arguments: str, env: dict[str, str] | None = None) -> str:
    """What `docker` printed; if it failed, an error with what it said."""
    done = subprocess.run(
        ["docker", *arguments], cwd=ROOT, env=os.environ | (env or {}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"docker {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def need_docker() -> None:
    """Skips the test where no container can run."""
    if shutil.which("docker") is None:
        pytest.skip("needs Docker, which is not installed here")
    for command in ("version", "compose version", "buildx version"):
        if subprocess.run(["docker", *command.split()], capture_output=True, check=False).returncode != 0:
            pytest.skip(f"needs Docker with an engine, Compose and buildx; `docker {command}` failed")


def wheels() -> dict[str, str]:
    """Where images find wheels: where pip finds them here, if that is a folder, unless LECO_WHEELS says otherwise."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [os.environ.get("LECO_WHEELS", ""), *asked.stdout.split()]
    return next(({"LECO_WHEELS": each} for each in found if each and Path(each).is_dir()), {})


class Container(NamedTuple):
    """A container as it was when it was looked at."""

    id: str
    service: str
    state: str
    health: str
    exit_code: int


class System:
    """The project. `env` wins over .env."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env

    def compose(self, *arguments: str) -> str:
        """Runs `docker compose`."""
        return docker("compose", "--project-name", PROJECT, *arguments, env=self._env)

    def containers(self, service: str | None = None) -> list[Container]:
        """Those of a service, or all of them, also those that have ended."""
        listed = self.compose("ps", "--all", "--format", "json", *([] if service is None else [service]))
        rows = [json.loads(line) for line in listed.splitlines()]
        return [Container(row["ID"], row["Service"], row["State"], row["Health"], row["ExitCode"]) for row in rows]

    def healthy(self, service: str | None = None) -> bool:
        """Whether every container runs and is healthy."""
        found = self.containers(service)
        return bool(found) and all((each.state, each.health) == ("running", "healthy") for each in found)

    def inspect(self, container: Container) -> dict[str, Any]:
        """All that the engine knows of it."""
        return dict(json.loads(docker("inspect", container.id))[0])

    def kill(self, container: Container) -> None:
        """Crash: SIGKILL from outside, as by the kernel when memory is short. (`docker kill` would count as the user's wish.)"""
        pid = self.inspect(container)["State"]["Pid"]
        [image] = self.images("hashcount")
        program = f"import os; os.kill({pid}, 9)"
        docker("run", "--rm", "--pid=host", "--user=0", "--entrypoint=python3", image, "-c", program)

    def images(self, *services: str) -> list[str]:
        """Their images' names, in that order."""
        settings = json.loads(self.compose("config", "--format", "json"))["services"]
        return [settings[service]["image"] for service in services]

    def prometheus(self) -> PrometheusApi:
        """At the port that it is published on, which a restart may change."""
        return PrometheusApi(self.compose("port", "prometheus", "9090").strip())
