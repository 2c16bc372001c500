"""`import leco`: what a notebook sees."""

from __future__ import annotations

import doctest
import subprocess
import sys
from importlib import import_module

import pytest

import leco
from support.waiting import PATIENCE


def test_import_is_quick_and_takes_neither_torch_nor_a_simulator() -> None:
    code = "import sys, leco; print({'torch', 'grpc', 'numpy', 'minigrid', 'gymnasium'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", leco.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(leco, name) is not None
    assert name in dir(leco)


def test_there_is_no_other_name() -> None:
    with pytest.raises(AttributeError, match="module 'leco' has no attribute 'tarin'"):
        leco.tarin  # noqa: B018


@pytest.mark.parametrize("module", ["leco.api.agent", "leco.rewards.wrapper"])
def test_examples_are_true(module: str) -> None:
    found = doctest.testmod(import_module(module), extraglobs={"leco": leco}, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0
