"""Small tensors on one thread, and a small disk."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

import support.one_thread  # noqa: F401  # it is imported for what it does

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("cannot mount a small disk here: it takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # also if a test that failed left a file open
