"""The dashboards in deploy/observability: every query in them, with Grafana's variables filled in as Grafana would."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from support.paths import ROOT

OBSERVABILITY = ROOT / "deploy" / "observability"
DASHBOARDS = OBSERVABILITY / "dashboards"
EVERYTHING = ".*"  # what Grafana puts in for "All"


class Query(NamedTuple):
    """A target of a panel: `expr` as it stands in the dashboard, with variables."""

    dashboard: str
    panel: str
    expr: str

    def filled(self, *, interval: str = "1m", window: str = "5m") -> str:
        """What Grafana asks Prometheus, with all runs selected.

        Args:
            interval: For $__rate_interval, which is at least four times the interval of scraping.
            window: For $window, over which episodes are averaged.
        """
        values = {"__rate_interval": interval, "window": window}
        values |= dict.fromkeys(("run", "task", "method"), EVERYTHING)
        return re.sub(r"\$(\w+)", lambda found: values[found[1]], self.expr)


def boards() -> dict[str, dict[str, Any]]:
    """The dashboards by the name of their file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def queries() -> list[Query]:
    """Every query of every dashboard."""
    return [
        Query(name, panel["title"], target["expr"])
        for name, board in boards().items()
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]
