"""Command lines: a mistake is one sentence; flags that are also environment variables, and those that every service has."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from leco.rpc.tls import ChannelTls, ServerTls

if TYPE_CHECKING:
    from collections.abc import Callable


FINAL = 2  # the exit code of what no other start heals: a mistake in flags or in a configuration


class Parser(argparse.ArgumentParser):
    """A parser that ends a mistake with code 2 and one sentence, which no usage hides."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:  # as argparse has them
        """Adds a flag. A ValueError of its `type` says what was expected."""
        if "type" in settings:
            settings["type"] = _told(settings["type"])
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """Ends with code 2 and the sentence."""
        unclear = message.startswith(("unrecognized arguments", "the following arguments"))
        self.exit(FINAL, f"{self.prog}: {message}{f'; see `{self.prog} --help`' if unclear else ''}\n")

    def refuse(self, error: Exception) -> NoReturn:
        """Ends with code 2 and what an error says; of the system's errors, with the name of the file."""
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            self.error(f"cannot use {error.filename}: {error.strerror.lower()}; choose another")
        self.error(str(error))


def _told(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


class ServiceParser(Parser):
    """A parser whose every flag may also come from the environment, as LECO_<SERVICE>_<FLAG>. A flag given wins.

    A variable that is set but empty counts as not set, as it does for Compose and Kubernetes templates.
    """

    def __init__(self, service: str, description: str, *, example: str = "--log-level") -> None:
        self._prefix = f"LECO_{service.replace('-', '_').upper()}_"
        super().__init__(
            prog=f"leco {service}",
            description=description,
            epilog=f"Every flag is also an environment variable, for example {self._variable(example)} for {example}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def _variable(self, flag: str) -> str:
        return self._prefix + flag.removeprefix("--").replace("-", "_").upper()

    def setting(
        self,
        flag: str,
        *,
        default: Any,  # whatever `kind` gives
        help: str,  # noqa: A002  # argparse's own word
        kind: Callable[[str], Any] = str,
        metavar: str | None = None,
    ) -> None:
        """Adds a flag. `kind` reads its text and raises ArgumentTypeError, with the reason, if it cannot."""
        variable = self._variable(flag)
        shown = "" if default is None else f" (default: {default})"
        self.add_argument(
            flag,
            # argparse reads a default that is text with `type`, and only if the flag is not given
            default=os.environ.get(variable) or default,
            type=self._reader(flag, variable, kind),
            metavar=metavar,
            help=help + shown,
        )

    def _reader(self, flag: str, variable: str, kind: Callable[[str], Any]) -> Callable[[str], Any]:
        def read(text: str) -> Any:
            try:
                return kind(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(f"{error} ({flag} or {variable})") from error

        return read

    def common_settings(self, *, listen: str, metrics_port: str) -> None:
        """Adds the flags that every service has."""
        self.setting(
            "--listen",
            default=listen,
            kind=listen_address,
            metavar="HOST:PORT",
            help="where to serve gRPC; port 0 takes a free one",
        )
        self.setting(
            "--metrics-port",
            default=metrics_port,
            kind=port_or_off,
            metavar="PORT",
            help="where to serve Prometheus metrics, on the host of --listen; 0 takes a free port, 'off' serves none",
        )
        self.setting(
            "--tls-cert", default=None, kind=existing_file, metavar="FILE", help="PEM certificate chain; turns TLS on"
        )
        self.setting(
            "--tls-key", default=None, kind=existing_file, metavar="FILE", help="PEM private key of --tls-cert"
        )
        self.setting(
            "--tls-client-ca",
            default=None,
            kind=existing_file,
            metavar="FILE",
            help="PEM authorities: only clients with a certificate of one of them are let in (mutual TLS)",
        )
        self.process_settings()

    def process_settings(self) -> None:
        """Adds the flags that also a process has that serves nothing."""
        self.setting(
            "--drain-seconds",
            default="20",
            kind=positive_number,
            metavar="S",
            help="after SIGTERM, how long what is in progress may take to finish",
        )
        self.log_settings()

    def log_settings(self) -> None:
        """Adds the flags of whatever writes a log."""
        levels, formats = ("debug", "info", "warning", "error"), ("auto", "human", "json")
        self.setting(
            "--log-level",
            default="info",
            kind=one_of(*levels),
            metavar="LEVEL",
            help=f"least severe log line shown: {', '.join(levels)}",
        )
        self.setting(
            "--log-format",
            default="auto",
            kind=one_of(*formats),
            metavar="FORMAT",
            help=f"{', '.join(formats)}; auto: human on a terminal, JSON lines otherwise",
        )

    def tls(self, arguments: argparse.Namespace) -> ServerTls | None:
        """The identity that the common flags describe, or None."""
        cert, key, client_ca = arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca
        if (cert is None) != (key is None):
            self.error("--tls-cert and --tls-key go together: give both or neither")
        if cert is None:
            if client_ca is not None:
                self.error("--tls-client-ca needs --tls-cert and --tls-key")
            return None
        return ServerTls(certificate=cert, key=key, client_ca=client_ca)

    def channel_tls_settings(self) -> None:
        """Adds the flags of a process that calls services."""
        for flag, what in (
            ("--tls-ca", "certificates that sign those of the services; turns TLS on"),
            ("--tls-cert", "our own certificate, for services that ask for one"),
            ("--tls-key", "its key"),
        ):
            self.setting(flag, default=None, kind=existing_file, metavar="FILE", help=what)

    def channel_tls(self, arguments: argparse.Namespace) -> ChannelTls | None:
        """What those flags describe, or None."""
        ca, cert, key = arguments.tls_ca, arguments.tls_cert, arguments.tls_key
        if ca is None and (cert or key):
            self.error("--tls-cert and --tls-key need --tls-ca")
        if (cert is None) != (key is None):
            self.error("--tls-cert and --tls-key go together: give both or neither")
        return None if ca is None else ChannelTls(ca=ca, certificate=cert, key=key)


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}, and not {text!r}")
        return text

    return read


def existing_file(text: str) -> Path:
    """A path to a file that can be read."""
    path = Path(text)
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError(f"{text} is not a file that can be read")
    return path


def new_file(text: str) -> Path:
    """A path at which a file can be made."""
    path = Path(text)
    if path.is_dir():
        raise ValueError(f"{text} is a folder: name a file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path.parent} is not a folder that can be written to: make it, or choose another")
    return path


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number in a range."""
    range_ = f"of at least {least}" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= (sys.maxsize if most is None else most):
            raise ValueError(f"must be a whole number {range_}, and not {text!r}")
        return int(text)

    return read


def positive_number(text: str) -> float:
    """A number above zero."""
    found = number(text)
    if not 0 < found < float("inf"):
        raise ValueError(f"must be above 0, and not {text}")
    return found


def duration(text: str) -> float:
    """Seconds, from "90", "90s", "15m" or "2h"."""
    matched = re.fullmatch(r"([0-9.]+)([smh]?)", text)
    if not matched:
        raise ValueError(f"must be a duration such as 90, 90s, 15m or 2h, and not {text!r}")
    return positive_number(matched[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[matched[2]]


def size(text: str) -> int:
    """Bytes, from "1048576", "512MiB" or "2GiB"."""
    matched = re.fullmatch(r"([0-9.]+)(|KiB|MiB|GiB)", text)
    if not matched:
        raise ValueError(f"must be a size such as 1048576, 512MiB or 2GiB, and not {text!r}")
    found = int(positive_number(matched[1]) * {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[matched[2]])
    if found == 0:
        raise ValueError(f"must be at least 1 byte, and not {text}")
    return found


def port_or_off(text: str) -> int | None:
    """A port, or None for "off"."""
    if text == "off":
        return None
    if not _is_port(text):
        raise ValueError(f"must be a port from 0 to 65535 or 'off', and not {text!r}")
    return int(text)


def listen_address(text: str) -> str:
    """host:port of this machine."""
    host, _, port = text.rpartition(":")
    if not host or not _is_port(port):
        raise ValueError(
            f"must be host:port, for example 127.0.0.1:50051 with a port from 0 to 65535, and not {text!r}"
        )
    return text


def address(text: str) -> str:
    """Where a service is, as gRPC writes it."""
    if not text.startswith("unix:") and not _is_port(text.rpartition(":")[2]):
        raise ValueError(f"must be host:port, for example 127.0.0.1:50051, and not {text!r}")
    return text


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and int(text) <= 65535


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must be a number, and not {text!r}") from None
