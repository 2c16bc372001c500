"""Asks a running service whether it is well: `leco health`, the probe of the container images."""

from __future__ import annotations

import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services import flags

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from leco.rpc.tls import ChannelTls

DESCRIPTION = """\
Asks a running service whether it is well. Ends with code 0 if it is, and with code 1 and one line that says why if it is not.

  leco health --address 127.0.0.1:50061                                      the process lives
  leco health --address 127.0.0.1:50061 --service leco.v1.HashCountService   and calls to it make sense now
  leco health --address http://127.0.0.1:9471/metrics                        an actor, which serves nothing but metrics"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Asks once."""
    parser = flags.ServiceParser("health", DESCRIPTION, example="--address")
    parser.setting(
        "--address",
        default=None,
        kind=_address,
        metavar="ADDRESS",
        help="host:port of gRPC, or a URL that must answer 200",
    )
    parser.setting(
        "--service", default=None, metavar="NAME", help="the gRPC service asked for; without it, the process itself"
    )
    parser.setting("--seconds", default="5", kind=flags.positive_number, metavar="S", help="how long to wait")
    parser.channel_tls_settings()
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if given.address is None:
        parser.error("--address is missing: say whom to ask, for example --address 127.0.0.1:50061")
    tls = parser.channel_tls(given)
    is_page = given.address.startswith(("http://", "https://"))
    why = _ask_page(given.address, given.seconds) if is_page else _ask_grpc(given, tls)
    if why is not None:
        sys.exit(f"leco health: {given.address}: {why}")


def _address(text: str) -> str:
    return text if text.startswith(("http://", "https://")) else flags.address(text)


def _ask_grpc(given: argparse.Namespace, tls: ChannelTls | None) -> str | None:
    """What is wrong, or None. Not by our clients' channel, which would leave out just what is not well."""
    options = [("grpc.enable_http_proxy", 0)]  # a probe asks its own machine, whatever proxy is set for others
    if tls is None:
        channel = grpc.insecure_channel(given.address, options=options)
    else:
        channel = grpc.secure_channel(given.address, tls.credentials(), options=options)
    with channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # whose annotations forget its methods
            answer = stub.Check(health_pb2.HealthCheckRequest(service=given.service or ""), timeout=given.seconds)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def _ask_page(url: str, seconds: float) -> str | None:
    """What is wrong, or None."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=seconds):
            return None  # everything but a 2xx raises
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    main()
