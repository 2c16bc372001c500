"""The hash-count service as a child process, for benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP_SECONDS = 30.0


@contextmanager
def service(*flags: str) -> Iterator[dict[str, object]]:
    """Runs `leco hashcount` on free ports of this machine; gives its log line "serving", which names them."""
    command = [sys.executable, "-m", "services.hashcount", "--listen", "127.0.0.1:0", "--metrics-port", "0", *flags]
    child = subprocess.Popen([*command, "--log-format", "json"], stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            raise RuntimeError(f"the service did not start: {line}{child.stderr.read()}") from None
    finally:
        child.terminate()
        child.communicate(timeout=STOP_SECONDS)
