"""A server that speaks as much of the Kubernetes API as `leco cluster` asks: lists of objects over HTTP, and port-forwards."""

from __future__ import annotations

import json
import re
import socket
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

if TYPE_CHECKING:
    from pathlib import Path

    from websockets.typing import Subprotocol

PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = b"\0", b"\1"  # the two channels of the first port


class KubernetesApi:
    """Serves on loopback from `with` to its end.

    Args:
        objects: Lists by the end of their address, for example {"pods": [...]}; another address is 404.
        ports: Where on this machine the port of a pod is.
        status: Of every answer to a question for objects.
    """

    def __init__(
        self, objects: dict[str, list[dict[str, Any]]], *, ports: dict[int, int] | None = None, status: int = 200
    ) -> None:
        self._objects, self._ports, self._status = objects, ports or {}, status
        self.asked: list[str] = []

    def __enter__(self) -> Self:
        protocol: Any = PROTOCOL
        protocols: list[Subprotocol] = [protocol]
        self._server = serve(self._forward, "127.0.0.1", 0, subprotocols=protocols, process_request=self._answer)
        self.port = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()

    def write_config(self, path: Path) -> None:
        """A kubeconfig that leads here."""
        cluster = {"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "test", "context": {"cluster": "test", "user": "test"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
        users = [{"name": "test", "user": {}}]
        path.write_text(json.dumps(config | {"clusters": [cluster], "contexts": [context], "users": users}))

    def _answer(self, _connection: ServerConnection, request: Request) -> Response | None:
        """The answer to a question that is no port-forward."""
        address = urlsplit(request.path)
        self.asked.append(request.path)
        if address.path.endswith("/portforward"):
            return None
        found = self._objects.get(address.path.rpartition("/")[2])
        status = self._status if found is not None else 404
        body = json.dumps({"items": found} if status == 200 else {"kind": "Status", "code": status}).encode()
        headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"})
        return Response(status, HTTPStatus(status).phrase, headers, body)

    def _forward(self, connection: ServerConnection) -> None:
        """Bytes both ways, each behind its channel's number; both channels begin with the port."""
        assert connection.request is not None
        address = urlsplit(connection.request.path)
        assert re.fullmatch(r"/api/v1/namespaces/[\w-]+/pods/[\w-]+/portforward", address.path)
        port = int(parse_qs(address.query)["ports"][0])
        for channel in (DATA, ERROR):
            connection.send(channel + port.to_bytes(2, "little"))
        with socket.create_connection(("127.0.0.1", self._ports[port])) as pod:
            back = threading.Thread(target=self._back, args=(pod, connection))
            back.start()
            try:
                for message in connection:
                    assert isinstance(message, bytes)
                    assert message[:1] == DATA
                    pod.sendall(message[1:])
            except ConnectionClosed:
                pass
            pod.shutdown(socket.SHUT_RDWR)
            back.join()

    @staticmethod
    def _back(pod: socket.socket, connection: ServerConnection) -> None:
        try:
            while part := pod.recv(65536):
                connection.send(DATA + part)
            connection.close()
        except (OSError, ConnectionClosed):
            pass
