"""docs/reference/hardware.md is what the zoo says."""

from __future__ import annotations

import importlib.util

from leco.evaluation.zoo import find_entries
from support.paths import ROOT


def test_the_page_is_current_and_has_every_entry() -> None:
    spec = importlib.util.spec_from_file_location("derive_hardware", ROOT / "docs/derive_hardware.py")
    assert spec is not None
    assert spec.loader is not None
    derive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(derive)
    page = derive.PAGE.read_text()
    assert page == derive.page(), "run `python docs/derive_hardware.py`"
    entries = [each.name for each in find_entries(ROOT / "zoo")]
    assert entries
    assert all(f"| {name} | " in page for name in entries)
