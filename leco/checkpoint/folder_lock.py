"""One process at a time trains in a run's folder: two would destroy each other's curves and checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

from leco.config.experiment import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK = ".lock"
LOCKS = Path("/proc/locks")


def take(file: IO[str] | int, refusal: str) -> None:
    """Locks an open file or folder, until it is closed or the process ends.

    Raises:
        ConfigError: another process holds it; with this text.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(refusal) from None


def is_held(folder: Path) -> bool:
    """Whether a process of this machine holds a run's folder. It only looks, and so is in nobody's way."""
    try:
        file = (folder / LOCK).stat().st_ino
        return f":{file} " in LOCKS.read_text()
    except OSError:
        return False


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run's folder, which it makes if it is not there. The lock ends with the process, however that ends.

    Raises:
        ConfigError: another process holds it, or there can be no such folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a+")
    except (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(
            f"cannot use {folder}: {str(error.strerror).lower()}; choose another folder (--run-dir)"
        ) from None
    with lock as file:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        take(
            file,
            f"{folder} is being trained in by another process ({holder}): wait until it ends, or choose another folder "
            "(--run-dir)",
        )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
