"""The manifests against the code: whatever a pod is told, its service reads, and understands as it is meant."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shutil
import tomllib
from collections import UserDict
from typing import TYPE_CHECKING, Any

import numba.core.config
import pytest

from leco.cli import dmlab_levels, health
from leco.cli.main import COMMANDS
from leco.config.toml import parse
from leco.envs.dmlab.environment import Machine
from leco.rpc import hashcount_client, learner_client
from services.actor.config import read_settings as read_actor
from services.hashcount.config import read_settings as read_hashcount
from services.learner.config import read_settings as read_learner
from support import needs
from support.kustomized import K8S, OVERLAYS, Built, Object, build, combinations, expanded, quantity
from support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs.kustomize.mark
EVERYTHING = [Built(each, ("autoscaling", "monitoring", "redis-cluster", "tls")) for each in OVERLAYS]
# These change no pod; all combinations are built in test_builds.py.
BESIDE = {"autoscaling", "kueue", "monitoring"}
COMBINATIONS = [each for each in combinations() if not BESIDE & set(each.components)] + EVERYTHING
every_combination = pytest.mark.parametrize("built", COMBINATIONS, ids=str)
every_overlay = pytest.mark.parametrize("built", [Built(each, ()) for each in OVERLAYS], ids=str)
SERVICES = {
    "learner": (read_learner, learner_client.SERVICE),
    "actor": (read_actor, None),
    "hashcount": (read_hashcount, hashcount_client.SERVICE),
}


class Read(UserDict[str, str]):
    """An environment that knows which of its variables were asked for."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def as_in_the_pod(built: Built, name: str, folder: Path) -> dict[str, str]:
    """The variables of a pod, with the files that they name in a folder here, as the pod's volumes would have them."""
    variables, pod = built.variables(name), built.pod(name)
    for mount in built.container(name)["volumeMounts"]:
        [volume] = [each for each in pod["volumes"] if each["name"] == mount["name"]] or [{}]
        inside = folder / mount["mountPath"].removeprefix("/")
        inside.mkdir(parents=True, exist_ok=True)
        if "secret" in volume:
            keys = ["password"] if volume["name"] == "redis-password" else ["tls.crt", "tls.key", "ca.crt"]
            for key in keys:
                (inside / key).write_text("secret\n")
        elif "configMap" in volume:
            for key, text in built.object("ConfigMap", volume["configMap"]["name"])["data"].items():
                (inside / key).write_text(text)
    paths = "|".join(re.escape(each["mountPath"]) for each in built.container(name)["volumeMounts"])
    return {key: re.sub(f"({paths})(?=/|$)", rf"{folder}\1", value) for key, value in variables.items()}


def settings(built: Built, name: str, folder: Path, patch: pytest.MonkeyPatch) -> tuple[Any, Read]:
    """What the service makes of its pod's variables, and which of them it read."""
    environment = Read(as_in_the_pod(built, name, folder))
    patch.setattr(os, "environ", environment)
    return SERVICES[name][0]([]), environment


@every_combination
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_reads_every_variable_that_its_pod_has(
    built: Built, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, environment = settings(built, name, tmp_path, monkeypatch)
    asked = set(environment.asked)  # the variables that follow are looked at, not read
    monkeypatch.undo()
    probes = Read(dict(environment))
    monkeypatch.setattr(os, "environ", probes)
    with pytest.raises(SystemExit):
        health.main(["--help"])
    monkeypatch.undo()
    play = Read(dict(environment))
    Machine.from_environment(play)
    parts = set(re.findall(r"\$\((\w+)\)", str(built.container(name))))  # of which other variables are made
    unread = environment.keys() - asked - parts
    unread -= probes.asked if "tls" in built.components else set()
    unread -= play.asked if built.base == "dmlab" else set()
    assert unread <= {"NUMBA_CACHE_DIR"}
    assert hasattr(numba.core.config, "CACHE_DIR")  # which is what reads that


@every_combination
def test_services_listen_and_are_asked_where_ports_and_probes_say(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (_, service) in SERVICES.items():
        found, _ = settings(built, name, tmp_path, monkeypatch)
        monkeypatch.undo()
        container = built.container(name)
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports["metrics"] == found.metrics_port
        probes = {each: container[f"{each}Probe"] for each in ("startup", "readiness", "liveness")}
        if service is None:  # an actor: nothing but the page of metrics
            assert found.metrics_host == "0.0.0.0"
            assert {str(each["httpGet"]) for each in probes.values()} == {"{'path': '/metrics', 'port': 'metrics'}"}
            continue
        assert found.listen == f"0.0.0.0:{ports['grpc']}"
        assert {each: asked_for(probe, ports["grpc"]) for each, probe in probes.items()} == {
            "startup": "",
            "readiness": service,
            "liveness": "",  # the process itself: nobody else's failure restarts it
        }
        assert ("exec" in probes["readiness"]) == (found.tls is not None)


def asked_for(probe: Object, port: int) -> str:
    """The service whose health a probe asks for."""
    if "grpc" in probe:
        assert probe["grpc"]["port"] == port
        return str(probe["grpc"].get("service", ""))
    command = probe["exec"]["command"]
    assert command[:4] == ["leco", "health", "--address", f"localhost:{port}"]
    assert command[1] in COMMANDS
    return str(command[5]) if command[4:5] == ["--service"] else ""


@every_combination
def test_clients_are_sent_to_the_services(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, _ = settings(built, "actor", tmp_path, monkeypatch)
    monkeypatch.undo()
    hashcount, _ = settings(built, "hashcount", tmp_path, monkeypatch)
    monkeypatch.undo()
    for name, address in (("learner", actor.learner), ("hashcount", actor.hashcount)):
        [port] = built.object("Service", name)["spec"]["ports"]
        assert address == f"dns:///{name}:{port['port']}"
    # Every replica is behind the name: the client spreads its calls, not the network.
    assert built.object("Service", "hashcount")["spec"]["clusterIP"] == "None"
    assert built.object("Deployment", "hashcount")["spec"]["replicas"] >= 2
    [port] = built.object("Service", "redis")["spec"]["ports"]
    assert hashcount.store.hosts == (("redis", port["port"]),)
    assert hashcount.store_password == "secret"
    assert hashcount.store.cluster == ("redis-cluster" in built.components)
    assert hashcount.store.tls == ("tls" in built.components) == (actor.tls is not None)
    if hashcount.store.tls:
        assert hashcount.tls.client_ca is not None
        assert {key for key, _ in hashcount.store.files} == {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
        names = {each["metadata"]["name"]: each["spec"].get("dnsNames", []) for each in built.kinds("Certificate")}
        assert {"learner", "localhost"} <= set(names["learner"])
        assert {"hashcount", "localhost"} <= set(names["hashcount"])
        nodes = [f"redis-{n}.redis" for n in range(built.object("StatefulSet", "redis")["spec"]["replicas"])]
        assert {"redis", *nodes} <= set(names["redis"])


@every_overlay
def test_a_drain_fits_into_the_time_that_kubernetes_gives(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, spare in (("learner", 60), ("hashcount", 5), ("actor", 10)):
        found, _ = settings(built, name, tmp_path, monkeypatch)
        monkeypatch.undo()
        assert built.pod(name)["terminationGracePeriodSeconds"] >= found.drain_seconds + spare


@every_overlay
def test_the_experiment_is_one_and_its_queue_has_room_for_all_actors(built: Built) -> None:
    experiment = parse(built.config("experiment")["experiment.toml"])
    actors = built.object("Deployment", "actor")["spec"]["replicas"]
    played, batch = actors * experiment.actors.num_envs, experiment.learner.batch_size
    if experiment.learner.synchronous:  # as `leco train --actors` has it
        assert played == experiment.learner.queue_capacity == batch
    else:
        assert experiment.learner.queue_capacity == batch + played
    scaled = Built(built.base, ("autoscaling",)).object("ScaledObject", "actor")["spec"]
    assert scaled["maxReplicaCount"] == scaled["fallback"]["replicas"] == actors
    assert "replicas" not in Built(built.base, ("autoscaling",)).object("Deployment", "actor")["spec"]


def test_dmlab_is_the_papers_experiment_with_240_actors() -> None:
    built = Built("dmlab", ())
    ours = parse(built.config("experiment")["experiment.toml"])
    papers = parse((ROOT / "configs" / f"{ours.task}.toml").read_text())
    assert built.object("Deployment", "actor")["spec"]["replicas"] * ours.actors.num_envs == 240
    assert ours == dataclasses.replace(papers, actors=ours.actors, learner=ours.learner)
    assert ours.learner == dataclasses.replace(papers.learner, queue_capacity=ours.learner.queue_capacity)
    assert ours.actors == dataclasses.replace(papers.actors, num_envs=1)


def test_the_learner_with_a_gpu_asks_for_one_and_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for built in (Built("dmlab", ()), Built("minigrid", ("gpu",))):
        found, _ = settings(built, "learner", tmp_path, monkeypatch)
        monkeypatch.undo()
        container = built.container("learner")
        assert found.device == "cuda"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert container["image"].startswith("leco-learner-cuda:")
        assert found.threads == math.ceil(quantity(container["resources"]["requests"]["cpu"]))


@every_combination
def test_images_are_those_that_the_dockerfiles_make_with_a_fixed_version(built: Built) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    compose = dict(line.split("=", 1) for line in (ROOT / ".env").read_text().splitlines() if re.match(r"\w+=", line))
    made = {f"leco-{each.parent.name}" for each in (ROOT / "services").glob("*/Dockerfile")}
    assert made == {"leco-actor", "leco-hashcount", "leco-learner"}
    # Variants of two of them: a target of its own, and another build argument.
    assert "AS dmlab\n" in (ROOT / "services" / "actor" / "Dockerfile").read_text()
    assert "ARG TORCH_INDEX" in (ROOT / "services" / "learner" / "Dockerfile").read_text()
    made |= {"leco-actor-dmlab", "leco-learner-cuda"}
    for workload in built.workloads():
        [container] = workload["spec"]["template"]["spec"]["containers"]
        if container["image"] != compose["REDIS_IMAGE"]:
            name, _, tag = container["image"].partition(":")
            assert name in made
            assert tag == version
            user = re.search(
                r"^USER (\d+):(\d+)$", (ROOT / "services" / "learner" / "Dockerfile").read_text(), re.MULTILINE
            )
            assert user is not None
            context = workload["spec"]["template"]["spec"]["securityContext"]
            assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))


def test_the_warm_up_is_told_what_it_understands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Built("dmlab", ())
    job, container = built.object("Job", "level-warm-up")["spec"], built.container("level-warm-up")
    assert container["command"] == ["leco", "dmlab-levels"]
    variables = as_in_the_pod(built, "level-warm-up", tmp_path)
    done: list[tuple[Any, ...]] = []

    def note(*given: object) -> int:
        done.append(given)
        return 0

    monkeypatch.setattr(dmlab_levels, "warm_up", note)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for index in range(job["completions"]):
        arguments = [expanded(each, {"JOB_COMPLETION_INDEX": str(index)}) for each in container["args"]]
        with pytest.raises(SystemExit, match="0"):
            dmlab_levels.main([each.replace("/etc/leco", str(tmp_path / "etc" / "leco")) for each in arguments])
    assert [given[2:] for given in done] == [(index, job["completions"]) for index in range(job["completions"])]
    machine = Machine.from_environment(variables)
    assert {given[1] for given in done} == {machine}
    assert machine.levels == Machine.from_environment(built.variables("actor")).levels == 1000
    size = built.object("PersistentVolumeClaim", "levels")["spec"]["resources"]["requests"]["storage"]
    assert machine.cache_bytes < int(size.removesuffix("Gi")) * 2**30  # the cache cleans up before the volume is full


def test_a_changed_warm_up_is_another_job_because_none_can_be_changed(tmp_path: Path) -> None:
    def job(folder: Path) -> Object:
        [found] = [each for each in build(folder) if each["kind"] == "Job"]
        return found

    def changed(file: str, old: str, new: str) -> Object:
        path = tmp_path / "k8s" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        found = job(tmp_path / "k8s" / "dmlab")
        path.write_text(text)
        return found

    shutil.copytree(K8S, tmp_path / "k8s", ignore=shutil.ignore_patterns("monitoring"))
    mine = tmp_path / "mine"
    mine.mkdir()
    images = "images: [{name: leco-actor-dmlab, newName: registry.example.com/leco-actor-dmlab}]"
    (mine / "kustomization.yaml").write_text(f"resources: [../k8s/dmlab]\n{images}\n")
    jobs = [
        job(tmp_path / "k8s" / "dmlab"),
        changed("dmlab/experiment.toml", "lasertag_three_opponents_small", "explore_goal_locations_small"),
        changed("dmlab/dmlab.env", "LEVELS=1000", "LEVELS=2000"),
        changed("dmlab/kustomization.yaml", "leco-actor-dmlab, newTag: ", "leco-actor-dmlab, newTag: 9."),
        job(mine),
    ]
    assert len({each["metadata"]["name"] for each in jobs}) == len(jobs)
    # What changes nothing in it leaves its name and its template as they are, and an apply has nothing to do.
    for file, old, new in (
        ("dmlab/actor.yaml", "replicas: 240", "replicas: 60"),
        ("dmlab/kustomization.yaml", "leco-learner-cuda, newTag: ", "leco-learner-cuda, newTag: 9."),
    ):
        assert changed(file, old, new) == jobs[0]
    assert jobs[-1]["spec"]["template"]["spec"]["containers"][0]["image"].startswith("registry.example.com/")


@pytest.mark.parametrize("built", EVERYTHING, ids=str)
def test_files_that_redis_is_told_of_are_mounted(built: Built) -> None:
    config = built.config("redis")
    for name in ("redis", "redis-setup"):
        mounts = {each["mountPath"]: each["name"] for each in built.container(name)["volumeMounts"]}
        named = re.findall(r"/etc/leco/tls/[\w.]+", config["component-tls.conf"] + config["cli-flags"])
        assert {os.path.basename(each) for each in named} == {"ca.crt", "tls.crt", "tls.key"}  # noqa: PTH119
        assert mounts["/etc/leco/tls"] == "tls"
        assert mounts["/etc/redis"] == "config"
        script = built.container(name)["command"][-1]
        assert script.removeprefix("/etc/redis/") in config
    peers = built.variables("redis")["REDIS_PEERS"]
    assert peers == built.variables("redis-setup")["REDIS_PEERS"]
    replicas = built.object("StatefulSet", "redis")["spec"]["replicas"]
    assert peers.split() == [f"redis-{n}.redis:6379" for n in range(replicas)]


def test_every_file_of_the_manifests_is_used() -> None:
    named = "".join(each.read_text() for each in K8S.rglob("kustomization.yaml"))
    for path in K8S.rglob("*"):
        if path.is_file() and path.name not in ("kustomization.yaml", "README.md", "checkov.yaml"):
            assert path.name in named, path
