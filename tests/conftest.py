"""Says at the end of a test run what was skipped and why, and how to get what was missing."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from support.needs import NEEDS

if TYPE_CHECKING:
    import pytest


# A child that is forked while a server of another test is at work would run gRPC's handlers, and sometimes break its pipes.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    if not reasons:
        return
    terminalreporter.section("skipped")
    for reason, number in reasons.most_common():
        terminalreporter.write_line(f"{number:5}  {reason}")
    packages = [need.package for need in NEEDS if need.package and not need.found]
    if packages and reasons.keys() & {need.reason for need in NEEDS}:
        terminalreporter.write_line(f"To run them too: apt-get install -y {' '.join(packages)}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    *_, text = report.longrepr if isinstance(report.longrepr, (tuple, list)) else (str(report.longrepr),)
    return str(text).removeprefix("Skipped: ")
