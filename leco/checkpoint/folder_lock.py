"""One process at a time trains in a run's folder: two would destroy each other's curves and checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import IO, TYPE_CHECKING

from leco.config.experiment import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".lock"


def take(file: IO[str] | int, refusal: str) -> None:
    """Locks an open file or folder, until it is closed or the process ends.

    Raises:
        ConfigError: another process holds it; with this text.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(refusal) from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run's folder, which it makes if it is not there. The lock ends with the process, however that ends.

    Raises:
        ConfigError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
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
