"""What no Python package brings. Tests that need it are skipped where it is missing; the end of a test run says how to get it."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

import pytest


class Need(NamedTuple):
    """A program, the reason that a test without it gives, and the Debian package that has it, if there is one."""

    reason: str
    package: str | None
    found: bool

    @property
    def mark(self) -> pytest.MarkDecorator:
        """For tests that need it."""
        return pytest.mark.skipif(not self.found, reason=self.reason)


def _has(*programs: str) -> bool:
    return all(map(shutil.which, programs))


CHROMIUM = os.environ.get("LECO_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
browser = Need("needs Chromium, or another browser of its kind named by LECO_CHROMIUM", "chromium", bool(CHROMIUM))
prometheus = Need("needs Prometheus with promtool", "prometheus", _has("prometheus", "promtool"))
redis = Need("needs Redis 7 with redis-cli", "redis-server", _has("redis-server", "redis-cli"))
kustomize = Need(
    "needs kubectl 1.27 or newer, or kustomize 5: https://kubernetes.io/docs/tasks/tools/",
    None,
    _has("kubectl") or _has("kustomize"),
)
zip_program = Need("needs zip, as DeepMind Lab does", "zip", _has("zip"))
NEEDS = (browser, prometheus, redis, kustomize, zip_program)
