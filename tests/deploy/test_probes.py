"""Probes of deploy/k8s against the real services, started with their pods' own variables: in clear text and with mutual TLS."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from leco.config.toml import parse, to_toml
from support import needs
from support.kustomized import Built
from support.pods import Pod
from support.ports import free_port
from support.redis_servers import RedisServer
from support.training_services import SMALL
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs.kustomize.mark
CLEAR, TLS = Built("minigrid", ()), Built("minigrid", ("tls",))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def kubelet(pod: Pod, kind: str) -> bool:
    """Whether a probe passes, asked as the kubelet asks."""
    probe = pod.container[f"{kind}Probe"]
    if "exec" in probe:
        return pod.probe(kind).returncode == 0
    if "httpGet" in probe:
        [port] = [each["containerPort"] for each in pod.container["ports"] if each["name"] == probe["httpGet"]["port"]]
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{pod.here(str(port))}{probe['httpGet']['path']}", timeout=PATIENCE
            ):
                return True
        except OSError:
            return False
    asked = probe["grpc"]
    with grpc.insecure_channel(f"127.0.0.1:{pod.here(str(asked['port']))}") as channel:
        request = health_pb2.HealthCheckRequest(service=asked.get("service", ""))
        stub: Any = health_pb2_grpc.HealthStub(channel)  # whose annotations forget its methods
        try:
            answer = stub.Check(request, timeout=PATIENCE)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def here(built: Built, name: str, folder: Path, authority: trustme.CA, **variables: str) -> Pod:
    """A pod whose ports are free ones, and all of whose addresses are this machine's."""
    ports = {each["containerPort"]: free_port() for each in built.container(name)["ports"]}
    names = {"0.0.0.0": "127.0.0.1"}
    return Pod(built, name, folder, ports=ports, names=names, authority=authority, variables=variables)


@pytest.mark.parametrize("built", [CLEAR, TLS], ids=str)
def test_hashcount_is_ready_while_its_redis_answers_and_lives_without_it(
    built: Built, tmp_path: Path, authority: trustme.CA
) -> None:
    with RedisServer() as store:
        # Whether the address of the manifest is right is tested with a Redis of the manifest (test_redis.py).
        pod = here(built, "hashcount", tmp_path, authority, LECO_HASHCOUNT_STORE=store.url)
        pod.variables["LECO_HASHCOUNT_STORE_OPTIONAL_PASSWORD_FILE"] = ""
        with pod:
            pod.until(lambda: kubelet(pod, "startup"))
            pod.until(lambda: kubelet(pod, "readiness"))
            store.kill()
            pod.until(lambda: not kubelet(pod, "readiness"))
            assert kubelet(pod, "liveness")
            store.start()
            pod.until(lambda: kubelet(pod, "readiness"))
            assert pod.terminate() == 0
        assert not kubelet(pod, "liveness")


@pytest.mark.parametrize("built", [CLEAR, TLS], ids=str)
def test_learner_and_actor_are_well_and_find_each_other(built: Built, tmp_path: Path, authority: trustme.CA) -> None:
    learner = here(built, "learner", tmp_path / "learner", authority, LECO_LEARNER_THREADS="1")
    # A smaller experiment than the overlay's, which no counts are needed for.
    experiment = to_toml(parse("", SMALL | {"method": "no-int", "frames": 1_000_000}))
    (learner.folder / "etc" / "leco" / "experiment" / "experiment.toml").write_text(experiment)
    actor = here(built, "actor", tmp_path / "actor", authority)
    port = learner.here("50051")
    # The name is resolved by the cluster; here it is the certificate's other name.
    actor.variables["LECO_ACTOR_LEARNER"] = f"dns:///localhost:{port}"
    with learner, actor:
        actor.until(lambda: kubelet(actor, "startup"))  # before there is a learner
        learner.until(lambda: kubelet(learner, "startup"))
        learner.until(lambda: kubelet(learner, "readiness"))
        page = f"http://127.0.0.1:{learner.here('9451')}/metrics"

        def updates() -> float:
            with urllib.request.urlopen(page, timeout=PATIENCE) as answer:
                return float(re.findall(r"^leco_learner_updates_total (.*)$", answer.read().decode(), re.MULTILINE)[0])

        learner.until(lambda: updates() > 3)
        assert kubelet(learner, "liveness")
        assert all(kubelet(actor, kind) for kind in ("readiness", "liveness"))
        assert learner.terminate() == 0
        assert kubelet(actor, "liveness")  # without the learner, which its pod is not to blame for
        assert actor.terminate() == 0
    [run] = (learner.folder / "runs").iterdir()
    assert list((run / "checkpoints").glob("*.safetensors"))


def test_probes_that_start_an_interpreter_have_time_for_it() -> None:
    for name in ("learner", "hashcount"):
        for built in (CLEAR, TLS):
            probes = {kind: built.container(name)[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}
            for probe in probes.values():
                assert ("exec" in probe) == (built is TLS)
                if "exec" in probe:
                    assert probe["timeoutSeconds"] >= 30
                    assert probe["periodSeconds"] >= 10
            # What is busy is not restarted: only what has not answered for minutes is.
            assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 120
            patience = probes["liveness"]["periodSeconds"] * probes["liveness"]["failureThreshold"]
            assert patience >= (300 if built is TLS else 60)


def test_with_tls_a_stranger_is_not_answered(tmp_path: Path, authority: trustme.CA) -> None:
    pod = here(TLS, "learner", tmp_path, authority, LECO_LEARNER_THREADS="1")
    (tmp_path / "etc" / "leco" / "experiment" / "experiment.toml").write_text(to_toml(parse("", SMALL)))
    with pod:
        pod.until(lambda: kubelet(pod, "startup"))
        stranger = {
            key: value
            for key, value in pod.variables.items()
            if key not in ("LECO_HEALTH_TLS_CERT", "LECO_HEALTH_TLS_KEY")
        }
        words = pod.ours(["leco", "health", "--address", f"localhost:{pod.here('50051')}"])
        asked = subprocess.run(words, env=stranger, capture_output=True, text=True, check=False)
        assert asked.returncode == 1
        assert "UNAVAILABLE" in asked.stderr
