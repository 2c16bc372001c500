"""Tests of the `leco` command itself."""

from __future__ import annotations

import sys

import pytest

from leco.cli.environment_flags import pairs
from leco.cli.main import main


def test_windows_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match="leco does not run on Windows itself: use WSL 2, or Docker"):
        main()


@pytest.mark.parametrize(("typed", "value"), [("true", True), ("True", True), ("False", False), ("'True'", "True")])
def test_booleans_are_read_as_toml_and_as_python_write_them(typed: str, value: object) -> None:
    assert pairs("--env-kwargs", [f"lit={typed}"], "size=8") == {"lit": value}
