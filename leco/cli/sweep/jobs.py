"""The work of a sweep: `leco train` and then `leco eval` as child processes for each run, some at a time."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leco.checkpoint.atomic_file import atomic_write
from leco.checkpoint.trained import frames_of_update, trained_updates
from leco.cli.child import LECO, POLL_SECONDS, Child, last_lines
from leco.cli.sweep.folder import evaluation, last_metrics, needs
from leco.config.toml import to_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leco.cli.sweep.plan import Run

STOP_SECONDS = 150.0  # `leco train` itself gives each of its services 30
REFUSED = (1, 2)  # exit codes of a command that has given up by itself; with any other it was ended


@dataclass
class Job:
    """A run and what happens to it.

    Attributes:
        run, folder: What, and where.
        state: waiting, running, evaluating, done or failed.
        child: The process that works on it.
        why: Of a failure, the last lines of its log.
        frames, speed, success: How far it is, frames in a second, and the share of episodes that it solved.
        pace: Frames in a second over all its training.
    """

    run: Run
    folder: Path
    state: str = "waiting"
    child: Child | None = None
    why: str = ""
    frames: int = 0
    speed: float | None = None
    success: float | None = None
    pace: float | None = None

    @property
    def left(self) -> int:
        """Frames still to be trained on."""
        ended = self.state in ("evaluating", "done", "failed")
        return 0 if ended else max(self.run.experiment.frames - self.frames, 0)

    def look(self) -> None:
        """Reads how far it is."""
        last = last_metrics(self.folder)
        if self.state != "running" or last is None:
            self.frames = trained_updates(self.folder) * frames_of_update(self.run.experiment)
            self.speed = None
        else:
            self.frames, self.speed = int(last["frames"]), float(last["frames_per_second"])
        if last is not None:
            self.success = float(last["success"]) if last["success"] else None
            self.pace = int(last["frames"]) / max(float(last["seconds"]), 1e-9)
        if self.state == "done" and (found := evaluation(self.folder)) is not None:
            self.success = found["success"]


class Sweep:
    """Works on jobs until all have ended or `stopping` is set.

    Args:
        jobs: What is to be done, in this order; each is done that needs nothing any more.
        episodes: Of an evaluation.
        parallel: How many at a time.
        actors, threads, device: As for `leco train`.
        on_change: Is told of each job whose state changed.
        on_look: Is called a few times a second.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        episodes: int,
        parallel: int,
        actors: int,
        threads: int,
        device: str,
        on_change: Callable[[Job], None],
        on_look: Callable[[], None],
    ) -> None:
        self.jobs, self._episodes, self._parallel = jobs, episodes, parallel
        self._actors, self._threads, self._device = actors, threads, device
        self._on_change, self._on_look = on_change, on_look
        self.stopping = False
        for job in jobs:
            if not needs(job.run, job.folder, episodes):
                job.state = "done"
            job.look()

    @property
    def active(self) -> list[Job]:
        """The jobs that something works on."""
        return [job for job in self.jobs if job.state in ("running", "evaluating")]

    def work(self) -> None:
        """Returns when nothing is left to do, or soon after `stopping` was set. Then `stop` ends what still runs."""
        while not self.stopping:
            waiting = [job for job in self.jobs if job.state == "waiting"]
            for job in waiting[: self._parallel - len(self.active)]:
                self._begin(job, needs(job.run, job.folder, self._episodes))
            if not self.active:
                return
            time.sleep(POLL_SECONDS)
            for job in self.active:
                self._check(job)
            self._on_look()

    def _begin(self, job: Job, what: str) -> None:
        log = job.folder / "logs" / f"{'train' if what == 'train' else 'eval'}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if what == "train":
            atomic_write(job.folder / "requested.toml", to_toml(job.run.experiment).encode())
            command = training_command(job, actors=self._actors, threads=self._threads, device=self._device)
        else:
            command = evaluation_command(job, self._episodes)
        job.child = Child(job.run.name, command, log)
        job.child.start()
        self._turn(job, "running" if what == "train" else "evaluating")

    def _check(self, job: Job) -> None:
        """Looks after a job whose process may have ended."""
        assert job.child is not None  # noqa: S101
        code = job.child.ended()
        if code is None:
            return
        what = needs(job.run, job.folder, self._episodes)
        if code == 0 and not what:
            self._turn(job, "done")
        elif code == 0 and what == "evaluate" and job.state == "running":
            self._begin(job, what)
        elif code == 0 or code in REFUSED or not job.child.again():
            job.why = last_lines(job.child.log)
            self._turn(job, "failed")

    def _turn(self, job: Job, state: str) -> None:
        job.state = state
        job.look()
        self._on_change(job)

    def stop(self) -> None:
        """Ends what still runs, all at once, since each training needs its time to save."""
        active = self.active
        for job in active:
            if job.child is not None and job.child.process is not None and job.child.ended() is None:
                job.child.process.terminate()
        for job in active:
            if job.child is not None:
                job.child.stop(STOP_SECONDS)
            job.state = "waiting"
            job.look()


def training_command(job: Job, *, actors: int, threads: int, device: str) -> list[str]:
    """`leco train`, of what its folder has as requested.toml."""
    what = [f"--config={job.folder / 'requested.toml'}", f"--run-dir={job.folder}"]
    # A queue that was asked for stays, however many actors there are.
    how = [
        f"--actors={actors}",
        f"--threads={threads}",
        f"--device={device}",
        f"--set=learner.queue_capacity={job.run.experiment.learner.queue_capacity}",
    ]
    return [*LECO, "train", *what, *how]


def evaluation_command(job: Job, episodes: int) -> list[str]:
    """`leco eval` of the newest checkpoint."""
    return [*LECO, "eval", str(job.folder), f"--episodes={episodes}", f"--json={job.folder / 'evaluation.json'}"]


def seconds_left(jobs: Sequence[Job], parallel: int) -> float | None:
    """How long the training of all will take, at the pace of what was trained by the same method; None if none is known."""
    paces: dict[str, list[float]] = {}
    for job in jobs:
        if job.pace is not None:
            paces.setdefault(job.run.experiment.method, []).append(job.pace)
    everything = [pace for each in paces.values() for pace in each]
    alone = []
    for job in jobs:
        known = [job.pace] if job.pace is not None else paces.get(job.run.experiment.method, everything)
        if job.left and not known:
            return None
        alone.append(job.left / (sum(known) / len(known)) if job.left else 0.0)
    return max(sum(alone) / parallel, max(alone, default=0.0))


def present_commit() -> str:
    """Which commit of leco this is, with "-dirty" if files were changed since; empty outside a checkout of its own."""
    here = Path(__file__).parent

    def git(*arguments: str) -> Any:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=False)  # noqa: S603, S607

    try:
        ours = git("ls-files", "--error-unmatch", Path(__file__).name).returncode == 0
        return str(git("describe", "--always", "--dirty").stdout.strip()) if ours else ""
    except OSError:
        return ""
