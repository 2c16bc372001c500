"""The notebooks of the documentation, run from top to bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nbclient
import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

from leco.report.metrics import read_table
from support.paths import ROOT
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

    from jupyter_client.blocking.client import BlockingKernelClient

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


@pytest.mark.filterwarnings("default")
def test_the_stop_button_ends_training_in_order_and_the_notebook_goes_on(tmp_path: Path) -> None:
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path), startup_timeout=PATIENCE)
    try:
        sent = client.execute(
            "import leco\n"
            "run = leco.train('Empty-5x5', frames=1e7, run_dir='run', threads=1, settings={'learner.log_every': 1})"
        )
        until(lambda: len(read_table(tmp_path / "run" / "metrics.csv").get("frames", ())) > 0)
        manager.interrupt_kernel()
        assert reply(client, sent)["status"] == "ok", "no KeyboardInterrupt"
        assert list((tmp_path / "run" / "checkpoints").glob("[0-9]*.safetensors")), "the learner has saved"
        told = reply(client, client.execute("assert run.agent().task.name == 'Empty-5x5'"))
        assert told["status"] == "ok", told
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def reply(client: BlockingKernelClient, sent: str) -> dict[str, Any]:
    while True:
        message = client.get_shell_msg(timeout=PATIENCE)
        if message["parent_header"]["msg_id"] == sent:
            content: dict[str, Any] = message["content"]
            return content
