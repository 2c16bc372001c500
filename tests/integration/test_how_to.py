"""The guides in docs/how-to: a copy of the repository, their code put where they say, their commands run as written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
GUIDES = ("add-a-method", "add-an-environment", "add-an-observation-kind", "use-your-own-environment")
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """Code of a guide. `place`: a file, or a file and the line after which it stands; empty for commands."""

    language: str
    place: str
    text: str


def blocks(guide: str) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall((ROOT / f"docs/how-to/{guide}.md").read_text())]


def put(folder: Path, block: Block) -> None:
    name, _, line = block.place.partition(", after ")
    path = folder / name
    if not line:
        assert not path.exists(), "a guide writes new files"
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text)
        return
    before, found, after = path.read_text().partition(f"\n{line}\n")
    assert found, f"{name} has no line {line!r}"
    path.write_text(before + found + block.text + after)


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_works_as_written(guide: str, tmp_path: Path) -> None:
    for part in ("leco", "services"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    found = blocks(guide)
    assert {each.language for each in found} == {"python", "sh"}
    for block in found:
        if block.place:
            put(tmp_path, block)
            continue
        # The repository that is installed is this one; the copy comes first.
        command = ["bash", "-euo", "pipefail", "-c", block.text]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_method_of_ones_own_works_as_written_outside_of_the_repository(tmp_path: Path) -> None:
    home = tmp_path / "elsewhere"
    home.mkdir()
    found = blocks("bring-your-own-method")
    assert [each.language for each in found] == ["python", "sh"]
    for block in found:
        if block.place:
            put(home, block)
            continue
        environment = {"PATH": f"{Path(sys.prefix, 'bin')}:/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
