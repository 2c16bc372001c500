"""The hash-count service as a real child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from prometheus_client.parser import text_string_to_metric_families

from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Mapping


class ServiceProcess:
    """Runs `python -m services.hashcount` on free ports of this machine from `with` to its end.

    Args:
        flags: Further flags; each wins over the ones that this class gives (--listen, --metrics-port, --log-format).
        env: Variables beside those of this process, whose own LECO_ variables are left out.

    Attributes:
        address: "127.0.0.1:port", where gRPC is served.
        metrics_port: Where metrics are served, or 0 with "--metrics-port off".
        pid: The child's id.
        lines: What the child wrote so far, one string a line; a thread appends to it until the child ends.
    """

    address: str
    metrics_port: int
    pid: int

    def __init__(self, *flags: str, env: Mapping[str, str] | None = None) -> None:
        ours = ("--listen", "127.0.0.1:0", "--metrics-port", "0", "--log-format", "json")
        self._command = [sys.executable, "-m", "services.hashcount", *ours, *flags]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LECO_")}
        self._env = inherited | dict(env or {})
        self.lines: list[str] = []
        self._changed = threading.Condition()  # of `lines` and `_ended`
        self._ended = False

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            self._command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.pid = self._child.pid
        self._reader = threading.Thread(target=self._read, name=f"service-{self.pid}")
        self._reader.start()
        try:
            serving = self.until_logged("serving")
        except BaseException:
            self.kill()
            raise
        self.address = str(serving["address"])
        self.metrics_port = int(serving["metrics_port"] or 0)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()  # a drain is tested where it matters; everywhere else it would only take time

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the child to drain and stop; returns at once."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """Crash: the child, if it still runs, gets no chance to do anything; returns when it is gone."""
        self._child.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for the end of the child; its exit code (minus the signal's number if it was killed)."""
        code = self._child.wait(PATIENCE)
        self._reader.join()  # so that `lines` is complete
        return code

    def logged(self) -> list[dict[str, Any]]:
        """The lines so far that are JSON, which are all but those of a crash."""
        return [parsed for line in self.lines[:] if (parsed := _parsed(line)) is not None]

    def until_logged(self, event: str, *, after: int = 0) -> dict[str, Any]:
        """Wait for a line whose `event` begins with these words; the lines before index `after` are not looked at."""
        deadline = time.monotonic() + PATIENCE
        position = after
        with self._changed:
            while True:
                for line in self.lines[position:]:
                    position += 1
                    parsed = _parsed(line)
                    if parsed is not None and str(parsed.get("event")).startswith(event):
                        return parsed
                if self._ended or time.monotonic() > deadline:
                    what = "ended" if self._ended else f"ran for {PATIENCE:g} s"
                    output = "\n".join(self.lines)
                    raise RuntimeError(f"the service {what} without the log line {event!r}; it wrote:\n{output}")
                self._changed.wait(max(deadline - time.monotonic(), 0.001))

    def metrics_page(self) -> str:
        """What Prometheus would get now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=PATIENCE) as page:
            return str(page.read().decode())

    def metrics(self) -> dict[str, float]:
        """Every value of the page by its name and its labels' values, these in the order of the labels: "x_total OK Count"."""
        families = text_string_to_metric_families(self.metrics_page())
        return {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }

    def memory_bytes(self, what: str = "VmRSS") -> int:
        """Resident memory of the child now; of "VmHWM" the most that it ever was."""
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [kib] = [line.split()[1] for line in status if line.startswith(f"{what}:")]
        return 1024 * int(kib)

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as output:
            for line in output:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None
