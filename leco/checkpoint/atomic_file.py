"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Has an error of the system name the file, as that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def set_aside(path: Path) -> Path:
    """Gives what cannot be used another name, for a person to look at, and returns it."""
    aside = path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}")
    return path.rename(aside)


def atomic_write(path: Path, data: bytes) -> None:
    """Puts a file in place in one step, on the disk itself and not only in its cache."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):  # by a process that was killed
        left.unlink(missing_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with naming(path), partial.open("xb") as file:
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
