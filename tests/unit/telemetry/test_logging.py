"""Logs as they leave the process."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.waiting import PATIENCE

# What a service and the libraries in it may log, from the least severe to the most.
LOGGING = """
import logging, pathlib, structlog
from leco.telemetry.logging import configure_logging
configure_logging({arguments})
ours, theirs = structlog.get_logger("leco.ours"), logging.getLogger("library.theirs")
ours.debug("a detail")
theirs.debug("a detail of %s", "theirs")
ours.info("serving", address="127.0.0.1:1", port=None, file=pathlib.Path("/a"), raw=b"\\xff")
theirs.info("opened %d files", 3)
ours.warning("two\\nlines")
theirs.warning("careful")
try:
    [][7]
except IndexError as error:
    ours.error("failed here", exc_info=error)
    theirs.exception("failed there")
"""
MESSAGES = [
    ("debug", "leco.ours", "a detail"),
    ("debug", "library.theirs", "a detail of theirs"),
    ("info", "leco.ours", "serving"),
    ("info", "library.theirs", "opened 3 files"),
    ("warning", "leco.ours", "two\nlines"),
    ("warning", "library.theirs", "careful"),
    ("error", "leco.ours", "failed here"),
    ("error", "library.theirs", "failed there"),
]


def logged(arguments: str = "") -> str:
    """What a process logs whose standard error is no terminal."""
    command = [sys.executable, "-c", LOGGING.format(arguments=arguments)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert child.stdout == ""
    return child.stderr


def logged_on_a_terminal(arguments: str = "") -> str:
    """The same on a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", LOGGING.format(arguments=arguments)]
    with subprocess.Popen(command, stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "120"}) as child:
        os.close(theirs)
        text = b""
        while chunk := _read(ours):
            text += chunk
        os.close(ours)
    assert child.returncode == 0
    return text.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other side has closed
        return b""


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_without_a_terminal_every_line_is_json() -> None:
    lines = parsed(logged())
    assert [(line["level"], line["logger"], line["event"]) for line in lines] == MESSAGES[2:]
    for line in lines:
        age = datetime.now(UTC) - datetime.fromisoformat(line["timestamp"])
        assert timedelta(0) <= age < timedelta(seconds=PATIENCE)
    assert {name: lines[0][name] for name in ("address", "port", "file")} == {
        "address": "127.0.0.1:1",
        "port": None,
        "file": "PosixPath('/a')",
    }


@pytest.mark.parametrize("line", [-2, -1])
def test_an_exception_is_one_json_line_with_its_traceback(line: int) -> None:
    failed = parsed(logged())[line]
    assert failed["exception"].startswith("Traceback (most recent call last):\n")
    assert failed["exception"].endswith("IndexError: list index out of range")


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_lines_less_severe_than_the_level_are_left_out(level: str) -> None:
    first = [message[0] for message in MESSAGES].index(level)
    lines = parsed(logged(f'level="{level}"'))
    assert [(line["level"], line["logger"], line["event"]) for line in lines] == MESSAGES[first:]


def test_on_a_terminal_lines_are_for_people() -> None:
    text = logged_on_a_terminal()
    assert "\x1b[" in text, "in colour"
    assert "{" not in text.splitlines()[0]
    for word in ("serving", "127.0.0.1:1", "leco.ours", "opened 3 files", "library.theirs", "IndexError"):
        assert word in text
    assert "a detail" not in text


def test_json_can_be_had_on_a_terminal() -> None:
    assert [line["event"] for line in parsed(logged_on_a_terminal('log_format="json"'))] == [m[2] for m in MESSAGES[2:]]


def test_lines_for_people_can_be_had_in_a_file_and_have_no_colours_there() -> None:
    text = logged('log_format="human"')
    assert "\x1b[" not in text
    first = text.splitlines()[0]
    for word in ("info", "serving", "leco.ours", "address=127.0.0.1:1"):
        assert word in first
    assert "IndexError: list index out of range" in text


def test_control_characters_of_a_value_do_not_reach_the_terminal() -> None:
    program = """
import structlog
from leco.telemetry.logging import configure_logging
configure_logging(log_format="human")
structlog.get_logger("leco").info("an actor joined", actor="\\x1b[2J", run="\\u202e", other="plain é")
"""
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    [line] = child.stderr.splitlines()
    assert line.isprintable()
    assert "x1b[2J" in line
    assert "plain é" in line
