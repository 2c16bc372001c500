"""`leco watch` as a real child process, a run for it to show, and what it says to who listens."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import torch

from leco.checkpoint.state_file import save
from leco.config.toml import parse, to_toml
from leco.envs.registry import find_task
from leco.learning.state import init
from leco.methods.table import find_method
from leco.models.build import build
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASK = "MiniGrid-Fetch-5x5-N2-v0"  # stepped by MiniGrid itself: no kernel is compiled when an episode is played


class WatchProcess:
    """Runs `leco watch` from `with` to its end.

    Args:
        run: The run's folder.
        flags: More flags.
        env, cwd: The environment and the folder that it is started in, if not the same.
    """

    def __init__(self, run: Path, *flags: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        self._command = [sys.executable, "-P", "-m", "leco", "watch", str(run), *flags]
        self._env, self._cwd = env, cwd
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        self.child = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._env,
            cwd=self._cwd,
        )
        assert self.child.stdout is not None
        first = self.child.stdout.readline()
        if "http://127.0.0.1:" not in first:
            raise RuntimeError(f"leco watch said: {first}{self.child.communicate()[0]}")
        self.port = int(first.split("http://127.0.0.1:")[1].split("/")[0])
        self.url = f"http://127.0.0.1:{self.port}/"
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.child.stdout or ()))
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.stop(signal.SIGTERM)
        self._reader.join()
        assert self.child.stdout is not None
        self.child.stdout.close()

    def stop(self, number: signal.Signals) -> int:
        """Asks it to end; its exit code."""
        self.child.send_signal(number)
        return self.child.wait(PATIENCE)

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        """One request. The path is sent as it is, and so is a header Host."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True)
            for name, value in ({"Host": f"127.0.0.1:{self.port}"} | headers).items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", "0")
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    @contextlib.contextmanager
    def listening(self) -> Iterator[Iterator[tuple[str, Any, int]]]:
        """What a page is told: the name of each event, its data, and how many bytes that took."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", "/events")
            answer = connection.getresponse()
            assert answer.status == 200
            yield _events(answer)


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any, int]]:
    name = ""
    for line in answer:
        text = line.decode().rstrip("\r\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: ")), len(line)


def settings(**changed: object) -> str:
    """An experiment as TOML."""
    return to_toml(parse("", {"task": TASK, "method": "leco", "frames": 10_000_000, **changed}))


def checkpoint(run: Path, updates: int, **changed: object) -> None:
    """Saves networks that have learned nothing as the state after so many updates."""
    experiment = parse(settings(**changed))
    task = find_task(experiment.task)
    torch.manual_seed(updates)
    state = init(build(find_method(experiment.method), task.observation_shape, task.num_actions))
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    frames = updates * experiment.learner.batch_size * experiment.actors.unroll_length
    save(run / "checkpoints" / f"{updates:09d}.safetensors", state._replace(updates=updates), {"frames": frames})
