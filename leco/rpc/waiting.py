"""Who waits for a service says so."""

from __future__ import annotations

import time

import structlog

log = structlog.get_logger(__name__)

FIRST_SECONDS = 2.0  # a service that only starts, or has lost a connection, is mostly back before
EVERY_SECONDS = 60.0


class Waiting:
    """A wait that begins now, and is logged after two seconds and then every minute.

    Args:
        for_whom: In words.
    """

    def __init__(self, for_whom: str) -> None:
        self._for_whom, self._begin = for_whom, time.monotonic()
        self._next = self._begin + FIRST_SECONDS

    def say(self, reason: str) -> None:
        """Hears why it goes on, and logs it if it is time to."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_SECONDS
            log.warning(f"waiting for {self._for_whom}", seconds=round(now - self._begin), reason=reason)
