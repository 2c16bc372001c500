"""`leco cluster` as a real process: against a server that speaks the Kubernetes API, a real learner behind its port-forward."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.kubernetes_api import KubernetesApi
from support.training_services import actor, learner, until_updates
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

LABELS = "app.kubernetes.io/component"


def ask(api: KubernetesApi, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    config = folder / "kubeconfig"
    api.write_config(config)
    environment = os.environ | {"KUBECONFIG": str(config)}
    command = [sys.executable, "-P", "-m", "leco", "cluster", *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)


def workload(name: str, wanted: int, ready: int) -> dict[str, Any]:
    specification = {"replicas": wanted, "selector": {}, "serviceName": name, "template": {}}
    return {
        "metadata": {"name": name},
        "spec": specification,
        "status": {"replicas": wanted, **({"readyReplicas": ready} if ready else {})},
    }


def pod(name: str, *, ready: bool = True, waiting: str | None = None, restarts: int = 0) -> dict[str, Any]:
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    container = {"name": name, "image": "i", "imageID": "", "ready": ready, "restartCount": restarts, "state": state}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": name, "labels": {LABELS: name}},
        "status": {"conditions": conditions, "containerStatuses": [container]},
    }


def unscheduled(name: str) -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return {"metadata": {"name": name, "labels": {LABELS: name}}, "status": {"conditions": conditions}}


def objects(learner_ready: int = 1) -> dict[str, list[dict[str, Any]]]:
    return {
        "statefulsets": [workload("redis", 1, 1), workload("learner", 1, learner_ready)],
        "deployments": [workload("hashcount", 2, 2), workload("actor", 5, 2)],
        "pods": [
            *(pod("actor", restarts=2) for _ in range(2)),
            *(pod("actor", ready=False, waiting="ImagePullBackOff") for _ in range(2)),
            unscheduled("actor"),
            pod("learner"),
            *(pod("hashcount") for _ in range(2)),
            pod("redis"),
        ],
    }


def test_pods_and_their_problems_and_the_progress_of_a_real_learner(tmp_path: Path) -> None:
    with learner(tmp_path / "run", method="no-int", frames=10**9) as serving, actor(serving.address):
        until_updates(serving, 3)
        with KubernetesApi(objects(), ports={9451: serving.metrics_port}) as api:
            shown = ask(api, tmp_path, "--namespace", "mine")
    assert shown.stderr == ""
    *lines, progress = shown.stdout.splitlines()
    assert lines == [
        "actor         2 of    5 ready, 2 ImagePullBackOff, 1 Unschedulable, 4 restarts",
        "hashcount     2 of    2 ready",
        "learner       1 of    1 ready",
        "redis         1 of    1 ready",
        "",
    ]
    assert shown.returncode == 1  # for not everything is ready
    found = re.fullmatch(
        r"run, no-int on MiniGrid-Fetch-5x5-N2-v0: ([\d,]+) of 1,000,000,000 frames \(0%\), ([\d,]+) frames/s, "
        r"1 actors connected, waiting (\d+)% of the time, saved \d+ s ago",
        progress,
    )
    assert found is not None, progress
    assert int(found[1].replace(",", "")) > 0
    assert int(found[2].replace(",", "")) > 0
    assert all("/namespaces/mine/" in path for path in api.asked)
    selectors = [parse_qs(urlsplit(path).query).get("labelSelector") for path in api.asked]
    assert selectors == 3 * [["app.kubernetes.io/part-of=leco"]] + 2 * [None]  # and two port-forwards


def test_a_run_that_is_done_and_all_well_ends_with_zero(tmp_path: Path) -> None:
    with learner(tmp_path / "run", method="no-int", frames=64) as serving, actor(serving.address):
        assert serving.wait() == 0
    well = {"statefulsets": [workload("learner", 1, 1)], "deployments": [], "pods": [pod("learner")]}
    with (
        learner(tmp_path / "run", method="no-int", frames=64).given("--when-done", "wait") as again,
        KubernetesApi(well, ports={9451: again.metrics_port}) as api,
    ):
        again.until_logged("all frames are trained on; waiting")
        shown = ask(api, tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert ": 64 of 64 frames (100%), saved " in shown.stdout


def test_without_a_learner_there_are_only_pods(tmp_path: Path) -> None:
    with KubernetesApi(objects(learner_ready=0)) as api:
        shown = ask(api, tmp_path)
    assert "learner       0 of    1 ready" in shown.stdout
    assert shown.returncode == 1
    assert shown.stderr == ""


def test_what_is_wrong_is_said_in_a_line(tmp_path: Path) -> None:
    nothing: dict[str, list[dict[str, Any]]] = {"statefulsets": [], "deployments": [], "pods": []}
    with KubernetesApi(nothing) as api:
        assert ask(api, tmp_path).stderr == (
            "leco cluster: nothing of leco is in the namespace leco; see deploy/k8s/README.md\n"
        )
    with KubernetesApi(nothing, status=403) as api:
        assert ask(api, tmp_path).stderr == "leco cluster: the cluster answered 403 Forbidden\n"
    away = ask(api, tmp_path)
    assert away.returncode == 1
    assert away.stderr.startswith("leco cluster: the cluster does not answer: ")
    assert "there is no access to a cluster" in ask(api, tmp_path, "--context", "another").stderr


@pytest.mark.parametrize(
    "text", ["clusters: [", "- a list", "a word", "clusters: 5\ncontexts: []\ncurrent-context: a", ""]
)
def test_a_kubeconfig_that_is_none_is_said_in_a_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    asked = subprocess.run(
        [sys.executable, "-m", "leco", "cluster"],
        env=os.environ | {"KUBECONFIG": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 2
    assert asked.stderr.startswith("leco cluster: there is no access to a cluster: ")
    assert asked.stderr.endswith("; look at ~/.kube/config or KUBECONFIG, which kubectl uses\n")
    assert asked.stderr.count("\n") == 1
