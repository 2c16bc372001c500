"""Writes what is derived from other files. With --check, only says whether it is up to date.

alerts/prometheusrule.yaml   the alerts for the Prometheus operator, from alerts/leco.rules.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
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


def main() -> None:
    """Writes, or checks."""
    check = sys.argv[1:] == ["--check"]
    stale = []
    for path, text in ((OPERATOR_RULES, operator_rules()),):
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(HERE.parents[1]))
    if stale:
        sys.exit(f"{', '.join(map(str, stale))} is not up to date: run `python deploy/observability/derive.py`")


if __name__ == "__main__":
    main()
