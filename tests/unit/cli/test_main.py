"""Tests of the `leco` command itself."""

from __future__ import annotations

import sys

import pytest

from leco.cli.main import main


def test_windows_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match="leco does not run on Windows itself: use WSL 2, or Docker"):
        main()
