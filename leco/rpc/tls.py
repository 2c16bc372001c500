"""Transport security from files: who we are, and whom we trust."""

from __future__ import annotations

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
                configuration = self._configuration()
            except OSError as error:
                log.warning("cannot read the renewed certificate; the old one stays in use", error=str(error))
                return None
            state["stamp"] = stamp
            log.info("certificate renewed", certificate=str(self.certificate))
            return configuration

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            fetch,  # type: ignore[arg-type]  # the stubs forget that None is allowed
            require_client_authentication=self.client_ca is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            root_certificates=self.client_ca.read_bytes() if self.client_ca else None,
        )

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
