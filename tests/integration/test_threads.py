from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.waiting import PATIENCE


@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")])
def test_threads_without_work_sleep_unless_the_user_says_otherwise(given: dict[str, str], expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    said = subprocess.run(
        [sys.executable, "-P", "-m", "leco", "learner", "--help"],
        env={**environment, "OMP_DISPLAY_ENV": "true", **given},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    ).stderr
    assert f"OMP_WAIT_POLICY = '{expected}'" in said
