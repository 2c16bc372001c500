"""A service, or another command, as a child process that is started again when it ends by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.flags import FINAL
from services.parent import end_with_parent

if TYPE_CHECKING:
    from pathlib import Path

GIVE_UP_AFTER = 5  # ends of one child in a row, each within a minute of its start
MINUTE = 60.0
POLL_SECONDS = 0.2

# This very installation: with -P a folder called `leco` or `services` where the user happens to be is not taken for it.
LECO = (sys.executable, "-P", "-m", "leco")


@dataclass
class Child:
    """A service as a child process, started again when it ends by itself."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    ends: int = 0  # in a row, each soon after its start
    started: float = 0.0
    place: int = 0  # in its log, where the present start begins
    environment: dict[str, str] = field(default_factory=dict)  # beside that of this process

    @property
    def is_actor(self) -> bool:
        """Whether it is one of the actors."""
        return self.name.startswith("actor")

    def start(self) -> None:
        """Starts it; what it prints goes to its log."""
        self.started = time.monotonic()
        with self.log.open("ab") as out:
            self.place = out.tell()
            # Its own group, so that Ctrl-C reaches only the parent, which then stops the children in order.
            self.process = subprocess.Popen(  # noqa: S603  # our own commands
                self.command,
                stdout=out,
                stderr=out,
                env=os.environ | self.environment,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509  # it takes no lock that a thread of a notebook could have
            )

    def ended(self) -> int | None:
        """Its exit code, if it has ended."""
        return None if self.process is None else self.process.poll()

    def again(self) -> bool:
        """Starts it again, unless it ends all the time, or has said that no other start heals it."""
        self.ends = self.ends + 1 if time.monotonic() - self.started < MINUTE else 1
        if self.ended() == FINAL or self.ends > GIVE_UP_AFTER:
            return False
        self.start()
        return True

    def last_words(self) -> str:
        """The last line that it wrote since its present start, or how it was ended."""
        code = self.ended() or 0
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        with self.log.open("rb") as file:
            file.seek(self.place)
            lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {code}"

    def ask_to_end(self) -> None:
        """By SIGTERM."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def ends_within(self, seconds: float) -> bool:
        """Whether it does."""
        try:
            if self.process is not None:
                self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, seconds: float) -> None:
        """Asks it to end, and ends it if it does not."""
        self.ask_to_end()
        if not self.ends_within(seconds) and self.process is not None:
            self.process.kill()
            self.process.wait()


def last_lines(path: Path, lines: int = 8) -> str:
    """How a log ends."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
