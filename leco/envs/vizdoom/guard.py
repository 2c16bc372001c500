"""Ends ViZDoom engines whose program is gone. By themselves they would wait for it for ever.

This file is also the guard's program, run by itself: it may import the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path


class Guard:
    """A small process that waits for this one to end, however it does, and then kills the engines that are still there.

    mark   to be put in the command line of the engines; the guard knows them by it
    """

    def __init__(self) -> None:
        self.mark = secrets.token_hex(16)
        # In a session of its own, so that Ctrl-C in a terminal does not end it. Its input ends when this process does.
        self._process = subprocess.Popen(  # noqa: S603  # our own file
            [sys.executable, "-I", "-S", __file__, self.mark], stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def closed(self) -> bool:
        """Nothing is guarded any more."""
        return self._process.returncode is not None

    def close(self) -> None:
        """Ends the guard, and any engine that was not ended."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()


def sweep(mark: str) -> None:
    """Kills the engines with this mark, and removes the shared memory that they had."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone already, or not ours
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if mark in words and "+viz_instance_id" in words:
                os.kill(int(folder.name), signal.SIGKILL)
                instance = words[words.index("+viz_instance_id") + 1]
                for file in Path("/dev/shm").glob(f"ViZDoom*{instance}"):  # noqa: S108  # where the library puts it
                    file.unlink()


if __name__ == "__main__":
    sys.stdin.read()
    sweep(sys.argv[1])
