"""How every client connects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from leco.rpc.tls import ChannelTls

KEEPALIVE_SECONDS = 30.0
KEEPALIVE_TIMEOUT_SECONDS = 10
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# Of HTTP/2, instead of 16 KB: a message of an unroll is then one frame or two. Measured on an echo of that size, with much
# noise: some 10 to 15 % less processor time in gRPC.
MAX_FRAME_BYTES = 1024 * 1024


def open_channel(
    address: str, *, service: str, tls: ChannelTls | None = None, max_message_bytes: int = MAX_MESSAGE_BYTES
) -> grpc.Channel:
    """Opens a channel that spreads its calls over all replicas behind `address`.

    Args:
        address: "host:port", or any gRPC target; "dns:///name:port" of a headless Service gives every replica.
        service: The full name of the gRPC service to be called. Replicas whose health says that it is not serving (they
            drain, or their store is away) are left out.
        tls: Without it the connection is in clear text.
        max_message_bytes: The largest message sent or received.
    """
    options = channel_options(service, max_message_bytes=max_message_bytes)
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, tls.credentials(), options=options)


def channel_options(service: str, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, Any]]:
    """What gRPC is told of such a channel; also for one of `grpc.aio`."""
    service_config = {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": service}}
    return [
        ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.service_config", json.dumps(service_config)),
        # A repeat is made by our own clients, which know what is safe to repeat and how long they may wait.
        ("grpc.enable_retries", 0),
        # Back within seconds after a replica or the whole service was away.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]
