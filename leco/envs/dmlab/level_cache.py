"""Compiled levels of DeepMind Lab in a folder that any number of processes share.

This file also runs in the engine's own interpreter (see `engine.py`): standard library only, Python 3.7 or newer.

DeepMind Lab compiles a level for seconds and asks such a cache first. A file is the SHA-256 of a level, then the level. It is
written under another name and renamed, so that a process sees all of it or nothing, and what a crash of the machine left
half-written does not fit its hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

_DIGEST = 32
_STALE_SECONDS = 3600.0  # a file that is still being written is younger
_ROOM = 0.9  # of the limit is left in use by a clean-up, so that not every level calls for the next


class LevelCache:
    """What `deepmind_lab.Lab(level_cache=...)` wants. It never raises: an error here would cost the episode.

    Args:
        folder: Made if it is missing. One that cannot be written to serves what is in it.
        limit: In bytes. Beyond it, the levels that were not used for the longest time are removed.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = Path(folder)
        self._limit = limit
        self._complained = False

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copies the level to the path, if it is known."""
        path = self._path(key)
        try:
            digest_and_level = path.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as error:
            return self._complain("read", error)
        level = digest_and_level[_DIGEST:]
        if hashlib.sha256(level).digest() != digest_and_level[:_DIGEST]:
            with contextlib.suppress(OSError):
                path.unlink()
            return self._complain("use", ValueError(f"{path.name} is damaged"))
        try:
            _write(Path(pk3_path), level)
        except OSError as error:
            return self._complain("copy a level from", error)
        with contextlib.suppress(OSError):  # used just now; only a clean-up wants to know
            os.utime(str(path))
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keeps the level that is at the path."""
        path = self._path(key)
        try:
            if path.exists():
                return
            level = Path(pk3_path).read_bytes()
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(path, hashlib.sha256(level).digest() + level)
            self._clean_up()
        except OSError as error:
            self._complain("write to", error)

    def _path(self, key: str) -> Path:
        """A name of our own: a key is never a path."""
        return self._folder / (hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest() + ".level")

    def _clean_up(self) -> None:
        """Removes what was not used for long, down to a little less than the limit. Several processes may do so at once."""
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                status = path.stat()
                if path.suffix == ".level":
                    found.append((status.st_mtime, status.st_size, path))
                elif path.suffix == ".tmp" and time.time() - status.st_mtime > _STALE_SECONDS:
                    path.unlink()  # of a process that was killed
        total = sum(size for _, size, _ in found)
        if total <= self._limit:
            return
        for _, size, path in sorted(found):
            if total <= _ROOM * self._limit:
                return
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            total -= size

    def _complain(self, what: str, error: Exception) -> bool:
        """Says once what is wrong, where the parent process finds it; without a level, DeepMind Lab compiles it."""
        if not self._complained:
            sys.stderr.write(f"leco: cannot {what} the level cache: {error}\n")
            self._complained = True
        return False


def _write(path: Path, content: bytes) -> None:
    """Writes a file that is seen whole or not at all."""
    descriptor, name = tempfile.mkstemp(prefix=path.stem + ".", suffix=".tmp", dir=str(path.parent))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)  # noqa: PTH101  # mkstemp keeps other users out, who may share the cache
        os.replace(name, str(path))  # noqa: PTH105  # names, as mkstemp gives them
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
