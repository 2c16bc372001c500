"""One DeepMind Lab engine in a process of its own: the program that `DmlabEnv` starts, and the protocol between the two.

It runs in whichever interpreter `deepmind_lab` was built for, so it imports nothing of leco but the file beside it, and wants
Python 3.7 or newer, numpy and deepmind_lab. They talk over a socket pair: whatever the engine prints goes elsewhere.

    engine  HELLO       the protocol's version, Python's version
    parent  CONFIGURE   JSON: level, settings, renderer, cache, cache_bytes, repeat, shape
    engine  READY       the engine is there
    parent  RESET       episode and seed
    engine  FIRST       the picture
    parent  STEP        seven integers, what `Lab.step` takes
    engine  STEPPED     the reward, whether the episode goes on, and if so the picture
    engine  MISSING     instead of READY, with the reason: a module cannot be imported, or there is no zip
    engine  FAILED      instead of any answer, with the reason; the engine ends

Every message is a kind, a length and so many bytes. The engine ends when the parent closes the socket or dies.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

VERSION = 1
HEADER = struct.Struct("<BI")
CONFIGURE, RESET, STEP = 1, 2, 3
HELLO, READY, FIRST, STEPPED, MISSING, FAILED = 16, 17, 18, 19, 20, 21
GREETING = struct.Struct("<HHH")
EPISODE = struct.Struct("<ii")
ACTION = struct.Struct("<7i")
OUTCOME = struct.Struct("<d?")
PICTURE = "RGB_INTERLEAVED"
ACTION_NAMES = [
    "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME",
    "LOOK_DOWN_UP_PIXELS_PER_FRAME",
    "STRAFE_LEFT_RIGHT",
    "MOVE_BACK_FORWARD",
    "FIRE",
    "JUMP",
    "CROUCH",
]
_PR_SET_PDEATHSIG = 1


class Link:
    """The engine's end of the socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def send(self, kind: int, content: bytes = b"") -> None:
        """Sends one message."""
        self._line.sendall(HEADER.pack(kind, len(content)) + content)

    def receive(self) -> tuple[int, bytes] | None:
        """The next message; None if the parent has closed the socket."""
        header = self._exactly(HEADER.size)
        if header is None:
            return None
        kind, length = HEADER.unpack(header)
        content = self._exactly(length)
        return None if content is None else (kind, content)

    def _exactly(self, length: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < length:
            part = self._line.recv(length - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)


class Engine:
    """`deepmind_lab.Lab`, answering messages.

    Args:
        configuration: As in CONFIGURE.
    """

    def __init__(self, configuration: dict[str, Any]) -> None:
        self._numpy = importlib.import_module("numpy")
        self._repeat = int(configuration["repeat"])
        self._shape = tuple(configuration["shape"])
        cache = None
        if configuration["cache"] is not None:
            cache = _beside("level_cache").LevelCache(configuration["cache"], int(configuration["cache_bytes"]))
        self._lab = importlib.import_module("deepmind_lab").Lab(
            configuration["level"],
            [PICTURE],
            config=configuration["settings"],
            renderer=configuration["renderer"],
            level_cache=cache,
        )
        names = [each["name"] for each in self._lab.action_spec()]
        if names != ACTION_NAMES:
            raise RuntimeError(f"the level takes the actions {names}, expected {ACTION_NAMES}")

    def answer(self, kind: int, content: bytes) -> tuple[int, bytes]:
        """What one message of the parent leads to."""
        if kind == RESET:
            episode, seed = EPISODE.unpack(content)
            self._lab.reset(episode=episode, seed=seed)
            return FIRST, self._picture()
        if kind == STEP:
            action = self._numpy.array(ACTION.unpack(content), dtype=self._numpy.intc)
            reward = float(self._lab.step(action, num_steps=self._repeat))
            # At the end of an episode there is nothing to see any more: the module would raise.
            running = bool(self._lab.is_running())
            return STEPPED, OUTCOME.pack(reward, running) + (self._picture() if running else b"")
        raise RuntimeError(f"there is no message of kind {kind}")

    def close(self) -> None:
        """Lets the engine remove its temporary files."""
        self._lab.close()

    def _picture(self) -> bytes:
        picture = self._lab.observations()[PICTURE]
        if picture.shape != self._shape or picture.dtype != self._numpy.uint8:
            raise RuntimeError(f"the picture is {picture.dtype} {picture.shape}, expected uint8 {self._shape}")
        return bytes(picture.tobytes())


def serve(link: Link) -> None:
    """Answers until the parent closes the socket."""
    link.send(HELLO, GREETING.pack(VERSION, *sys.version_info[:2]))
    first = link.receive()
    if first is None:
        return
    try:
        _check_installed()
    except Exception as error:  # noqa: BLE001  # a module built for another Python or numpy fails in many ways
        link.send(MISSING, _words(error))
        return
    try:
        engine = Engine(json.loads(first[1].decode()))
        link.send(READY)
        while True:
            asked = link.receive()
            if asked is None:
                break
            link.send(*engine.answer(*asked))
        engine.close()
    except Exception as error:  # noqa: BLE001  # whatever the module raises, the parent decides
        link.send(FAILED, _words(error))


def _check_installed() -> None:
    """Raises whatever the module raises when it is imported. Without zip its first level would fail, after minutes."""
    importlib.import_module("numpy")
    importlib.import_module("deepmind_lab")
    if shutil.which("zip") is None:
        raise FileNotFoundError("the program zip, with which it packs compiled levels, is not in PATH")


def _beside(name: str) -> Any:
    """A module of the folder of this file, which is no package in this interpreter."""
    spec = importlib.util.spec_from_file_location(name, str(Path(__file__).with_name(name + ".py")))
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no {name}.py beside {__file__}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _words(error: Exception) -> bytes:
    return f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:4000]


def _end_with(parent: int) -> None:
    """Has Linux kill this process when the parent ends, even while the engine hangs and cannot see the socket close.

    To Linux the parent is the thread that started this process: one that steps environments should live as long as they do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process has ended already")


if __name__ == "__main__":
    _end_with(parent=int(sys.argv[2]))
    with socket.socket(fileno=int(sys.argv[1])) as _line:
        serve(Link(_line))
