"""Where things are in this repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
DMLAB_STAND_IN = TESTS / "support" / "dmlab_stand_in"  # a folder for PYTHONPATH
