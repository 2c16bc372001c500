"""Pods of deploy/k8s as processes of this machine: the same commands, variables, files and probes, in a folder each."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

from support.kustomized import Built, Object, expanded
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import trustme

PASSWORD = 'with " and \\ and a space'


class Pod:
    """A pod of a workload that has one container.

    Args:
        built: What was applied.
        name: Of the workload.
        folder: Takes the place of the container's file system.
        ports: Ports here for ports there.
        names: Likewise, names of hosts.
        authority: Signs the certificates that cert-manager would make.
        variables: Instead of those of the manifest.
        password: Whether somebody made the secret with the password of Redis.
    """

    def __init__(
        self,
        built: Built,
        name: str,
        folder: Path,
        *,
        ports: Mapping[int, int],
        names: Mapping[str, str] | None = None,
        authority: trustme.CA,
        variables: Mapping[str, str] | None = None,
        password: bool = True,
    ) -> None:
        self._built, self._name, self.folder = built, name, folder
        self._ports, self._names = dict(ports), dict(names or {})
        self.container = built.container(name)
        self._mounts = [each["mountPath"] for each in self.container["volumeMounts"]]
        self._make_files(authority, password=password)
        found = built.variables(name) | dict(variables or {})
        inherited = {key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH") if key in os.environ}
        self.variables = inherited | {key: self.here(value) for key, value in found.items()}

    def here(self, text: str) -> str:
        """What stands for a text of the container: other paths, other ports."""
        paths = "|".join(map(re.escape, self._mounts))
        text = re.sub(rf"(?<![\w.])({paths})(?=/|$)", rf"{self.folder}\1", text, flags=re.MULTILINE)
        for port, ours in self._ports.items():
            text = re.sub(rf"\b{port}\b", str(ours), text)
        for name, our_name in self._names.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", our_name, text)
        return text

    def _make_files(self, authority: trustme.CA, *, password: bool) -> None:
        volumes = {each["name"]: each for each in self._built.pod(self._name)["volumes"]}
        for mount in self.container["volumeMounts"]:
            inside, volume = self.folder / mount["mountPath"].removeprefix("/"), volumes.get(mount["name"], {})
            inside.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                for key, text in self._built.object("ConfigMap", volume["configMap"]["name"])["data"].items():
                    (inside / key).write_text(self.here(text))
            elif "secret" in volume and volume["secret"]["secretName"] == "redis-password":
                assert volume["secret"].get("optional") or password, "the pod would wait for the secret"
                if password:
                    (inside / "password").write_text(PASSWORD + "\n")
            elif "secret" in volume:
                self._issue(inside, volume["secret"]["secretName"], authority)

    def _issue(self, inside: Path, secret: str, authority: trustme.CA) -> None:
        for each in self._built.kinds("Certificate"):
            specification = each["spec"]
            if specification["secretName"] == secret:
                names = specification["dnsNames"] + specification.get("ipAddresses", [])
                issued = authority.issue_cert(*names, common_name=specification["commonName"])
                (inside / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
                (inside / "tls.key").write_bytes(issued.private_key_pem.bytes())
                (inside / "ca.crt").write_bytes(authority.cert_pem.bytes())

    def command(self) -> list[str]:
        """What the container runs: its image's entry point, unless the manifest says otherwise."""
        words = self.container.get("command", ["leco", self._name]) + self.container.get("args", [])
        return self.ours([self.here(expanded(each, self.variables)) for each in words])

    def probe(self, kind: str) -> subprocess.CompletedProcess[str]:
        """Runs a probe that is a command, as the kubelet does: in the container, with its variables."""
        probe: Object = self.container[f"{kind}Probe"]
        words = self.ours([self.here(each) for each in probe["exec"]["command"]])
        return subprocess.run(words, env=self.variables, capture_output=True, text=True, timeout=PATIENCE, check=False)

    @staticmethod
    def ours(words: list[str]) -> list[str]:
        """`leco` of this tree."""
        return [sys.executable, "-P", "-m", "leco", *words[1:]] if words[0] == "leco" else words

    def __enter__(self) -> Self:
        self.log = self.folder / "log"
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                self.command(), env=self.variables, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """The node is gone: nobody is asked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> int:
        """SIGTERM, as when a pod is deleted; the exit code."""
        self._process.terminate()
        return self._process.wait(PATIENCE)

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds while the pod runs; fails with the pod's log."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self._process.poll() is None, f"the pod ended:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"not within {PATIENCE:g} s:\n{self.log.read_text()}"
            time.sleep(0.1)

    def until_probe(self, kind: str, *, passes: bool = True) -> None:
        """Waits until a probe that is a command passes, or does not any more."""
        self.until(lambda: (self.probe(kind).returncode == 0) == passes)


def redis_pod(
    built: Built, folder: Path, port: int, authority: trustme.CA, *, password: bool = True, **variables: Any
) -> Pod:
    """The pod redis-0 on this port of loopback."""
    names = {"redis-0.redis": "localhost"}
    pod = Pod(
        built,
        "redis",
        folder,
        ports={6379: port},
        names=names,
        authority=authority,
        variables=variables,
        password=password,
    )
    config = folder / "etc" / "redis"
    (config / "redis.conf").write_text((config / "redis.conf").read_text().replace("bind * -::*", "bind 127.0.0.1"))
    # In a container redis-cli finds the server on its usual port.
    with (config / "cli-flags").open("a") as flags:
        flags.write(f" -p {port}")
    return pod
