"""A run on this machine, from its first child process to its last: what `leco train` and `leco.train` do."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from leco.checkpoint.folder_lock import locked
from leco.cli.child import LECO, POLL_SECONDS, Child
from leco.cli.listeners import Telling
from leco.cli.progress import Progress, verdict
from leco.cli.store import use_store
from leco.cli.troubles import Troubles
from leco.config.toml import to_toml
from leco.methods.table import find_method
from leco.report.metrics import read_table
from leco.telemetry.provenance import CLOCK_ZERO, COMMAND, typed_command
from services.flags import FINAL
from services.learner.run_folder import check_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from leco.cli.listeners import Listener
    from leco.config.experiment import Experiment

SAYS_AFTER_SECONDS = 3.0
LONGEST_UPDATE_SECONDS = 600.0  # one of pixels on few processors takes a minute, with its save
PORTS = range(22_000, 32_768)


def train(
    experiment: Experiment,
    folder: Path,
    *,
    actors: int,
    store: str,
    threads: int,
    device: str = "cpu",
    ranks: int = 1,
    out: TextIO = sys.stdout,
    began: float | None = None,
    listeners: Sequence[Listener] = (),
    command: str | None = None,
) -> int:
    """Runs everything to the end, and says when the task was learned.

    Args:
        experiment, folder: What, and where.
        actors, store, threads, device, ranks: How; as the flags.
        out: Where progress is shown.
        began: When the command began, as time.monotonic() counts; from there on the run's seconds are counted. Default: now.
        listeners: Are told each new line of metrics.csv, and may end the run.
        command: What the run's folder says that it was made by; what was typed, if not given.

    Returns:
        The exit code: 0 if training is done, 130 after Ctrl-C or when a listener ended it, 1 if a service would not run.

    Raises:
        ConfigError: another process trains in this folder, it has a run of another experiment, or the store does not answer.
        OSError: the folder cannot be written to.
    """
    began = time.monotonic() if began is None else began
    if find_method(experiment.method).counts:
        use_store(store)
    with locked(folder):  # now, and not when the learner finds out
        check_same(folder, experiment)
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    config = folder / "requested.toml"
    config.write_text(to_toml(experiment))
    how = {"actors": actors, "threads": max(threads // ranks, 1), "ranks": ranks}
    learner, others = _children(experiment, folder, config, logs, device=device, **how)
    learner.environment[CLOCK_ZERO] = repr(began - _seconds_before(folder))
    learner.environment[COMMAND] = command or typed_command()  # and not how the service was started
    progress, telling = Progress(folder / "metrics.csv", experiment, out), Telling(folder / "metrics.csv", listeners)
    out.write(f"{experiment.task}, {experiment.method}, seed {experiment.seed}: {folder}\n")
    out.flush()
    code = 1
    with _asked_to_stop() as stopping:
        try:
            for child in (*others, learner):
                child.start()
            code = _watch(learner, others, progress, out, lambda: telling.tell() or stopping())
        finally:
            _stop(learner, others, out)
            progress.show(last=True)
    telling.tell()  # the last lines
    telling.close()
    if code != 1:
        out.write(verdict(folder / "metrics.csv", experiment, done=code == 0))
    if code == 0:
        out.write(f"done: {folder}\n  leco eval {folder} --video episode.mp4\n  leco report {folder}\n")
    out.flush()
    return code


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Says whether Ctrl-C or SIGTERM has asked for the end."""
    asked = threading.Event()
    before = {}
    if threading.current_thread() is threading.main_thread():  # Python gives signals to no other
        before = {each: signal.signal(each, lambda *_: asked.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(learner: Child, others: Sequence[Child], out: TextIO) -> None:
    """Stops all: the learner has the time that its update and its save need, and the hash-count service is there until then."""
    actors = [each for each in others if each.is_actor]
    for child in (learner, *actors):
        child.ask_to_end()
    if not learner.ends_within(SAYS_AFTER_SECONDS):
        out.write("waiting for the learner: it ends its update, and saves\n")
        out.flush()
    learner.stop(LONGEST_UPDATE_SECONDS)
    for child in (*actors, *others):
        child.stop(seconds=30)


def _watch(
    learner: Child, others: Sequence[Child], progress: Progress, out: TextIO, stopping: Callable[[], bool]
) -> int:
    """Shows progress until training is done, somebody stops it, or a service ends again and again. Returns the exit code."""
    # Not of actors: what they have to say of the other two is said by these.
    troubles = Troubles({child.name: (child.log, child.place) for child in (*others, learner) if not child.is_actor})
    while True:
        time.sleep(POLL_SECONDS)
        trained = learner.ended() == 0  # asked first, so that all is told that was said before
        progress.show()
        for trouble in troubles.news():
            out.write(f"\n{trouble}\n")
            out.flush()
        if stopping():
            out.write("\nstopping: the learner saves, the same command goes on from here\n")
            return 130
        if trained:
            return 0
        for child in (each for each in (*others, learner) if each.ended() is not None):
            words, final = child.last_words(), child.ended() == FINAL
            again = child.again()
            if child.ends == 1 or not again:
                what = "is started again" if again else "cannot run" if final else "ends again and again"
                out.write(f"\n{child.name} has ended and {what}: {words} (its log: {child.log})\n")
                out.flush()
            if not again:
                return 1


def _seconds_before(folder: Path) -> float:
    """How long a run was trained by the commands before this one, what a crash has lost included."""
    seconds = read_table(folder / "metrics.csv").get("seconds")
    return float(max(seconds, default=0.0)) if seconds is not None else 0.0


def _children(
    experiment: Experiment,
    folder: Path,
    config: Path,
    logs: Path,
    *,
    actors: int,
    threads: int,
    device: str,
    ranks: int,
) -> tuple[Child, list[Child]]:
    counts = find_method(experiment.method).counts
    learner_port, hashcount_port = _free_ports(2)
    learner = [*LECO, "learner", f"--config={config}", f"--run-dir={folder}", f"--listen=127.0.0.1:{learner_port}"]
    learner += ["--metrics-port=off", f"--threads={threads}", f"--device={device}", f"--ranks={ranks}"]
    children = [Child("learner", learner, logs / "learner.log")]
    if counts:
        command = [*LECO, "hashcount", f"--listen=127.0.0.1:{hashcount_port}", "--metrics-port=off"]
        children.append(Child("hashcount", command, logs / "hashcount.log"))
    for index in range(actors):
        command = [*LECO, "actor", f"--learner=127.0.0.1:{learner_port}", f"--hashcount=127.0.0.1:{hashcount_port}"]
        command += [f"--index={index}", f"--name=actor-{index}", "--metrics-port=off", "--drain-seconds=0.1"]
        children.append(Child(f"actor {index}", command, logs / f"actor-{index}.log"))
    return children[0], children[1:]


def _free_ports(count: int) -> list[int]:
    """Below those that systems give to outgoing connections: one of these could have it before the service does."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port, one = random.choice(PORTS), stack.enter_context(socket.socket())  # noqa: S311  # protects nothing
            with contextlib.suppress(OSError):  # somebody has it
                one.bind(("127.0.0.1", port))
                found.append(port)
        return found
