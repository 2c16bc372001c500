"""The images, built by a real engine: what is in them, what is not, and DeepMind Lab's variant. `make e2e` runs it."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from support.compose_system import System, docker, need_docker, wheels
from support.paths import DMLAB_STAND_IN, ROOT
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

# `docker images` of Debian's own image. Those that stand in for it may be larger, so what we add to it is measured.
DEBIAN_MB = 75
RESTRICTED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none")
PLAY = """
import numpy as np
from leco.envs.registry import make
env = make("lasertag_three_opponents_small", num_envs=2, seed=0)
env.reset()
for _ in range(3):
    steps = env.step(np.full(2, 14))
print(steps.observation_EO.shape, steps.reward_E.tolist(), env.dropped_episodes)
env.close()
"""


@pytest.fixture(scope="module")
def images() -> dict[str, str]:
    """Names of the three images, built."""
    need_docker()
    system = System(wheels())
    system.compose("build")
    names = ("actor", "hashcount", "learner")
    return dict(zip(names, system.images(*names), strict=True))


def inside(image: str, *command: str) -> subprocess.CompletedProcess[str]:
    """What a command gives in a container with as few rights as ours have."""
    return subprocess.run(
        ["docker", "run", "--rm", *RESTRICTED, f"--entrypoint={command[0]}", image, *command[1:]],
        capture_output=True,
        text=True,
        check=False,
    )


def megabytes(image: str) -> float:
    return float(docker("image", "inspect", "--format", "{{.Size}}", image)) / 1e6


def test_the_image_of_hashcount_has_no_torch_and_less_than_200_mb(images: dict[str, str]) -> None:
    ours = megabytes(images["hashcount"]) - megabytes("debian:bookworm-slim")
    assert DEBIAN_MB + ours < 200
    assert "No module named 'torch'" in inside(images["hashcount"], "python3", "-c", "import torch").stderr


@pytest.mark.parametrize("service", ["actor", "hashcount", "learner"])
def test_an_image_runs_as_nobody_in_particular_and_cannot_compile(images: dict[str, str], service: str) -> None:
    assert inside(images[service], "id", "-u").stdout == "10001\n"
    assert inside(images[service], "sh", "-c", "command -v cc gcc g++ clang make").stdout == ""
    [image] = json.loads(docker("image", "inspect", images[service]))
    assert image["Config"]["Entrypoint"] == ["leco", service]
    assert image["Config"]["Healthcheck"]["Test"] == ["CMD", "leco", "health"]


def test_what_hashcount_imports_is_compiled_already(images: dict[str, str]) -> None:
    """Where the image is read-only, what is not compiled is compiled at every start, and by every probe."""
    for command in ("hashcount", "health"):
        loaded = inside(images["hashcount"], "python3", "-v", "/opt/leco/bin/leco", command, "--help").stderr
        assert (
            "code object from '/opt/leco/lib/python3.11/site-packages/grpc/__pycache__/__init__.cpython-311.pyc'"
            in loaded
        )
        assert re.findall(r"code object from '?(/opt/leco\S+\.py)'?$", loaded, re.MULTILINE) == []


@pytest.mark.parametrize("service", ["actor", "learner"])
def test_sigterm_ends_a_service_that_is_still_starting(images: dict[str, str], service: str) -> None:
    """As process 1 it would not hear of it while it loads torch, and be killed when the engine's patience ends."""
    container = docker("run", "--detach", *RESTRICTED, images[service]).strip()
    try:
        asked = ["docker", "kill", "--signal=TERM", container]
        until(lambda: subprocess.run(asked, capture_output=True, check=False).returncode != 0)  # it has ended
        assert docker("inspect", "--format", "{{.State.ExitCode}}", container) == "143\n"
    finally:
        docker("rm", "--force", "--volumes", container)


def test_the_large_part_of_actor_and_learner_is_one_layer(images: dict[str, str]) -> None:
    layers = [
        json.loads(docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", images[name]))
        for name in ("actor", "learner")
    ]
    base = json.loads(docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", "python:3.11-slim-bookworm"))
    assert layers[0][: len(base) + 1] == layers[1][: len(base) + 1]


def build_dmlab(wheel: Path) -> subprocess.CompletedProcess[str]:
    flags = [f"--build-context=dmlab-wheel={wheel}", *(f"--build-context=wheels={each}" for each in wheels().values())]
    command = ["docker", "build", "--file=services/actor/Dockerfile", "--target=dmlab", "--tag=leco-actor-dmlab:e2e"]
    return subprocess.run([*command, *flags, "."], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_variant_with_deepmind_lab_takes_its_wheel_from_a_folder(images: dict[str, str], tmp_path: Path) -> None:
    assert images["actor"]  # of which it is a variant
    with zipfile.ZipFile(tmp_path / "deepmind_lab-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(DMLAB_STAND_IN / "deepmind_lab" / "__init__.py", "deepmind_lab/__init__.py")  # not what it imports
        about = {
            "METADATA": "Metadata-Version: 2.1\nName: deepmind_lab\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }
        for name, text in about.items():
            wheel.writestr(f"deepmind_lab-1.0.dist-info/{name}", text)
    built = build_dmlab(tmp_path)
    assert built.returncode == 0, built.stderr
    played = inside("leco-actor-dmlab:e2e", "python", "-c", PLAY)
    assert played.stdout == "(2, 72, 96, 3) [4.0, 4.0] 0\n", played.stderr
    assert "writ" not in played.stderr  # the cache of levels can be written to


def test_without_the_wheel_the_build_says_what_is_missing(images: dict[str, str], tmp_path: Path) -> None:
    assert images["actor"]
    built = build_dmlab(tmp_path)
    assert built.returncode != 0
    assert "give its folder with --build-context dmlab-wheel=FOLDER (docs/dmlab.md)" in built.stderr
