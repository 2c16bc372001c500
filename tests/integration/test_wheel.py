"""leco as others install it: the wheel that `pip wheel .` makes, outside of the repository, with some extras or with none."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from leco.cli.main import COMMANDS
from support.paths import ROOT
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVICES = (
    "actor",
    "cluster",
    "export",
    "hashcount",
    "learner",
    "report",
    "tracing",
    "vizdoom",
    "wandb",
)  # what "all" is
# In every process: a finder that is asked first, and knows that these packages are not there
ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def packages(*extras: str) -> set[str]:
    """What is imported of what extras install."""
    wanted = [
        re.split(r"[\[<>=]", each)[0].lower() for extra in extras for each in PROJECT["optional-dependencies"][extra]
    ]
    known = importlib.metadata.packages_distributions()
    return {name for name, found in known.items() if not {each.lower() for each in found}.isdisjoint(wanted)}


class Installed:
    """The wheel, unpacked where Python finds it before anything else."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.folder = folder
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder / "leco")

    def run(self, *arguments: str, extras: tuple[str, ...] = SERVICES) -> subprocess.CompletedProcess[str]:
        """What the command does if only these extras are installed."""
        hidden = self.folder / ("-".join(extras) or "none")
        hidden.mkdir(exist_ok=True)
        names = sorted(packages(*SERVICES) - packages(*extras) - {"google", "numpy"})
        (hidden / "sitecustomize.py").write_text(ABSENT.format(names=names))
        return subprocess.run(
            [sys.executable, "-P", "-m", "leco", *arguments],
            cwd=hidden,
            env={**os.environ, "PYTHONPATH": f"{hidden}:{self.folder / 'leco'}"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        ".",
    ]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert made.returncode == 0, made.stderr
    [wheel] = folder.glob("leco-*.whl")
    return Installed(wheel, folder)


def test_the_wheel_trains_and_plays_outside_of_the_repository_with_the_extras_that_it_names(
    installed: Installed,
) -> None:
    assert installed.run("--version").stdout == f"leco {PROJECT['version']}\n"
    trained = installed.run(
        *("train", "--task=Empty-5x5", "--frames=2000", "--num-envs=4", "--run-dir=run", "--threads=1"),
        extras=("actor", "hashcount", "learner"),
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    run = installed.folder / "actor-hashcount-learner" / "run"
    played = installed.run("eval", str(run), "--episodes=3", extras=("actor", "learner"))
    assert played.returncode == 0, played.stderr
    shown = installed.run("report", str(run), extras=("report",))
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("repository", ["", "https://git.example.com/leco/"])
def test_no_link_of_its_description_leads_nowhere(repository: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    env = os.environ | {"LECO_REPOSITORY_URL": repository}
    subprocess.run([*command, "."], cwd=ROOT, env=env, check=True, capture_output=True, timeout=PATIENCE)
    [wheel] = tmp_path.glob("leco-*.whl")
    with zipfile.ZipFile(wheel) as file:
        [name] = [each for each in file.namelist() if each.endswith(".dist-info/METADATA")]
        told = file.read(name).decode()
    assert "Description-Content-Type: text/markdown" in told
    links = re.findall(r"\]\(([^)]+)\)", told.replace("(#", ""))
    assert all(each.startswith("https://") for each in links)
    of_the_repository = {each.removeprefix(repository) for each in links if repository and each.startswith(repository)}
    assert ("blob/main/docs/compose.md" in of_the_repository) == bool(repository)
    assert ("raw/main/docs/results/demo_multiroom_n6.gif" in of_the_repository) == bool(repository)


def test_the_zoo_comes_with_the_wheel(installed: Installed) -> None:
    listed = installed.run("zoo", extras=("actor", "learner"))
    assert "KeyCorridorS4R3" in listed.stdout, listed.stderr
    played = installed.run("eval", "zoo/MultiRoom-N2-S4", "--episodes=3", extras=("actor", "learner"))
    assert "success rate  100.0 %" in played.stdout, played.stderr


def test_without_onnx_the_other_format_is_exported(installed: Installed) -> None:
    without = ("actor", "learner")
    refused = installed.run("export", "zoo/MultiRoom-N2-S4", extras=without)
    assert refused.stderr.splitlines()[-1].startswith("leco export: the package onnx is not installed: pip install")
    done = installed.run("export", "zoo/MultiRoom-N2-S4", "--format=torchscript", extras=without)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["watch", "zoo", "export", "probe", "actor", "learner", "hashcount", "cluster"])
def test_a_command_starts_with_the_extras_that_it_names(installed: Installed, name: str) -> None:
    done = installed.run(name, "--help", extras=tuple(COMMANDS[name][2].split(",")))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("eval run", "torch"),
        ("watch .", "uvicorn"),
        ("report .", "matplotlib"),
        ("probe run", "torch"),
        ("export run", "torch"),
        ("actor", "torch"),
        ("learner", "torch"),
        ("hashcount", "redis"),
        ("cluster", "kubernetes"),
    ],
)
def test_without_its_extras_a_command_names_them(installed: Installed, command: str, package: str) -> None:
    name = command.split(maxsplit=1)[0]
    done = installed.run(*command.split(), extras=())
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"leco {name}: the package {package} is not installed: pip install 'leco[{COMMANDS[name][2]}]', or 'leco[all]' for every "
        "command"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["tasks", "methods", "health", "dmlab-levels"])
def test_some_commands_need_no_extra(installed: Installed, name: str) -> None:
    done = installed.run(name, *(["--help"] if "-" in name or name == "health" else []), extras=())
    assert (done.returncode, done.stderr) == (0, "")


def test_the_extra_all_is_every_other_one_that_a_command_needs() -> None:
    extras = PROJECT["optional-dependencies"]
    assert extras["all"] == [f"leco[{','.join(SERVICES)}]"]
    assert set(SERVICES) == set(extras) - {"all", "atari", "dev", "dmlab", "docs"}
    assert {each for _, _, named in COMMANDS.values() for each in named.split(",") if each} <= set(SERVICES)
