"""The checks around proto/ find what they are there to find."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leco.v1 import hash_count_pb2
from services.hashcount.store import Status
from support.paths import ROOT

BUF = Path(sys.executable).parent / "buf"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The parts of the project that the checks look at."""
    for name in ("proto", "leco/v1"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def run(folder: Path, *command: str | Path) -> tuple[int, str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_contracts_as_they_are_pass(copy: Path) -> None:
    assert run(copy, BUF, "lint") == (0, "")
    assert run(copy, BUF, "breaking", "--against", "proto/accepted.binpb") == (0, "")
    assert run(copy, sys.executable, "proto/generate.py", "--check") == (0, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("uint32 code_width = 2;", "uint64 code_width = 2;"),
        ("bytes codes = 4;", "bytes codes = 5;"),
        ("rpc Count(", "rpc CountCodes("),
        ("EPISODE_STATUS_GAP = 3;", "EPISODE_STATUS_GAP = 30;"),
    ],
)
def test_a_breaking_change_is_found(copy: Path, old: str, new: str) -> None:
    edit(copy / "proto/leco/v1/hash_count.proto", old, new)
    code, output = run(copy, BUF, "breaking", "--against", "proto/accepted.binpb")
    assert code != 0
    assert "hash_count.proto" in output


def test_a_new_field_is_no_breaking_change(copy: Path) -> None:
    edit(
        copy / "proto/leco/v1/hash_count.proto",
        "bytes codes = 4;",
        "bytes codes = 4;\n  // More.\n  uint32 more = 100;",
    )
    assert run(copy, BUF, "breaking", "--against", "proto/accepted.binpb") == (0, "")


def test_generated_code_that_is_out_of_date_or_edited_is_found(copy: Path) -> None:
    edit(
        copy / "proto/leco/v1/hash_count.proto",
        "bytes codes = 4;",
        "bytes codes = 4;\n  // More.\n  uint32 more = 100;",
    )
    code, output = run(copy, sys.executable, "proto/generate.py", "--check")
    assert code == 1
    assert "hash_count_pb2.py" in output
    assert "make proto" in output
    assert run(copy, sys.executable, "proto/generate.py")[0] == 0
    assert run(copy, sys.executable, "proto/generate.py", "--check") == (0, "")
    (copy / "leco/v1/stray_pb2.py").write_text("")
    assert run(copy, sys.executable, "proto/generate.py", "--check")[0] == 1


def test_the_stores_and_the_wire_use_the_same_numbers() -> None:
    wire = {name.removeprefix("EPISODE_STATUS_"): number for name, number in hash_count_pb2.EpisodeStatus.items()}
    assert wire == {"UNSPECIFIED": 0} | {status.name: status.value for status in Status}
