"""A run's folder is held by one process."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from leco.checkpoint.folder_lock import is_held, locked
from leco.config.experiment import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
import sys, time, pathlib
from leco.checkpoint.folder_lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_is_held_once_and_again_when_it_is_free(tmp_path: Path) -> None:
    run = tmp_path / "some" / "run"
    with locked(run), pytest.raises(ConfigError, match="is being trained in by another process"), locked(run):
        pass
    with locked(run):
        pass


def test_another_process_is_named_and_its_lock_ends_with_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(ConfigError, match=rf"another process \({holder.pid}\): wait until it ends"),
            locked(tmp_path),
        ):
            pass
        assert is_held(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert not is_held(tmp_path)
        with locked(tmp_path):
            pass
