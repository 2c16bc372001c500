"""Methods of other packages: in a module of one's own, or installed with an entry point."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from leco.cli import tables
from leco.config.experiment import ConfigError
from leco.config.toml import parse, to_toml
from leco.methods.novelty import find_novelty
from leco.methods.table import find_method

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
from leco.methods.table import Hash, Method, Modulation

class Inverse:
    def build(self, kind, num_actions, network):
        return None

    def compute(self, given):
        return None

INVERSE = Method("whatever", Hash.EXACT, "own_novelty:Inverse", Modulation.NONE, lambda_=0.0, description="1 / N")
LOST = Method("lost", Hash.EXACT, "own_novelty:Inverted", Modulation.NONE)
NUMBER = 7
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder where the command was started, with a module in it."""
    (tmp_path / "own_novelty.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("own_novelty", None)


@pytest.mark.usefixtures("here")
def test_a_row_in_a_module_is_a_method_by_the_name_that_every_process_finds_it_by() -> None:
    method = find_method("own_novelty:INVERSE")
    assert (method.name, method.description) == ("own_novelty:INVERSE", "1 / N")
    assert type(find_novelty(method)).__name__ == "Inverse"
    experiment = parse("", {"task": "Empty-5x5", "method": "own_novelty:INVERSE"})
    assert parse(to_toml(experiment)) == experiment


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_novelty:INVERS", "method 'own_novelty:INVERS' cannot be used: the module 'own_novelty' has no 'INVERS'"),
        ("own_novelty:NUMBER", "method 'own_novelty:NUMBER' cannot be used: it is int, expected a row"),
        ("own_novelty:LOST", "method 'own_novelty:LOST' cannot be used: the module 'own_novelty' has no 'Inverted'"),
        ("own_novelt:INVERSE", "there is no module 'own_novelt': install it, or run leco in the folder that has it"),
    ],
)
def test_a_mistake_is_one_sentence(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse("", {"task": "Empty-5x5", "method": name})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_module_that_ends_in_an_error_says_which(here: Path) -> None:
    (here / "own_broken.py").write_text("1 / 0")
    with pytest.raises(
        ValueError, match="the module own_broken cannot be imported: ZeroDivisionError: division by zero"
    ):
        find_method("own_broken:ROW")


def test_nothing_in_that_folder_stands_for_a_part_of_python(here: Path) -> None:
    (here / "json.py").write_text("raise SystemExit('taken for the real one')")
    find_method("own_novelty:INVERSE")
    import json

    assert json.loads("1") == 1


def installed(folder: Path, points: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip would have: what the package says of itself, where Python looks."""
    about = folder / "own_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[leco.methods]\n{points}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_an_installed_package_brings_methods_along(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(here, "inverse = own_novelty:INVERSE\nbroken = own_novelty:NOTHING", monkeypatch)
    assert find_method("inverse").name == "inverse"
    with pytest.raises(ValueError, match="there is no method 'invrse'; did you mean 'inverse'"):
        find_method("invrse")
    tables.methods([])
    shown = capsys.readouterr().out
    assert "inverse" in shown
    assert "method 'broken' cannot be used: the module 'own_novelty' has no 'NOTHING'" in shown
