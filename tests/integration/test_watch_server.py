"""`leco watch` to who speaks HTTP: it answers this machine alone, tells what is new, and ends cleanly."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import leco
from leco.cli import zoo
from leco.cli.watch import command
from leco.cli.watch.series import MOST_POINTS
from leco.cli.watch.server import HEADERS, MOST_PAGES
from support.waiting import PATIENCE, until
from support.watch_process import TASK, WatchProcess, checkpoint, settings
from support.zoo_case import saved_run

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = "frames,updates,seconds,return\n"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchProcess]:
    run = tmp_path_factory.mktemp("runs") / "run"
    run.mkdir()
    (run / "config.toml").write_text(settings())
    (run / "metrics.csv").write_text(f"{HEAD}1536,1,1,0.5\n")
    with WatchProcess(run) as process:
        yield process


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.1:{port}", "localhost:{port}"])
def test_this_machine_by_name_is_answered(shown: WatchProcess, host: str) -> None:
    status, headers, body = shown.ask("/", Host=host.format(port=shown.port))
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"<h1" in body


@pytest.mark.parametrize(
    "host",
    ["rebound.example", "rebound.example:{port}", "127.0.0.1.rebound.example", "localhost.example", "0.0.0.0", ""],
)
@pytest.mark.parametrize("path", ["/", "/events", "/watch.js", "/episodes/x/0.png"])
def test_a_name_that_was_made_to_lead_here_gets_nothing(shown: WatchProcess, host: str, path: str) -> None:
    status, _, body = shown.ask(path, Host=host.format(port=shown.port))
    assert (status, body) == (400, b"Invalid host header")


@pytest.mark.parametrize("path", ["/", "/watch.js", "/nothing", "/episodes/x/0.png"])
def test_every_answer_is_guarded(shown: WatchProcess, path: str) -> None:
    for host in ("localhost", "rebound.example"):
        _, headers, _ = shown.ask(path, Host=host)
        assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        *("/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/page/index.html", "/server.py"),
        *("/episodes/../../config.toml", "/episodes/%2e%2e%2f%2e%2e/0.png", "/episodes/x/-1.png", "/uplot/LICENSE"),
        *("/config.toml", "/metrics.csv", "/episodes/x/99999999999999999999.png", "/watch.js/.."),
    ],
)
def test_no_path_leads_to_a_file(shown: WatchProcess, path: str) -> None:
    status, _, body = shown.ask(path)
    assert status == 404
    assert len(body) < 100


def test_only_the_page_itself_can_have_an_episode_played(shown: WatchProcess) -> None:
    own = f"http://127.0.0.1:{shown.port}"
    assert shown.ask("/episodes", "POST", Origin=own)[0] == 202
    for origin in ("http://rebound.example", "null", f"http://localhost:{shown.port}", "http://127.0.0.1"):
        assert shown.ask("/episodes", "POST", Origin=origin)[0] == 403
    assert shown.ask("/episodes", "POST")[0] == 403
    assert shown.ask("/episodes")[0] == 405
    assert shown.ask("/", "POST", Origin=own)[0] == 405


def test_it_listens_on_one_address_only(shown: WatchProcess) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", shown.port), timeout=PATIENCE).close()


def test_pages_beyond_the_limit_are_refused_and_get_in_when_others_leave(shown: WatchProcess) -> None:
    with ExitStack() as pages:
        for _ in range(MOST_PAGES):
            next(pages.enter_context(shown.listening()))
        status, _, body = shown.ask("/events")
        assert (status, body) == (503, f"{MOST_PAGES} pages are open already; close some\n".encode())
        assert shown.ask("/")[0] == 200

    def gets_in() -> bool:
        try:
            with shown.listening() as events:
                return next(events)[0] == "curves"
        except AssertionError:
            return False

    until(gets_in)


def test_pages_that_come_all_at_once_are_no_more_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings())
    with WatchProcess(tmp_path) as process, ExitStack() as pages:
        connections = [
            pages.enter_context(socket.create_connection(("127.0.0.1", process.port), timeout=PATIENCE))
            for _ in range(120)
        ]
        for connection in connections:
            connection.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{process.port}\r\n\r\n".encode())
        answers = Counter(connection.recv(12) for connection in connections)
        assert answers == {b"HTTP/1.1 200": MOST_PAGES, b"HTTP/1.1 503": 120 - MOST_PAGES}


def test_a_very_long_run_is_told_in_few_points_and_then_only_what_is_new(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings(frames=1_000_000_000))
    path = tmp_path / "metrics.csv"
    count = 100_000
    path.write_text(HEAD + "".join(f"{1536 * n},{n},{n / 2},{n % 10}\n" for n in range(1, count + 1)))
    with WatchProcess(tmp_path) as process, process.listening() as first_page, process.listening() as second_page:
        for page in (first_page, second_page):
            while True:
                name, data, size = next(page)
                assert size < 500_000
                if name == "curves" and data["columns"]["frames"]["mean"][-1] == 1536 * count:
                    break
            assert data["stride"] == 128
            assert len(data["columns"]["frames"]["mean"]) <= MOST_POINTS
        with path.open("a") as file:
            file.write(f"{1536 * (count + 1)},{count + 1},1,7\n")
        for page in (first_page, second_page):
            name, data, size = next(event for event in page if event[0] == "curves")
            assert data["columns"]["frames"]["mean"] == [1536 * (count + 1)]
            assert data["first"] == count // 128
            assert size < 500


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_with_pages_open_and_an_episode_being_played_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    run, place = tmp_path / "run", tmp_path / "tmp"
    place.mkdir()
    checkpoint(run, 5)
    (run / "config.toml").write_text(settings())
    before = sorted(path.name for path in run.rglob("*"))
    with WatchProcess(run, env=os.environ | {"TMPDIR": str(place)}) as process, process.listening() as events:
        while next(events)[:2] != ("player", {"phase": "playing"}):
            pass
        players = children(process.child.pid)
        assert len(players) == 1
        until(lambda: os.getpriority(os.PRIO_PROCESS, players[0]) == 19)
        assert list(place.glob("leco-watch-*"))
        assert process.stop(number) == 0
    assert process.lines == []
    assert not any(Path(f"/proc/{player}").exists() for player in players)
    assert not list(place.glob("leco-watch-*"))
    assert sorted(path.name for path in run.rglob("*")) == before  # a run is only read


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_taken_port_is_passed_over_unless_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with command.listen(None) as first, command.listen(None) as second:
        one, other = first.getsockname()[1], second.getsockname()[1]
        assert command.FIRST_PORT <= one < other
        with WatchProcess(tmp_path) as process:
            assert process.port > one
            assert process.ask("/")[0] == 200
        with pytest.raises(SystemExit) as ended:
            command.main([str(tmp_path), f"--port={one}"])
        assert ended.value.code == 2
        assert re.match(rf"leco watch: port {one} cannot be had \(.*\); leave out --port", capsys.readouterr().err)
    with WatchProcess(tmp_path, f"--port={one}") as process:
        assert process.port == one


def test_open_opens_the_page_in_the_browser(tmp_path: Path) -> None:
    browser, asked = tmp_path / "browser", tmp_path / "asked"
    browser.write_text(f'#!/bin/sh\necho "$1" > {asked}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    run = tmp_path / "run"
    run.mkdir()
    with WatchProcess(run, "--open", env=os.environ | {"BROWSER": str(browser)}) as process:
        until(lambda: asked.exists() and asked.read_text().strip() == process.url)


def said(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-P", "-m", "leco", "watch", *arguments]
    env = os.environ | {"PYTHONPATH": str(Path(leco.__file__).parents[1])}
    ended = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    return ended.stderr.strip()


def test_a_folder_that_cannot_be_watched_says_which_can(tmp_path: Path) -> None:
    assert said("runs/nothing", cwd=tmp_path) == (
        "leco watch: there is no folder runs/nothing; `leco train` makes one under runs/"
    )
    for name in ("KeyCorridorS3R3-leco-1", "KeyCorridorS3R3-leco-2", "MultiRoom-N6-leco-1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").write_text("")
    (tmp_path / "runs" / "no run").mkdir()
    told = said("runs/KeyCoridorS3R3-leco-1", cwd=tmp_path)
    assert told.startswith(
        "leco watch: there is no folder runs/KeyCoridorS3R3-leco-1; the nearest runs: runs/KeyCorridorS3R3-leco-1, "
    )
    assert "no run" not in told
    assert "runs/MultiRoom-N6-leco-1" in said("elsewhere", cwd=tmp_path)
    assert said("runs", cwd=tmp_path).startswith("leco watch: runs is no run; the nearest runs: runs/")
    (tmp_path / "runs" / "sweep.toml").write_text("")
    assert said("runs", cwd=tmp_path).startswith("leco watch: runs is a sweep; watch one of its runs: runs/")


def test_a_file_that_cannot_be_read_and_a_checkpoint_that_cannot_be_used_are_said_and_end_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.toml").write_text(settings())
    (tmp_path / "metrics.csv").mkdir()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "000000007.safetensors").write_bytes(b"damaged")
    with WatchProcess(tmp_path) as process, process.listening() as events:
        told: dict[str, Any] = {}
        while told.get("player", {}).get("phase") != "failed" or "standing" not in told:
            name, data, _ = next(events)
            told[name] = data
        assert "Is a directory" in told["standing"]["trouble"]
        assert "000000007.safetensors" in told["player"]["why"]
        assert "\n" not in told["player"]["why"]
        (tmp_path / "metrics.csv").rmdir()
        (tmp_path / "metrics.csv").write_text(f"{HEAD}1536,1,1,0.5\nnan,2,nan,0.6\n,3,3,0.7\n")
        assert next(data for name, data, _ in events if name == "curves")["columns"]["return"] == {"mean": [0.5]}


def test_an_entry_of_the_zoo_is_shown_with_what_it_knows(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", task=TASK, solved=97)
    zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(run), "--name=entry"])
    entry = tmp_path / "zoo" / "entry"
    before = sorted(path.name for path in entry.iterdir())
    with WatchProcess(entry) as process, process.listening() as events:
        told: dict[str, Any] = {}
        while not {"curves", "standing", "episode"} <= told.keys():
            name, data, _ = next(events)
            told[name] = data
        assert told.get("player", {}).get("phase") != "failed"
        status, headers, _ = process.ask(f"/episodes/{told['episode']['id']}/0.png")
    assert (status, headers["Content-Type"]) == (200, "image/png")
    assert told["standing"]["phase"] == "finished"
    assert told["standing"]["about"].endswith("r_ta and r_i are not known.")
    assert {"codes", "count", "r_ep", "r_e"} <= told["episode"].keys()
    assert "r_ta" not in told["episode"]
    assert told["episode"]["frames"] == 50_000
    assert told["curves"]["columns"]["frames"]["mean"][-1] == 50_000
    assert sorted(path.name for path in entry.iterdir()) == before


def test_an_entry_with_a_damaged_policy_says_so(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", task=TASK, solved=97)
    zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(run), "--name=entry"])
    (tmp_path / "zoo" / "entry" / "policy.safetensors").write_bytes(b"damaged")
    with WatchProcess(tmp_path / "zoo" / "entry") as process, process.listening() as events:
        why = next(data["why"] for name, data, _ in events if name == "player" and data["phase"] == "failed")
    assert "policy.safetensors" in why
