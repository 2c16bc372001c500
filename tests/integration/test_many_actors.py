"""How many actors may be connected at once, and from one address."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import grpc
import pytest

from leco.v1 import learner_pb2, learner_pb2_grpc
from support.training_services import TrainingProcess, learner
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = """
import resource, sys
from leco.rpc.server import OTHER_FILES, allow_files
soft, hard = map(int, sys.argv[1:3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    allow_files(int(sys.argv[3]) - OTHER_FILES)
except ValueError as error:
    print(error)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
REFUSED = """\
645 connections need 901 open files, and the system lets this process have 900: raise that limit (ulimit -Hn, or the \
container's nofile), or lower --max-connections
500 900"""


def streams(process: TrainingProcess, count: int) -> list[str]:
    """Opens so many Push streams, each on a connection of its own; what became of the last."""
    hello = learner_pb2.PushHello(run="run", actor_name="test")
    answers, ended = [], threading.Event()
    with ExitStack() as stack:
        stack.callback(ended.set)
        for number in range(count):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(process.address, options=options))
            hello.incarnation = number.to_bytes(16, "big")
            call = learner_pb2_grpc.LearnerServiceStub(channel).Push(_said_once(hello, ended), timeout=PATIENCE)
            stack.callback(call.cancel)
            try:
                next(call)
            except grpc.RpcError as error:
                answers.append(f"{error.code().name}: {error.details()}")
            else:
                answers.append("")
    return answers


def _said_once(hello: learner_pb2.PushHello, ended: threading.Event) -> Iterator[learner_pb2.PushRequest]:
    yield learner_pb2.PushRequest(hello=hello)
    ended.wait()


def test_streams_from_one_address_are_two_thirds_of_the_connections(tmp_path: Path) -> None:
    with learner(tmp_path / "run", method="no-int").given("--max-connections=12") as process:
        *answers, last = streams(process, 9)
        assert answers == [""] * 8
        assert last.startswith("RESOURCE_EXHAUSTED: 8 streams by ipv4:127.0.0.1 are in progress")


def test_more_connections_let_more_actors_in(tmp_path: Path) -> None:
    with learner(tmp_path / "run", method="no-int").given("--max-connections=24") as process:
        assert streams(process, 15) == [""] * 15


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "expected"),
    [
        (500, 900, 400, "500 900"),
        (500, 900, 700, "700 900"),
        (500, 900, 900, "900 900"),
        (500, 900, 901, REFUSED),
    ],
)
def test_there_is_room_for_the_files_of_all_connections_or_it_is_said(
    soft: int, hard: int, wanted: int, expected: str
) -> None:
    command = [sys.executable, "-c", LIMIT, *map(str, (soft, hard, wanted))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == expected
