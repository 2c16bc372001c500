"""How long something took or will take: for people, and by activity as a metric."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import Counter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class TimeByActivity:
    """Time by what it was spent on.

    Args:
        name: Of the counter, which has the label `activity`.
        documentation: Of the counter.
        activities: All there are.
        registry: Where it is registered.
    """

    def __init__(self, name: str, documentation: str, activities: Sequence[str], registry: CollectorRegistry) -> None:
        self._counter = Counter(name, documentation, ["activity"], registry=registry)
        self._since = dict.fromkeys(activities, 0.0)
        for activity in activities:
            self._counter.labels(activity)

    @contextmanager
    def spent(self, activity: str) -> Iterator[None]:
        """Notes what is done within it, unless it fails."""
        begin = time.monotonic()
        yield
        self.add(activity, time.monotonic() - begin)

    def add(self, activity: str, seconds: float) -> None:
        """Notes seconds that were spent."""
        self._counter.labels(activity).inc(seconds)
        self._since[activity] += seconds

    def take_shares(self) -> dict[str, float]:
        """The share of each activity in what was noted since this was last called."""
        total = sum(self._since.values()) or 1.0
        shares = {activity: seconds / total for activity, seconds in self._since.items()}
        self._since = dict.fromkeys(self._since, 0.0)
        return shares
