"""Who may talk to the service, and how the service proves to Redis who it is."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import sys
from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import grpc
import pytest
import trustme

from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import COUNTED, SERVICE
from leco.rpc.tls import ChannelTls
from leco.v1.hash_count_pb2 import CountRequest, EpisodeBatch
from leco.v1.hash_count_pb2_grpc import HashCountServiceStub
from support.redis_servers import HOST, Proxy, RedisServer
from support.service_process import ServiceProcess
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EPISODES = (f"e{number}" for number in count())
PASSWORD = "p@ss:w/rd?1%"  # with everything that an address could trip over
STORE_AWAY = "the store cannot be reached"


class Identity(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority and the files of what it issued."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._ca = trustme.CA(organization_name=name)
        self.file = folder / f"{name}-ca.pem"
        self.file.write_bytes(self._ca.cert_pem.bytes())

    def issue(self, name: str, host: str = HOST) -> Identity:
        """A certificate for `host` in the files of `name`, which are overwritten if they are there."""
        issued = self._ca.issue_cert(host)
        identity = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        identity.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        identity.key.write_bytes(issued.private_key_pem.bytes())
        return identity


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strangers"), "strangers")


def tls_flags(identity: Identity) -> tuple[str, ...]:
    return ("--tls-cert", str(identity.certificate), "--tls-key", str(identity.key))


@pytest.fixture(scope="module")
def service(ours: Authority) -> Iterator[ServiceProcess]:
    with ServiceProcess(*tls_flags(ours.issue("server"))) as service:
        yield service


@pytest.fixture(scope="module")
def mutual(ours: Authority) -> Iterator[ServiceProcess]:
    with ServiceProcess(*tls_flags(ours.issue("mutual")), "--tls-client-ca", str(ours.file)) as service:
        yield service


def count_once(channel: grpc.Channel) -> str:
    """Counts a code; "counted", or the gRPC status and what it says."""
    request = CountRequest(
        run="tls", code_width=1, episodes=[EpisodeBatch(episode_id=next(EPISODES), size=1)], codes=b"A"
    )
    try:
        [result] = HashCountServiceStub(channel).Count(request, timeout=PATIENCE).episodes
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    assert result.status == COUNTED
    return "counted"


def count_on(channel: grpc.Channel) -> str:
    """The same, once the service says that it serves."""
    answer = ""

    def serves() -> bool:
        nonlocal answer
        answer = count_once(channel)
        return "backend unhealthy" not in answer

    until(serves)
    return answer


def count_at(address: str, tls: ChannelTls | None = None) -> str:
    """The same over a connection of its own."""
    with open_channel(address, service=SERVICE, tls=tls) as channel:
        return count_on(channel)


def refused(answer: str) -> bool:
    return answer.startswith("UNAVAILABLE: ")


def test_a_client_that_trusts_the_authority_is_served(service: ServiceProcess, ours: Authority) -> None:
    assert count_at(service.address, ChannelTls(ours.file)) == "counted"


def test_a_client_that_trusts_another_authority_does_not_talk_to_us(
    service: ServiceProcess, strangers: Authority
) -> None:
    answer = count_at(service.address, ChannelTls(strangers.file))
    assert refused(answer)
    assert "CERTIFICATE_VERIFY_FAILED" in answer


def test_a_certificate_for_another_host_is_not_accepted(ours: Authority) -> None:
    with ServiceProcess(*tls_flags(ours.issue("elsewhere", "elsewhere.example"))) as service:
        answer = count_at(service.address, ChannelTls(ours.file))
    assert refused(answer)
    assert "Hostname Verification Check failed" in answer


def test_a_clear_text_client_is_not_served(service: ServiceProcess) -> None:
    assert refused(count_at(service.address))


def test_a_client_that_wants_tls_does_not_talk_in_clear_text(ours: Authority) -> None:
    with ServiceProcess() as service:
        assert refused(count_at(service.address, ChannelTls(ours.file)))
        assert count_at(service.address) == "counted"


def test_mutual_tls_serves_a_client_with_a_certificate_of_the_authority(
    mutual: ServiceProcess, ours: Authority
) -> None:
    assert count_at(mutual.address, ChannelTls(ours.file, *ours.issue("client", "actor.example"))) == "counted"


def test_mutual_tls_refuses_a_client_without_a_certificate(mutual: ServiceProcess, ours: Authority) -> None:
    assert refused(count_at(mutual.address, ChannelTls(ours.file)))


def test_mutual_tls_refuses_a_client_with_a_certificate_of_another_authority(
    mutual: ServiceProcess, ours: Authority, strangers: Authority
) -> None:
    assert refused(count_at(mutual.address, ChannelTls(ours.file, *strangers.issue("client"))))


def test_the_probe_asks_over_mutual_tls_with_settings_from_the_environment(
    mutual: ServiceProcess, ours: Authority
) -> None:
    client = ours.issue("probe", "probe.example")
    probe = [sys.executable, "-P", "-m", "leco", "health", "--address", mutual.address]
    trust = {"LECO_HEALTH_TLS_CA": str(ours.file)}
    identity = {"LECO_HEALTH_TLS_CERT": str(client.certificate), "LECO_HEALTH_TLS_KEY": str(client.key)}
    asked = [
        subprocess.run(probe, env=os.environ | more, check=False).returncode for more in (trust | identity, trust, {})
    ]
    assert asked == [0, 1, 1]


def test_a_client_certificate_without_its_key_is_refused_before_any_connection(ours: Authority) -> None:
    with pytest.raises(ValueError, match="go together: give both files or neither"):
        ChannelTls(ours.file, certificate=ours.file).credentials()


def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    with ServiceProcess(*tls_flags(before.issue("server"))) as service:
        with open_channel(service.address, service=SERVICE, tls=ChannelTls(before.file)) as old_connection:
            assert count_on(old_connection) == "counted"
            after.issue("server")
            assert count_at(service.address, ChannelTls(after.file)) == "counted"
            assert count_on(old_connection) == "counted"
        assert refused(count_at(service.address, ChannelTls(before.file)))
        assert service.until_logged("certificate renewed")["certificate"] == str(tmp_path / "server.pem")


def test_the_authority_of_clients_can_be_renewed(ours: Authority, tmp_path: Path) -> None:
    client_ca = tmp_path / "clients.pem"
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    client_ca.write_bytes(first.file.read_bytes())
    of_first, of_second = first.issue("of-first"), second.issue("of-second")
    with ServiceProcess(*tls_flags(ours.issue("renewing")), "--tls-client-ca", str(client_ca)) as service:
        assert count_at(service.address, ChannelTls(ours.file, *of_first)) == "counted"
        assert refused(count_at(service.address, ChannelTls(ours.file, *of_second)))
        client_ca.write_bytes(second.file.read_bytes())
        assert count_at(service.address, ChannelTls(ours.file, *of_second)) == "counted"
        assert refused(count_at(service.address, ChannelTls(ours.file, *of_first)))


def test_a_certificate_that_is_removed_stays_in_use(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    identity = authority.issue("server")
    with ServiceProcess(*tls_flags(identity)) as service:
        identity.key.unlink()
        assert count_at(service.address, ChannelTls(authority.file)) == "counted"
        line = service.until_logged("the renewed certificate cannot be used; the old one stays in use")
        assert (line["level"], str(identity.key) in line["error"]) == ("warning", True)


def test_a_broken_renewal_is_said_and_the_old_certificate_stays_in_use(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    identity = authority.issue("server")
    with ServiceProcess(*tls_flags(identity)) as service:
        identity.certificate.write_text("half a certificate")
        assert count_at(service.address, ChannelTls(authority.file)) == "counted"
        until(lambda: any(line["level"] in ("warning", "error") for line in service.logged()))
        events = [line["event"] for line in service.logged()]
        assert "certificate renewed" not in events, "it was not, and will expire"


@pytest.mark.parametrize("broken", ["certificate", "key", "client_ca", "pair"])
def test_files_that_are_no_identity_are_named_at_the_start(ours: Authority, tmp_path: Path, broken: str) -> None:
    certificate, key = ours.issue("broken")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    flags = {
        "certificate": ("--tls-cert", str(nonsense), "--tls-key", str(key)),
        "key": ("--tls-cert", str(certificate), "--tls-key", str(nonsense)),
        "client_ca": ("--tls-cert", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(nonsense)),
        "pair": ("--tls-cert", str(certificate), "--tls-key", str(ours.issue("another").key)),
    }[broken]
    command = [sys.executable, "-m", "services.hashcount", "--listen", f"{HOST}:0", "--metrics-port", "off", *flags]
    child = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert child.returncode in (1, 2)
    [sentence] = [line for line in child.stderr.splitlines() if line.startswith("leco hashcount: ")]
    assert "port in use" not in sentence, "nothing is wrong with the port"
    assert str(nonsense if broken != "pair" else certificate) in sentence


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@contextlib.contextmanager
def redis_with_tls(redis: RedisServer, identity: Identity, *, client_ca: Authority | None = None) -> Iterator[Proxy]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*identity)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca.file)
    with Proxy(HOST, redis.port, context) as proxy:
        yield proxy


def test_redis_over_tls(redis_server: RedisServer, ours: Authority) -> None:
    with (
        redis_with_tls(redis_server, ours.issue("redis")) as proxy,
        ServiceProcess("--store", f"{proxy.url}?ssl_ca_certs={ours.file}") as service,
    ):
        assert count_at(service.address) == "counted"


def test_redis_over_mutual_tls(redis_server: RedisServer, ours: Authority) -> None:
    certificate, key = ours.issue("of-the-service", "hashcount.example")
    store = f"?ssl_ca_certs={ours.file}&ssl_certfile={certificate}&ssl_keyfile={key}"
    with (
        redis_with_tls(redis_server, ours.issue("redis"), client_ca=ours) as proxy,
        ServiceProcess("--store", proxy.url + store) as service,
    ):
        assert count_at(service.address) == "counted"


@pytest.mark.parametrize("trusted", ["strangers", "system"])
def test_a_redis_that_the_authority_does_not_vouch_for_is_not_used(
    redis_server: RedisServer, ours: Authority, strangers: Authority, trusted: str
) -> None:
    with (
        redis_with_tls(redis_server, ours.issue("redis")) as proxy,
        ServiceProcess(
            "--store", proxy.url + (f"?ssl_ca_certs={strangers.file}" if trusted == "strangers" else "")
        ) as service,
    ):
        assert "CERTIFICATE_VERIFY_FAILED" in service.until_logged(STORE_AWAY)["error"]
        with grpc.insecure_channel(service.address) as channel:
            answer = count_on(channel)
        assert refused(answer)
        assert "CERTIFICATE_VERIFY_FAILED" in answer


def test_a_redis_with_a_certificate_for_another_host_is_not_used(redis_server: RedisServer, ours: Authority) -> None:
    with (
        redis_with_tls(redis_server, ours.issue("redis-elsewhere", "elsewhere.example")) as proxy,
        ServiceProcess("--store", f"{proxy.url}?ssl_ca_certs={ours.file}") as service,
    ):
        assert "IP address mismatch" in service.until_logged(STORE_AWAY)["error"]


@pytest.fixture(scope="module")
def guarded_redis() -> Iterator[RedisServer]:
    """A Redis that wants a password, and knows a user beside its default one."""
    with RedisServer() as server:
        client = server.client()
        client.execute_command("ACL SETUSER", "counter", "on", f">{PASSWORD}", "~leco1:*", "+@all")
        client.execute_command("ACL SETUSER", "modest", "on", f">{PASSWORD}", "~leco1:*", "+@all", "-info")
        client.config_set("requirepass", PASSWORD)
        yield server


def said(service: ServiceProcess) -> str:
    """All that the service tells whoever can read its log and its metrics."""
    return "\n".join([*service.lines, service.metrics_page()])


def secret_is_kept(service: ServiceProcess) -> bool:
    return not any(form in said(service) for form in (PASSWORD, quote(PASSWORD, safe=""), repr(PASSWORD)[1:-1]))


@pytest.mark.parametrize("way", ["variable", "file", "address", "user-and-variable"])
def test_a_password_for_redis_reaches_it_and_nobody_else(guarded_redis: RedisServer, tmp_path: Path, way: str) -> None:
    host = f"{HOST}:{guarded_redis.port}/0"
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    escaped = quote(PASSWORD, safe="")
    flags, variables = {
        "variable": (("--store", guarded_redis.url), {"STORE_PASSWORD": PASSWORD}),
        "file": (("--store", guarded_redis.url, "--store-password-file", str(file)), {}),
        "address": ((), {"STORE": f"redis://:{escaped}@{host}"}),
        "user-and-variable": (("--store", f"redis://counter@{host}"), {"STORE_PASSWORD": PASSWORD}),
    }[way]
    env = {f"LECO_HASHCOUNT_{name}": value for name, value in variables.items()}
    with ServiceProcess(*flags, "--log-level", "debug", env=env) as service:
        assert count_at(service.address) == "counted"
        assert service.until_logged("serving")["store"] == guarded_redis.url, "without user and password"
        assert secret_is_kept(service)


@pytest.mark.parametrize(
    ("password", "reason"),
    [("wrong-secret", "invalid username-password pair"), ("", "Authentication required")],
)
def test_a_wrong_password_is_said_clearly_and_not_repeated(
    guarded_redis: RedisServer, password: str, reason: str
) -> None:
    env = {"LECO_HASHCOUNT_STORE_PASSWORD": password}
    with ServiceProcess("--store", guarded_redis.url, "--log-level", "debug", env=env) as service:
        line = service.until_logged(STORE_AWAY)
        assert line["level"] == "error"
        assert reason in line["error"]
        with grpc.insecure_channel(service.address) as channel:
            answer = count_on(channel)
        assert answer.startswith(f"UNAVAILABLE: {STORE_AWAY}: ")
        assert reason in answer
        assert not password or password not in said(service) + answer


def test_a_redis_user_that_may_not_ask_for_info_can_count(guarded_redis: RedisServer) -> None:
    """INFO serves only for a warning about eviction, and hosted Redis does not always allow it."""
    env = {"LECO_HASHCOUNT_STORE_PASSWORD": PASSWORD}
    with ServiceProcess("--store", f"redis://modest@{HOST}:{guarded_redis.port}/0", env=env) as service:
        assert count_at(service.address) == "counted"
