"""How every service serves: limits, keepalive, health, reflection, metrics, and a drain on SIGTERM."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import signal
from typing import TYPE_CHECKING

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from leco.rpc.channel import KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS, MAX_FRAME_BYTES, MAX_MESSAGE_BYTES
from leco.rpc.health import Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from leco.rpc.interceptor import RpcInterceptor
    from leco.rpc.tls import ServerTls

log = structlog.get_logger(__name__)

# A client of ours waits for its turn beyond the first of these. With the second, 1,024 open files are enough.
MAX_CONNECTION_CALLS = 100
MAX_CONNECTIONS = 768
OTHER_FILES = 256
HANDSHAKE_SECONDS = 20
LAST_CALLS_SECONDS = 60


class RpcServer:
    """One gRPC server for one service, with health and reflection.

    The health of the server itself (the empty name) says that the process lives and does not depend on anything else; the
    health of `service` says whether calls to it make sense now.

    Args:
        service: The full name of the gRPC service.
        interceptor: Sees every call, and limits how many are in progress, which with max_message_bytes bounds memory.
        tls: Without it the server speaks clear text.
        max_message_bytes: A larger request is refused with RESOURCE_EXHAUSTED before it is read into memory.
        max_connections: How many clients may be connected. Who serves more makes room for their files, see `allow_files`.
        max_connection_age: Seconds after which a client is asked to connect anew, so that load spreads over replicas that came
            later. None for services with long streams.
    """

    def __init__(
        self,
        service: str,
        *,
        interceptor: RpcInterceptor,
        tls: ServerTls | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_connections: int = MAX_CONNECTIONS,
        max_connection_age: float | None = None,
    ) -> None:
        self.service = service
        self._tls = tls
        options = [
            ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
            ("grpc.keepalive_permit_without_calls", 1),
            # Clients ping every KEEPALIVE_SECONDS, also when idle: that is not abuse.
            ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_SECONDS * 500)),
            # What a client may send before anyone reads it is the first window of a call and no more; see RpcInterceptor.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_concurrent_streams", MAX_CONNECTION_CALLS),
            ("grpc.max_allowed_incoming_connections", max_connections),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
            # A second process on the same port shall fail loudly and not take half of the calls.
            ("grpc.so_reuseport", 0),
        ]
        if max_connection_age is not None:
            options.append(("grpc.max_connection_age_ms", int(max_connection_age * 1000)))
            # Then it is cut, with answers that nobody has read. Calls of such a service end sooner.
            options.append(("grpc.max_connection_age_grace_ms", LAST_CALLS_SECONDS * 1000))
        self.grpc = grpc.aio.server(interceptors=[interceptor], options=options)
        self._health = Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        names = (service, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.grpc)

    async def start(self, address: str) -> str:
        """Binds and serves; the service's own health stays NOT_SERVING until `set_serving`.

        Returns:
            The address with the port really used, which differs for port 0.
        """
        host = address.rpartition(":")[0]
        try:
            if self._tls is None:
                bound = self.grpc.add_insecure_port(address)
            else:
                bound = self.grpc.add_secure_port(address, self._tls.credentials())
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: is the port in use, or the host not this machine's?") from error
        if self._tls is None and not _is_loopback(host):
            log.warning(
                "clear text on a network address: give --tls-cert and --tls-key unless the network is trusted",
                address=address,
            )
        self._health.set("", serving=True)
        self._health.set(self.service, serving=False)
        await self.grpc.start()
        return f"{host}:{bound}"

    def set_serving(self, *, serving: bool) -> None:
        """Says whether calls to the service make sense now. Has no effect any more once the server drains."""
        self._health.set(self.service, serving=serving)

    async def drain(self, grace_seconds: float) -> None:
        """Turns health to NOT_SERVING, refuses new calls, and lets the calls in progress finish for at most that long."""
        self._health.drain()
        await self.grpc.stop(grace_seconds)


def allow_files(connections: int) -> None:
    """Lets this process open as many files as so many connections need, beside its own.

    Raises:
        ValueError: the system does not let it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(
            f"{connections} connections need {wanted} open files, and the system lets this process have {hard}: raise that "
            "limit (ulimit -Hn, or the container's nofile), or lower --max-connections"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def wait_for_signal() -> str:
    """Returns the name of the first SIGTERM or SIGINT; a second one ends the process at once, as it would without us."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[str] = loop.create_future()

    def handler(number: signal.Signals) -> Callable[[], None]:
        def on_signal() -> None:
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(each)
            if not received.done():  # a service that ends by itself waits no more
                received.set_result(number.name)

        return on_signal

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, handler(each))
    return await received


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
