"""Who wants to know how training goes: called with each new line of metrics.csv, by whoever trains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from leco.cli.watch.tail import Tail
from leco.report.metrics import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    # A line by column, without what is empty in it; to answer True ends the run.
    Listener = Callable[[Mapping[str, float]], object]


class Telling:
    """Tells each line once, and none that was there before.

    Args:
        path: metrics.csv.
        listeners: Are called in this order.
    """

    def __init__(self, path: Path, listeners: Sequence[Listener]) -> None:
        self._tail, self._listeners = Tail(path), listeners
        before = read_table(path).get("updates")
        self._told = max(before, default=-1.0) if before is not None else -1.0

    def tell(self) -> bool:
        """Tells what is new. Whether a listener wants the run to end."""
        if not self._listeners:
            return False
        ends, more = False, True
        while more:
            lines = self._tail.read()
            more = lines.more
            for values in lines.values_LC.tolist():
                line = {name: value for name, value in zip(lines.columns, values, strict=True) if not math.isnan(value)}
                if line.get("updates", -1.0) > self._told:
                    self._told = line["updates"]
                    answers = [listener(line) for listener in self._listeners]
                    ends |= any(answer is True for answer in answers)
        return ends

    def close(self) -> None:
        """Lets go of the file."""
        self._tail.close()
