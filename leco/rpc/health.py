"""The gRPC health service.

grpcio-health-checking has one for asyncio too, but it holds a lock while it writes to a watcher: one client that reads nothing
would keep every other change of health, and the drain, waiting.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

Context = grpc.aio.ServicerContext[Any, Any]


class Health(health_pb2_grpc.HealthServicer):
    """Tells clients which services make sense to call now."""

    def __init__(self) -> None:
        self._statuses: dict[str, Any] = {}  # a ServingStatus of each service
        self._changed = asyncio.Event()  # set, and replaced, at every change
        self._draining = False

    def set(self, service: str, *, serving: bool) -> None:
        """Changes the health of a service; has no effect any more once the server drains."""
        if not self._draining:
            self._statuses[service] = SERVING if serving else NOT_SERVING
            self._tell()

    def drain(self) -> None:
        """Turns every service to NOT_SERVING, for good, and ends all watches after they were told."""
        self._statuses = dict.fromkeys(self._statuses, NOT_SERVING)
        self._draining = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:  # noqa: N802
        """The health of a service now; NOT_FOUND if it is none of this server's."""
        status = self._statuses.get(request.service)
        if status is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details(f"no service {request.service[:80]!r} here")
            return health_pb2.HealthCheckResponse()
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, _context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The health of a service now and at every change."""
        told = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status != told:
                yield health_pb2.HealthCheckResponse(status=status)
                told = status
            if self._draining:
                return
            if changed is self._changed:
                await changed.wait()
