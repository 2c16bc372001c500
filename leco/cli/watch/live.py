"""What every open page is told: what there is when it comes, then only what is new."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from leco.cli.watch.series import Series
from leco.cli.watch.standing import Standing
from leco.cli.watch.tail import Tail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from leco.cli.watch.replays import Replays

POLL_SECONDS = 1.0


class Live:
    """Reads a run, once for all pages.

    Args:
        folder: The run's.
        replays: What is replayed.
    """

    def __init__(self, folder: Path, replays: Replays) -> None:
        self._tail, self._standing, self._replays = Tail(folder / "metrics.csv"), Standing(folder), replays
        self._series, self._beginnings = Series(()), 0
        self._known: dict[str, Any] = {}
        self._changed = asyncio.Condition()
        self.pages = 0  # open now, as the server counts them

    async def follow(self) -> None:
        """Reads on until it is cancelled."""
        try:
            while True:
                try:
                    more = self._read()
                except OSError as error:  # no permission, say: it may be given
                    more, self._known = False, {**self._standing.now(self._series.last), "trouble": str(error)}
                async with self._changed:
                    self._changed.notify_all()
                await asyncio.sleep(0 if more else POLL_SECONDS)
        finally:
            self._tail.close()

    def _read(self) -> bool:
        """Takes in the next lines; whether there are more."""
        found = self._tail.read()
        if found.anew or found.columns != self._series.columns:
            self._series = Series(found.columns)
            self._beginnings += 1
        values_LC = found.values_LC
        if "frames" in found.columns:  # what is not known to be anywhere cannot be drawn
            values_LC = values_LC[np.isfinite(values_LC[:, found.columns.index("frames")])]
        self._series.add(values_LC)
        self._standing.note(found.columns, values_LC, anew=found.anew)
        if not found.more:
            self._known = self._standing.now(self._series.last)
        return found.more

    async def changes(self, stopping: Callable[[], bool]) -> AsyncIterator[tuple[str, str]]:
        """Events for one page, by name, as JSON; until the server stops, which is looked at after every poll."""
        lines, stride, beginnings = 0, 1, -1
        sent: dict[str, Any] = {}
        while not stopping():
            if beginnings != self._beginnings:
                lines, stride, beginnings = 0, 0, self._beginnings
            if (lines, stride) != (self._series.lines, self._series.stride):
                new = self._series.since(lines, stride)
                lines, stride = self._series.lines, self._series.stride
                yield "curves", _json(new)
            now_all = {"standing": self._known, "player": self._replays.state(), "episode": self._replays.newest}
            for name, now in now_all.items():
                if now and sent.get(name) != now:
                    sent[name] = now
                    yield name, _json(now)
            async with self._changed:
                await self._changed.wait()


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), allow_nan=False)
