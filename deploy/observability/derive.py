"""Writes what is derived from other files. With --check, only says whether it is up to date.

docs/metrics.md              every metric, from the code that registers it
alerts/prometheusrule.yaml   the alerts for the Prometheus operator, from alerts/leco.rules.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

from leco.cli.catalogue import SERVICES, Measure, catalogue

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
METRICS = ROOT / "docs" / "metrics.md"
METRICS_HEAD = """\
# Metrics

<!-- Made from the code by `python deploy/observability/derive.py`; never edit it. -->

Every service serves its metrics for Prometheus at `/metrics` on a port of its own
(`--metrics-port`; 9471 of an actor, 9451 of the learner, 9461 of hashcount), beside what the
Prometheus client measures of any process (`process_resident_memory_bytes`,
`process_cpu_seconds_total`, `python_gc_*`). To look at those of a learner on this machine:

    curl -s http://127.0.0.1:9451/metrics | grep '^leco_'

Names are `leco_<service>_<noun>_<unit>`, in base units (seconds, bytes). Counters end in `_total`
and begin at zero with every start. A histogram `x` is three series: `x_bucket` with the label `le`,
`x_sum` and `x_count`. No label holds an id, so the number of series does not grow with episodes.
Label values that are listed are there from the start, so that their rate is zero and not missing.

Dashboards and alerts that use them: [operations](operations.md).
"""
RULES = HERE / "alerts" / "leco.rules.yaml"
OPERATOR_RULES = HERE / "alerts" / "prometheusrule.yaml"
OPERATOR_HEAD = """\
# Made from leco.rules.yaml by `python deploy/observability/derive.py`; never edit it.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: leco
spec:
"""


def operator_rules() -> str:
    """The same alerts one level deeper; comments stay in the source."""
    lines = [line for line in RULES.read_text().splitlines() if not line.startswith("#")]
    return OPERATOR_HEAD + "".join(f"  {line}\n" for line in lines)


def metrics_page() -> str:
    """All metrics, a table for each service."""
    parts = [METRICS_HEAD]
    for service in SERVICES:
        rows = "".join(map(_row, catalogue(service)))
        parts.append(f"\n## {service}\n\n| metric | kind | labels | what it is |\n|---|---|---|---|\n{rows}")
    return "".join(parts)


def _row(measure: Measure) -> str:
    labels = [f"`{name}`" + (f": {', '.join(values)}" if values else "") for name, values in measure.labels.items()]
    return f"| `{measure.name}` | {measure.kind} | {'; '.join(labels) or '-'} | {measure.meaning} |\n"


def main() -> None:
    """Writes, or checks."""
    check = sys.argv[1:] == ["--check"]
    stale = []
    for path, text in ((METRICS, metrics_page()), (OPERATOR_RULES, operator_rules())):
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(ROOT))
    if stale:
        sys.exit(f"{', '.join(map(str, stale))} is not up to date: run `python deploy/observability/derive.py`")


if __name__ == "__main__":
    main()
