"""The hash-count service as a child process, for benchmarks, and what processes cost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP_SECONDS = 30.0


@contextmanager
def service(*flags: str) -> Iterator[dict[str, object]]:
    """Runs `leco hashcount` on free ports of this machine; gives its log line "serving", which names them, and its `pid`."""
    command = [sys.executable, "-m", "services.hashcount", "--listen", "127.0.0.1:0", "--metrics-port", "0", *flags]
    child = subprocess.Popen([*command, "--log-format", "json"], stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        said, lines = {}, []
        while "address" not in said:
            lines.append(child.stderr.readline())
            try:
                said = json.loads(lines[-1])
            except json.JSONDecodeError:
                raise RuntimeError(f"the service did not start: {''.join(lines)}{child.stderr.read()}") from None
        yield said | {"pid": child.pid}
    finally:
        child.terminate()
        child.communicate(timeout=STOP_SECONDS)


def processor_seconds(pid: int) -> float:
    """What a process has used of processors since it began, its threads together."""
    return time.clock_gettime((~pid << 3) | 2)  # how Linux numbers the clock of a process
