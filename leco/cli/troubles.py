"""What services log as warnings and errors while a run trains, said to whoever watches it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

AGAIN_AFTER_SECONDS = 60.0
LEVELS = ("warning", "error", "critical")


class Troubles:
    """Follows the logs of services, whose lines are JSON.

    What a service says again and again is told once a minute.

    Args:
        logs: Of each service, by its name, and where in it to begin.
    """

    def __init__(self, logs: Mapping[str, tuple[Path, int]]) -> None:
        self._logs = {name: log for name, (log, _) in logs.items()}
        self._places = {name: place for name, (_, place) in logs.items()}
        self._told: dict[tuple[str, str], float] = {}

    def news(self) -> Iterator[str]:
        """A sentence for each warning or error that is new since the last call."""
        for name, path in self._logs.items():
            for line in self._lines(name):
                event, detail = _trouble(line)
                if event and self._is_time(name, event):
                    yield f"{name}: {event}{f' ({detail})' if detail else ''}; its log: {path}"

    def _lines(self, name: str) -> list[bytes]:
        """Those that are whole; the rest is for the next time."""
        with self._logs[name].open("rb") as file:
            file.seek(self._places[name])
            whole, newline, _ = file.read().rpartition(b"\n")
        self._places[name] += len(whole) + len(newline)
        return whole.splitlines()

    def _is_time(self, name: str, event: str) -> bool:
        now = time.monotonic()
        if now - self._told.get((name, event), float("-inf")) < AGAIN_AFTER_SECONDS:
            return False
        self._told[name, event] = now
        return True


def _trouble(line: bytes) -> tuple[str, str]:
    """What a line warns of, and why; empty if it is none."""
    try:
        said = json.loads(line)
    except ValueError:
        return "", ""  # not ours
    if not isinstance(said, dict) or said.get("level") not in LEVELS:
        return "", ""
    return _printable(said.get("event", "")), _printable(said.get("error") or said.get("reason") or "")


def _printable(value: object) -> str:
    text = str(value)
    return text if text.isprintable() else ascii(text)[1:-1]
