"""Trainings as child processes, for the benchmarks that measure them from outside; and environments of their own for rivals."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TICKS = os.sysconf("SC_CLK_TCK")


def install(venv: Path, packages: Sequence[str]) -> None:
    """Sets up a rival's environment, unless these packages are there already."""
    ready, wanted = venv / ".ready", "\n".join(packages)
    if ready.exists() and ready.read_text() == wanted:
        return
    print(f"Setting up {venv.name} (a few minutes, the first time) ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    (venv / ".gitignore").write_text("*\n")
    subprocess.run([venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
    ready.write_text(wanted)


def stop(*_: object) -> None:
    """Ends what runs, once: a second signal must not break off the first one's tidying up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder for a run, removed with all that is in it."""
    path = Path(tempfile.mkdtemp(prefix="leco-benchmark-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A training as a child process, ended as by Ctrl-C, with everything that it started."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        below = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            print(f"did not end by itself and was killed: {shlex.join(command)}", flush=True)
            process.kill()
            process.wait()
        deadline = time.monotonic() + 10
        while (left := still_there(below)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def still_there(processes: dict[int, str]) -> list[int]:
    """Those that have not ended, of what `descendants` found earlier: an id counts if it still began at that time."""
    now = {pid: stat(pid) for pid in processes}
    return [pid for pid, began in processes.items() if now[pid][19:20] == [began] and now[pid][0] != "Z"]


def check(process: subprocess.Popen[bytes], run: Path) -> None:
    """Ends the benchmark if the training has ended."""
    if process.poll() is not None:
        sys.exit(f"a training ended with code {process.returncode}; its last words:\n{tail(run)}")


def tail(run: Path) -> str:
    """The end of what a training printed."""
    return "\n".join((run / "log").read_text(errors="replace").splitlines()[-20:])


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """What a process, those below it, and those of them that have ended took of processors, so far."""
    found = (stat(pid) for pid in (process.pid, *descendants(process.pid)))
    return sum(int(each) for fields in found for each in fields[11:15]) / TICKS


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process started, and those that they did: when each began, by its id."""
    every = {int(path.name): stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    found: dict[int, str] = {}
    parents = {str(pid)}
    while parents:
        children = {each: fields[19] for each, fields in every.items() if fields and fields[1] in parents}
        found |= children
        parents = set(map(str, children))
    return found


def stat(pid: int) -> list[str]:
    """What the kernel says of a process: state, parent, ..., 19: when it began. Empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
