"""Transport security from files: who we are, and whom we trust."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import structlog

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's identity.

    Attributes:
        certificate: PEM certificate chain, the server's own first.
        key: PEM private key.
        client_ca: PEM certificates of the authorities whose clients are let in; without it, any client is.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Reads the files now, and again whenever one of them changed, so that a renewed certificate needs no restart."""
        state = {"stamp": self._stamp()}

        def fetch() -> grpc.ServerCertificateConfiguration | None:  # None: unchanged
            try:
                stamp = self._stamp()
                if stamp == state["stamp"]:
                    return None
                state["stamp"] = stamp
                configuration = self._configuration()
            except (OSError, ValueError) as error:
                log.warning("the renewed certificate cannot be used; the old one stays in use", error=str(error))
                return None
            log.info("certificate renewed", certificate=str(self.certificate))
            return configuration

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            fetch,  # type: ignore[arg-type]  # the stubs forget that None is allowed
            require_client_authentication=self.client_ca is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        self._check()
        return grpc.ssl_server_certificate_configuration(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            root_certificates=self.client_ca.read_bytes() if self.client_ca else None,
        )

    def _check(self) -> None:
        """Refuses files that are no identity; gRPC itself would only say that it could not listen."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password="")  # or it would ask on the terminal
        except ssl.SSLError as error:
            raise ValueError(
                f"{self.certificate} and {self.key} are no PEM certificate with its private key: {error.reason or error}"
            ) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise ValueError(f"{self.client_ca} has no PEM certificates: {error.reason or error}") from error

    def _stamp(self) -> tuple[int, ...]:
        files = [self.certificate, self.key, *([self.client_ca] if self.client_ca else [])]
        return tuple(file.stat().st_mtime_ns for file in files)


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """A client's view.

    Attributes:
        ca: PEM certificates of the authorities that the server's certificate must come from.
        certificate: PEM certificate chain of this client, for a server that asks for one; with `key`.
        key: PEM private key of this client.
    """

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files."""
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a client certificate and its key go together: give both files or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca.read_bytes(),
            private_key=self.key.read_bytes() if self.key else None,
            certificate_chain=self.certificate.read_bytes() if self.certificate else None,
        )
