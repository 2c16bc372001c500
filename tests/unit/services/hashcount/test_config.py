"""What a person can set, how, and what they are told when it is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from leco.cli.main import COMMANDS
from leco.rpc.tls import ServerTls
from services import flags
from services.hashcount.__main__ import open_store
from services.hashcount.address import parse_address
from services.hashcount.config import HashCountSettings, read_settings
from services.hashcount.metrics import HashCountMetrics
from support.waiting import PATIENCE

DEFAULTS = HashCountSettings(
    listen="127.0.0.1:50061",
    metrics_port=9461,
    tls=None,
    drain_seconds=20.0,
    log_level="info",
    log_format="auto",
    store=None,
    store_password=None,
    store_connections=16,
    ttl=7200.0,
    retry_window=120.0,
    max_memory=1 << 30,
)
# For each flag two values, the setting that it makes, and what it is then.
VALUES: dict[str, tuple[str, str, str, object, object]] = {
    "--listen": ("0.0.0.0:50061", "[::1]:0", "listen", "0.0.0.0:50061", "[::1]:0"),
    "--metrics-port": ("off", "9000", "metrics_port", None, 9000),
    "--drain-seconds": ("0.5", "30", "drain_seconds", 0.5, 30.0),
    "--log-level": ("debug", "error", "log_level", "debug", "error"),
    "--log-format": ("json", "human", "log_format", "json", "human"),
    "--store": ("redis://a:1/2", "memory", "store", parse_address("redis://a:1/2"), None),
    "--store-password-file": ("first", "second", "store_password", "the first", "the second"),
    "--store-optional-password-file": ("first", "second", "store_password", "the first", "the second"),
    "--store-connections": ("1", "1024", "store_connections", 1, 1024),
    "--ttl": ("90", "15m", "ttl", 90.0, 900.0),
    "--retry-window": ("1.5h", "10s", "retry_window", 5400.0, 10.0),
    "--max-memory": ("512MiB", "2GiB", "max_memory", 512 << 20, 2 << 30),
}
TLS_FLAGS = ("--tls-cert", "--tls-key", "--tls-client-ca")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of ours, and a directory with the files that the flags name."""
    for name in [name for name in os.environ if name.startswith("LECO_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second", "cert.pem", "key.pem", "ca.pem"):
        Path(name).write_text(f"the {name}\n")


def variable(flag: str) -> str:
    return "LECO_HASHCOUNT_" + flag.removeprefix("--").replace("-", "_").upper()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence that ends the start, with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        read_settings(arguments)
    assert caught.value.code == 2
    usage, _, sentence = capsys.readouterr().err.partition("leco hashcount: ")
    assert usage == ""
    return sentence.strip()


def test_the_defaults_are_one_replica_on_this_machine_only() -> None:
    assert read_settings([]) == DEFAULTS


def test_the_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_settings(["--help"])
    assert caught.value.code == 0
    named = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert set(named) == {*VALUES, *TLS_FLAGS}, "and the tests below know every flag"


@pytest.mark.parametrize("flag", VALUES)
def test_every_flag_is_also_a_variable_and_the_flag_wins(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    first, second, name, is_first, is_second = VALUES[flag]
    assert getattr(read_settings([flag, first]), name) == is_first
    assert getattr(read_settings([f"{flag}={second}"]), name) == is_second
    monkeypatch.setenv(variable(flag), first)
    assert getattr(read_settings([]), name) == is_first
    assert getattr(read_settings([flag, second]), name) == is_second
    monkeypatch.setenv(variable(flag), "")
    assert read_settings([]) == DEFAULTS, "a variable that is empty is not set"


@pytest.mark.parametrize("flag", [flag for flag in VALUES if flag not in ("--listen", "--store")])
def test_a_flag_wins_over_a_variable_that_is_wrong(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    first, _, name, is_first, _ = VALUES[flag]
    monkeypatch.setenv(variable(flag), "nonsense")
    assert getattr(read_settings([flag, first]), name) == is_first


def test_tls_comes_from_flags_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ServerTls(Path("cert.pem"), Path("key.pem"))
    assert read_settings(["--tls-cert", "cert.pem", "--tls-key", "key.pem"]).tls == expected
    for flag, file in zip(TLS_FLAGS, ("cert.pem", "key.pem", "ca.pem"), strict=True):
        monkeypatch.setenv(variable(flag), file)
    assert read_settings([]).tls == ServerTls(Path("cert.pem"), Path("key.pem"), Path("ca.pem"))
    assert read_settings(["--tls-client-ca", "first"]).tls == ServerTls(
        Path("cert.pem"), Path("key.pem"), Path("first")
    )


BAD = [
    ("--ttl", "soon", "must be a duration such as 90, 90s, 15m or 2h, and not 'soon'"),
    ("--ttl", "-1", "must be a duration such as"),
    ("--ttl", "0", "must be above 0, and not 0"),
    ("--ttl", "3d", "must be a duration such as"),
    ("--ttl", "1e9", "must be a duration such as"),
    ("--retry-window", "1.2.3s", "must be a number, and not '1.2.3'"),
    ("--retry-window", "", "must be a duration such as"),
    ("--max-memory", "much", "must be a size such as 1048576, 512MiB or 2GiB, and not 'much'"),
    ("--max-memory", "1GB", "must be a size such as"),
    ("--max-memory", "0", "must be above 0, and not 0"),
    ("--max-memory", "0.5", "must be "),  # it is no byte at all
    ("--metrics-port", "http", "must be a port from 0 to 65535 or 'off', and not 'http'"),
    ("--metrics-port", "65536", "must be a port from 0 to 65535 or 'off', and not '65536'"),
    ("--metrics-port", "²", "must be a port from 0 to 65535 or 'off', and not '²'"),
    ("--listen", "nonsense", "host:port"),
    ("--listen", "127.0.0.1:http", "host:port"),
    ("--listen", "127.0.0.1:65536", "65535"),  # gRPC would take port 0 and say nothing
    ("--drain-seconds", "long", "must be a number, and not 'long'"),
    ("--drain-seconds", "0", "must be above 0, and not 0"),
    ("--drain-seconds", "inf", "must be above 0, and not inf"),
    ("--drain-seconds", "nan", "must be above 0, and not nan"),
    ("--store-connections", "0", "must be a whole number from 1 to 1024, and not '0'"),
    ("--store-connections", "1025", "must be a whole number from 1 to 1024, and not '1025'"),
    ("--store-connections", "2.5", "must be a whole number from 1 to 1024, and not '2.5'"),
    ("--store-password-file", "missing", "missing is not a file that can be read"),
    ("--store-password-file", ".", ". is not a file that can be read"),
    ("--store-optional-password-file", ".", ". is not a file that can be read"),
    ("--store-optional-password-file", "first/password", "first/password cannot be read: Not a directory"),
    ("--tls-cert", "missing", "missing is not a file that can be read"),
    ("--tls-key", "missing", "missing is not a file that can be read"),
    ("--tls-client-ca", "missing", "missing is not a file that can be read"),
    ("--store", "memories", "must be memory or an address that begins with redis://, rediss://, redis+cluster://"),
    ("--store", "http://a:1", "must be memory or an address that begins with redis://, rediss://, redis+cluster://"),
    ("--store", "redis://[::1", ""),
    ("--log-level", "loud", "must be one of debug, info, warning, error, and not 'loud'"),
    ("--log-format", "xml", "must be one of auto, human, json, and not 'xml'"),
]


@pytest.mark.parametrize(("flag", "value", "reason"), BAD)
def test_a_bad_value_is_refused_with_its_flag_and_what_is_expected(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, reason: str
) -> None:
    sentence = refusal(capsys, flag, value)
    assert flag in sentence
    assert reason in sentence


@pytest.mark.parametrize(("flag", "value", "reason"), [case for case in BAD if case[1]])
def test_a_bad_variable_is_refused_with_its_name_and_what_is_expected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flag: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable(flag), value)
    sentence = refusal(capsys)
    assert variable(flag) in sentence or flag in sentence
    assert (reason if "choice" not in reason else "must be one of ") in sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key go together: give both or neither"),
        (["--tls-key", "key.pem"], "--tls-cert and --tls-key go together: give both or neither"),
        (["--tls-client-ca", "ca.pem"], "--tls-client-ca needs --tls-cert and --tls-key"),
        (
            ["--store", "redis://a:1", "--max-memory", "1GiB"],
            "--max-memory is for --store memory; for Redis set its own maxmemory, with maxmemory-policy noeviction",
        ),
        (["--sotre", "memory"], "unrecognized arguments: --sotre memory; see `leco hashcount --help`"),
        (
            ["--metrics", "9000"],
            "unrecognized arguments: --metrics 9000; see `leco hashcount --help`",
        ),  # no abbreviations, which age badly
        (["memory"], "unrecognized arguments: memory; see `leco hashcount --help`"),
        (["--ttl"], "argument --ttl: expected one argument"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert refusal(capsys, *arguments) == sentence


@pytest.mark.parametrize(
    "arguments",
    [
        ["--store", "redis://:secret@a:1"],
        ["--store=redis://:secret@a:1"],
        ["--store", "redis://user:secret@a:1"],
        ["--store", "rediss+cluster://user:secret@a:1,b:2"],
    ],
)
def test_a_password_on_the_command_line_is_refused_and_not_repeated(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    sentence = refusal(capsys, *arguments)
    assert sentence.startswith("--store has a password on the command line, where every process can read it")
    assert "LECO_HASHCOUNT_STORE" in sentence
    assert "--store-password-file" in sentence
    assert "secret" not in sentence


def test_a_user_without_a_password_may_be_on_the_command_line() -> None:
    store = read_settings(["--store", "redis://user@a:1"]).store
    assert store is not None
    assert (store.username, store.password, store.hosts) == ("user", None, (("a", 1),))


def test_where_the_password_for_redis_may_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LECO_HASHCOUNT_STORE", "redis://user:in-address@a:1/2")
    settings = read_settings([])
    assert settings.store is not None
    assert (settings.store.username, settings.store.password) == ("user", "in-address")
    assert "in-address" not in repr(settings)
    assert settings.store_for_people == "redis://a:1/2"
    monkeypatch.setenv("LECO_HASHCOUNT_STORE_PASSWORD", "in-variable")
    assert read_settings([]).store_password == "in-variable"
    assert read_settings(["--store-password-file", "first"]).store_password == "the first", "a flag wins"


def test_a_secret_that_nobody_made_is_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LECO_HASHCOUNT_STORE", "redis://a:1")
    monkeypatch.setenv("LECO_HASHCOUNT_STORE_OPTIONAL_PASSWORD_FILE", "secret/password")
    Path("secret").mkdir()
    settings = read_settings([])
    assert settings.store_password is None
    assert settings.store_is_open
    Path("secret/password").write_text("made\n")
    settings = read_settings([])
    assert settings.store_password == "made"
    assert not settings.store_is_open
    Path("secret/password").write_text("\n")
    assert "secret/password is empty" in refusal(capsys)
    monkeypatch.setenv("LECO_HASHCOUNT_STORE_OPTIONAL_PASSWORD_FILE", "")
    assert read_settings([]).store_is_open
    assert not read_settings(["--store", "memory"]).store_is_open
    monkeypatch.setenv("LECO_HASHCOUNT_STORE", "redis://:secret@a:1")
    assert not read_settings([]).store_is_open


def test_a_password_file_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("first").write_bytes(b"\xff\xfe\x80")
    assert "--store-password-file" in refusal(capsys, "--store", "redis://a:1", "--store-password-file", "first")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("redis://:top.secret@", "host:port, for example redis://localhost:6379/0"),
        ("redis://:top.secret@a:0", "host:port, for example redis://localhost:6379/0"),
        ("redis://:top.secret@a:http", "host:port, for example redis://localhost:6379/0"),
        ("redis://:top.secret@a:1/zero", "the database in the store's address must be a number, and not 'zero'"),
        ("redis+cluster://:top.secret@a:1/2", "a cluster has no database numbers"),
        ("rediss://:top.secret@a:1?ca=/file", "take ssl_ca_certs, ssl_certfile, ssl_keyfile"),
        ("redis://:top.secret@a:1?ssl_ca_certs=/file", "rediss:// and rediss+cluster:// take ssl_ca_certs"),
        # What happens to people whose password has a character that an address gives a meaning to.
        ("redis://:top/secret@a:1/0", ""),
        ("redis://:top?secret@a:1/0", ""),
        ("redis://:top#secret@a:1/0", ""),
        ("redis://:top[secret@a:1/0", ""),
        ("redis://:top.secret", ""),
    ],
)
def test_a_malformed_store_address_is_explained_without_its_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    monkeypatch.setenv("LECO_HASHCOUNT_STORE", address)
    try:
        open_store(read_settings([]), HashCountMetrics(CollectorRegistry()))
        pytest.fail("it was accepted")
    except SystemExit:
        said = capsys.readouterr().err
    except ValueError as error:  # which `main` writes as it is
        said = str(error)
    assert reason in said
    assert "store" in said
    assert "top" not in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("0.5", 0.5), (".5m", 30)]
)
def test_durations(text: str, seconds: float) -> None:
    assert flags.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "number"), [("1048576", 1 << 20), ("4KiB", 4096), ("1.5MiB", 3 << 19), ("2GiB", 2 << 30)]
)
def test_sizes(text: str, number: int) -> None:
    assert flags.size(text) == number


def leco(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as it is installed."""
    command = [str(Path(sys.executable).with_name("leco")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("help",), ()])
def test_leco_help_lists_the_commands(arguments: tuple[str, ...]) -> None:
    child = leco(*arguments)
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.startswith("usage: leco COMMAND [FLAGS]\n")
    assert re.search(r"^  hashcount +run the hash-count service$", child.stdout, re.MULTILINE)
    assert re.search(r"^  demo +\S", child.stdout, re.MULTILINE)


def test_leco_version() -> None:
    child = leco("--version")
    assert (child.returncode, child.stdout, child.stderr) == (0, f"leco {metadata.version('leco')}\n", "")


def test_leco_says_which_commands_there_are() -> None:
    child = leco("nonsense")
    assert (child.returncode, child.stdout) == (2, "")
    listed = ", ".join(COMMANDS)
    assert child.stderr == f"leco: there is no command 'nonsense'; the commands are: {listed}\n"
    assert {"train", "eval", "watch", "sweep", "report"} < COMMANDS.keys()


def test_leco_hashcount_help() -> None:
    child = leco("hashcount", "--help")
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.startswith("usage: leco hashcount ")
    assert "LECO_HASHCOUNT_LOG_LEVEL for --log-level" in child.stdout


def test_leco_hashcount_with_a_bad_flag() -> None:
    child = leco("hashcount", "--ttl", "soon")
    assert (child.returncode, child.stdout) == (2, "")
    assert child.stderr.endswith("and not 'soon' (--ttl or LECO_HASHCOUNT_TTL)\n")


def test_too_little_memory_is_refused_with_the_flag_and_the_least() -> None:
    child = leco("hashcount", "--max-memory", "1KiB", "--listen", "127.0.0.1:0", "--metrics-port", "off")
    assert child.returncode in (1, 2)
    assert "--max-memory" in child.stderr.splitlines()[-1]
    assert "at least " in child.stderr.splitlines()[-1]
