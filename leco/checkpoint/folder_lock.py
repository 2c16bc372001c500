"""One process at a time trains in a run's folder: two would destroy each other's curves and checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from leco.config.experiment import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run's folder, which it makes if it is not there. The lock ends with the process, however that ends.

    Raises:
        ConfigError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(
                f"{folder} is being trained in by another process ({file.read().strip() or 'unknown'}): wait until it ends, "
                "or choose another folder (--run-dir)"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
