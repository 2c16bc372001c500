"""The notebooks of the documentation, run from top to bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbclient
import nbformat
import pytest

from support.paths import ROOT
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.filterwarnings("default")  # what a kernel's client says of itself is not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_as_written(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = nbclient.NotebookClient(
        notebook, timeout=int(PATIENCE), kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    said = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()) if cell.source]
    shown = "".join(said)
    assert "success " in shown
    assert "solved: " in shown
    assert (tmp_path / "runs/first-steps/metrics.csv").exists()
