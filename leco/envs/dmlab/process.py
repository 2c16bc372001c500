"""One DeepMind Lab engine as the process that plays sees it: started, asked, waited for, killed. See docs/dmlab.md."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

from leco.envs.dmlab import engine as wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHAPE = (72, 96, 3)  # of a picture
_PIXELS = SHAPE[0] * SHAPE[1] * SHAPE[2]
_WORDS = 600  # characters of the beginning, and of the end, of what an engine printed


class EngineError(Exception):
    """An engine that is of no more use, and why. `missing`: something that it needs is not installed."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


class Engine:
    """A process that plays one environment, seen from here.

    Args:
        python: Its interpreter.
        configuration: The content of its first message.
    """

    def __init__(self, python: str, configuration: bytes) -> None:
        self._python = python
        self._configuration = configuration
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process; READY is the answer to wait for. Raises OSError if the interpreter cannot be run."""
        # What the engine prints is kept in memory, where it needs no disk and blocks nobody, and forgotten with each episode.
        self._printed = os.memfd_create("leco-dmlab")
        fcntl.fcntl(self._printed, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
        self._folder = tempfile.TemporaryDirectory(prefix="leco-dmlab-", ignore_cleanup_errors=True)
        self.line, theirs = socket.socketpair()
        self._received, self._awaited = bytearray(), wire.READY
        variables = {key: value for key, value in os.environ.items() if key != "TEST_TMPDIR"}
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603  # the interpreter that the user names, and our own program
                    [self._python, wire.__file__, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=self._printed,
                    stderr=self._printed,
                    pass_fds=[theirs.fileno()],
                    env=variables | {"TMPDIR": self._folder.name},  # what a killed engine leaves there is removed here
                    start_new_session=True,  # Ctrl-C is for us; and a kill reaches the programs that compile levels
                )
        except OSError:
            self._let_go()
            raise
        self.line.setblocking(False)
        self._send(wire.CONFIGURE, self._configuration)

    def begin(self, episode: int, seed: int) -> None:
        """Asks for the first picture of an episode, of a process that is started if there is none."""
        if self._process is None:
            self.start()
        os.ftruncate(self._printed, 0)
        self._awaited = wire.FIRST
        self._send(wire.RESET, wire.EPISODE.pack(episode, seed))

    def act(self, vector: Sequence[int]) -> None:
        """Asks for what an action leads to, given as the seven numbers that the module takes."""
        self._awaited = wire.STEPPED
        self._send(wire.STEP, wire.ACTION.pack(*vector))

    def answer(self) -> bytes | None:
        """The awaited answer, None as long as it is not all there. Does not wait. Raises EngineError."""
        try:
            part = self.line.recv(1 << 16)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            part = b""
        if not part:
            raise EngineError(self._end())
        self._received += part
        while len(self._received) >= wire.HEADER.size:
            kind, length = wire.HEADER.unpack_from(self._received)
            end = wire.HEADER.size + length
            if length > _PIXELS + wire.OUTCOME.size:
                raise EngineError(f"sent a message of kind {kind} with {length} bytes")
            if len(self._received) < end:
                break
            content = bytes(self._received[wire.HEADER.size : end])
            del self._received[:end]
            if kind in (wire.FAILED, wire.MISSING):
                raise EngineError("raised " + content.decode("utf-8", "replace"), missing=kind == wire.MISSING)
            self._check(kind, content)
            if kind == self._awaited:
                return content
        return None

    def words(self) -> str:
        """What the engine printed in this episode. Of much, the beginning, which has the cause, and the end."""
        size = os.fstat(self._printed).st_size
        first, last = os.pread(self._printed, _WORDS, 0), b""
        if size > _WORDS:
            last = os.pread(self._printed, _WORDS, max(size - _WORDS, _WORDS))
        between = b" [...] " if size > 2 * _WORDS else b""
        words = (first + between + last).decode("utf-8", "replace").strip()
        return f"; it printed: {words}" if words else ""

    def kill(self) -> None:
        """Ends the process, and those that it started, at once."""
        self.leave()
        self.wait(0.0)

    def leave(self) -> None:
        """Lets the process end by itself."""
        if self._process is not None:
            self.line.close()

    def wait(self, seconds: float) -> None:
        """Waits for a process that was left, and kills it if that takes longer."""
        if self._process is None:
            return
        if seconds > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._let_go()

    def _let_go(self) -> None:
        self._process = None
        self.line.close()
        os.close(self._printed)
        self._folder.cleanup()

    def _send(self, kind: int, content: bytes) -> None:
        # A process that is gone is found when its answer is read, with the reason if it gave one.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.line.sendall(wire.HEADER.pack(kind, len(content)) + content)

    def _check(self, kind: int, content: bytes) -> None:
        """Raises EngineError unless the message is one that an engine may send now."""
        if kind == wire.HELLO and len(content) == wire.GREETING.size:
            version, major, minor = wire.GREETING.unpack(content)
            if version != wire.VERSION:
                raise EngineError(
                    f"speaks version {version} of the protocol in Python {major}.{minor}, not {wire.VERSION}"
                )
            return
        sizes = {wire.READY: 0, wire.FIRST: _PIXELS, wire.STEPPED: wire.OUTCOME.size}
        if kind == wire.STEPPED and len(content) > wire.OUTCOME.size:
            sizes[wire.STEPPED] += _PIXELS
        if sizes.get(kind) != len(content) or kind not in (wire.READY, self._awaited):
            raise EngineError(f"sent a message of kind {kind} with {len(content)} bytes")

    def _end(self) -> str:
        """How the process ended."""
        assert self._process is not None  # noqa: S101  # it has been started
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was ended by {({each.value: each.name for each in signal.Signals}).get(-code, f'signal {-code}')}"


def not_installed(python: str, error: EngineError) -> ValueError:
    """What to do about something that an engine needs and does not find."""
    return ValueError(
        f"DeepMind Lab cannot be used with {python}, which {error}: docs/dmlab.md tells what to install there; "
        "LECO_DMLAB_PYTHON names another interpreter"
    )


def gather(engines: Mapping[int, Engine], seconds: float) -> tuple[dict[int, bytes], dict[int, EngineError]]:
    """The answers of all engines that give one in time, and what became of the others."""
    answers: dict[int, bytes] = {}
    lost: dict[int, EngineError] = {}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as waiting:
        for e, engine in engines.items():
            waiting.register(engine.line, selectors.EVENT_READ, e)
        while waiting.get_map():
            for key, _ in waiting.select(max(deadline - time.monotonic(), 0.0)):
                try:
                    answer = engines[key.data].answer()
                except EngineError as error:
                    lost[key.data] = error
                else:
                    if answer is None:
                        continue
                    answers[key.data] = answer
                waiting.unregister(key.fileobj)
            if time.monotonic() >= deadline:  # also for one that sends without end
                late = EngineError(f"gave no answer in {seconds:g} seconds")
                lost |= {key.data: late for key in waiting.get_map().values()}
                break
    return answers, lost
