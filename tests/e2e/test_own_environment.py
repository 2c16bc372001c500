"""A module of one's own in containers, from a mounted folder and as a wheel, as docs/compose.md has it. `make e2e` runs it."""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING

import pytest

from support.compose_system import System, docker, need_docker, wheels
from support.paths import ROOT
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

SERVICES = ("redis", "hashcount", "learner", "actor")
BLOCK = re.compile(r"^```\w+ title=\"(?:\w+/)?([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTED = dict(BLOCK.findall((ROOT / "docs/compose.md").read_text()))
MODULE = dict(BLOCK.findall((ROOT / "docs/how-to/use-your-own-environment.md").read_text()))["my_rooms.py"]
FIRST = 'preset = "laptop"\nframes = 1e6\nactors.num_envs = 16\n'


def trains(folder: Path, env: dict[str, str]) -> None:
    """The documented commands: an actor says what the environment is, and all services train on it."""
    experiment = folder / "rooms.toml"
    experiment.write_text(FIRST)
    system = System({"LECO_EXPERIMENT": str(experiment), "LECO_RUN": "rooms"} | env | wheels())
    system.compose("down", "--volumes", "--timeout", "0")  # of a run that was interrupted
    try:
        ask = ("run", "--rm", "-T", "--no-deps", "--entrypoint", "leco", "actor", "tasks", "my_rooms:MyRooms-v0")
        experiment.write_text(FIRST + system.compose(*ask, "--env-kwargs", "size=7"))
        system.compose("up", "--detach", "--wait", *SERVICES)
        until(lambda: frames(system) >= 8192)
        assert system.healthy()
    finally:
        system.compose("down", "--volumes", "--timeout", "0")


def frames(system: System) -> int:
    """What the run has been trained on."""
    lines = system.compose("exec", "-T", "learner", "cat", "/runs/rooms/metrics.csv").splitlines()
    return int(lines[-1].split(",")[lines[0].split(",").index("frames")]) if len(lines) > 1 else 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that everybody may read, as whoever runs in a container must."""
    need_docker()
    for each in (tmp_path, *tmp_path.parents[:2]):
        each.chmod(0o755)
    System(wheels()).compose("build")
    return tmp_path


def test_actors_find_a_module_in_the_mounted_folder(folder: Path) -> None:
    modules = folder / "envs"
    modules.mkdir(mode=0o755)
    (modules / "my_rooms.py").write_text(MODULE)
    (modules / "leco").mkdir()  # which is not taken for the real one
    trains(folder, {"LECO_MODULES": str(modules)})


def test_actors_have_a_module_as_a_wheel(folder: Path) -> None:
    with zipfile.ZipFile(folder / "my_rooms-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("my_rooms.py", MODULE)
        about = {
            "METADATA": "Metadata-Version: 2.1\nName: my_rooms\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }
        for name, text in about.items():
            wheel.writestr(f"my_rooms-1.0.dist-info/{name}", text)
    for name, text in DOCUMENTED.items():
        (folder / name).write_text(text)
    docker("build", "--tag=my-actor", str(folder))
    trains(folder, {"COMPOSE_FILE": f"{ROOT / 'compose.yaml'}:{folder / 'compose.override.yaml'}"})
    docker("image", "rm", "my-actor")
