"""Which state is the best: by the mean return of its last hundred episodes, as actors report it."""

from __future__ import annotations

from leco.report.metrics import RECENT_EPISODES

NONE = float("-inf")


class BestReturn:
    """A record stands as high as the hundred episodes after it bear it out.

    What a few reports claimed, and none after them, does not stay the best for ever.

    Args:
        record: The mean return that is to be beaten.
        confirmed: As much of it as two hundreds in succession had; a record without it is confirmed.
    """

    def __init__(self, record: float = NONE, confirmed: float | None = None) -> None:
        self.record, self.confirmed = record, record if confirmed is None else confirmed
        self._claimed_at = 0  # how many episodes there were when the record was set

    def beaten(self, mean: float, episodes: int) -> bool:
        """Whether the mean return of the last hundred of so many episodes is a new record."""
        if self.record > self.confirmed and episodes - self._claimed_at >= RECENT_EPISODES:
            self.record = self.confirmed = max(self.confirmed, min(self.record, mean))
        if mean <= self.record:
            return False
        self.record, self._claimed_at = mean, episodes
        return True
