"""A real Prometheus that scrapes processes of this machine. Debian and Ubuntu: apt-get install prometheus."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Sample(NamedTuple):
    """One element of an instant vector."""

    labels: dict[str, str]
    value: float


class PrometheusApi:
    """A Prometheus that answers at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expr: str) -> list[Sample]:
        """An instant query now; a scalar is one sample without labels."""
        answer = self.get("query", query=expr)
        found = answer["result"]
        if answer["resultType"] == "scalar":
            found = [{"metric": {}, "value": found}]
        return [Sample(each["metric"], float(each["value"][1])) for each in found]

    def alerts(self) -> list[dict[str, Any]]:
        """What is pending or firing."""
        return list(self.get("alerts")["alerts"])

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        """The data of an answer of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as page:
                return dict(json.load(page)["data"])
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{parameters}: {json.load(error)['error']}") from None


class Prometheus(PrometheusApi):
    """Scrapes every second, from `with` to its end.

    Args:
        targets: Addresses by the name of their job.
        rules: A file of alerts.
    """

    def __init__(self, targets: Mapping[str, Sequence[str]], rules: Path | None = None) -> None:
        super().__init__("")  # not known before it starts
        jobs = [{"job_name": job, "static_configs": [{"targets": list(each)}]} for job, each in targets.items()]
        # JSON is YAML.
        self._config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": jobs,
            "rule_files": [] if rules is None else [str(rules.resolve())],
        }

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="prometheus-")
        folder = Path(self._folder.name)
        (folder / "prometheus.yml").write_text(json.dumps(self._config))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        with (folder / "log").open("w") as log:
            self._child = subprocess.Popen(
                [*command, f"--web.listen-address={self.address}", "--log.level=warn"], stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE
        while not self._ready():
            if self._child.poll() is not None or time.monotonic() > deadline:
                said = (folder / "log").read_text()
                self.__exit__()
                raise RuntimeError(f"Prometheus did not start; it wrote:\n{said}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()
        self._folder.cleanup()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE) as page:
                return bool(page.status == 200)
        except OSError:
            return False
