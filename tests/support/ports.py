"""Ports for the servers that tests start, of which no two tests get the same one."""

from __future__ import annotations

import atexit
import fcntl
import random
import socket
import tempfile
from pathlib import Path
from typing import TextIO

_LOCKS = Path(tempfile.gettempdir()) / "leco-test-ports"
_held: dict[int, TextIO] = {}


@atexit.register
def _let_go() -> None:
    for lock in _held.values():
        lock.close()


def free_port() -> int:
    """A port of 127.0.0.1 for a server to come, kept until this process ends.

    It and the port 10,000 higher (of a Redis cluster's own messages) are below those that Linux gives to outgoing
    connections (from 32768), so that it is still free when a killed server starts again. A lock keeps it from the other
    processes of the tests: between the choice and the server's bind are seconds.
    """
    _LOCKS.mkdir(exist_ok=True)
    while True:
        port = random.randrange(10_000, 22_000)
        with socket.socket() as probe, socket.socket() as bus:
            try:
                probe.bind(("127.0.0.1", port))
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            if _locked(port) and _locked(port + 10_000):
                return port


def _locked(port: int) -> bool:
    if port in _held:
        return False
    lock = (_LOCKS / str(port)).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return False
    _held[port] = lock
    return True
