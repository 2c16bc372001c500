"""Files that are there whole or not at all."""

from __future__ import annotations

import glob
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def atomic_write(path: Path, data: bytes) -> None:
    """Puts a file in place in one step, on the disk itself and not only in its cache."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):  # by a process that was killed
        left.unlink(missing_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
