"""docs/reference/settings.md is what the code says."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from leco.config.toml import flat, parse
from support.paths import ROOT

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="module")
def derive() -> ModuleType:
    spec = importlib.util.spec_from_file_location("derive_settings", ROOT / "docs/derive_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(derive: Any) -> None:
    assert derive.PAGE.read_text() == derive.page(), "run `python docs/derive_settings.py`"


def test_every_setting_and_flag_has_a_meaning_of_its_own(derive: Any) -> None:
    rows = [line.split(" | ") for line in derive.page().splitlines() if line.startswith("| `")]
    names = {row[0].strip("| `") for row in rows}
    assert set(flat(parse("", {"task": "Empty-5x5", "preset": "laptop"}))) <= names
    assert {"--listen", "--run-dir", "--store", "--hashcount"} <= names
    assert all(len(row[-1].strip("| ")) > 3 for row in rows)
