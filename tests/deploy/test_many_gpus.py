"""A learner on several GPUs: of one node by the component multi-gpu, of two by the example multi-node."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
from torch.distributed import run as torchrun

from leco.config.toml import parse
from services.learner.config import read_settings
from support import needs
from support.crd_schemas import JOB_SET
from support.kustomized import K8S, Built, Object, build
from support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs.kustomize.mark
VERSIONS = ("1.27", "1.37")  # as in test_builds.py


def variables(container: Object) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def read(values: dict[str, str], folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """What the learner makes of them, with a file in the experiment's place."""
    experiment = folder / "experiment.toml"
    experiment.write_text('task = "Empty-5x5"\n')
    for name, value in (values | {"LECO_LEARNER_CONFIG": str(experiment)}).items():
        patch.setenv(name, value)
    return read_settings([])


def has_shared_memory(pod: Object) -> bool:
    [volume] = [each for each in pod["volumes"] if each.get("emptyDir", {}).get("medium") == "Memory"]
    return {"name": volume["name"], "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("built", [Built("dmlab", ("multi-gpu",)), Built("minigrid", ("gpu", "multi-gpu"))], ids=str)
def test_a_learner_on_many_gpus_asks_for_one_for_each_rank(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = built.container("learner")
    found = read(variables(container), tmp_path, monkeypatch)
    assert found.ranks == 4
    assert found.device == "cuda"
    for kind in ("requests", "limits"):
        assert container["resources"][kind]["nvidia.com/gpu"] == str(found.ranks)
    assert found.ranks * found.threads <= int(container["resources"]["requests"]["cpu"])
    assert has_shared_memory(built.pod("learner"))
    assert parse(built.config("experiment")["experiment.toml"]).learner.batch_size >= found.ranks


def test_the_learner_of_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = {(each["kind"], each["metadata"]["name"]): each for each in build(K8S / "multi-node")}
    learner = objects.pop(("JobSet", "learner"))
    jsonschema.validate(learner, JOB_SET, cls=jsonschema.Draft202012Validator)
    for each in objects.values():
        for kubernetes in VERSIONS:
            kubernetes_validate.validate(each, kubernetes, strict=True)
    assert ("StatefulSet", "learner") not in objects
    single = Built("dmlab", ()).object("StatefulSet", "learner")
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    ranks = {}
    for job in learner["spec"]["replicatedJobs"]:
        template = job["template"]["spec"]
        alone = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": template}
        for kubernetes in VERSIONS:
            kubernetes_validate.validate(alone, kubernetes, strict=True)
        pod = template["template"]["spec"]
        [container] = pod["containers"]
        assert container["image"] == f"leco-learner-cuda:{version[1]}"
        assert pod["securityContext"] == single["spec"]["template"]["spec"]["securityContext"]
        assert container["securityContext"] == single["spec"]["template"]["spec"]["containers"][0]["securityContext"]
        assert has_shared_memory(pod)
        [shell, flag, command] = container["command"]
        assert (shell, flag) == ("sh", "-c")
        told = torchrun.parse_args(shlex.split(command.replace("$((JOB_COMPLETION_INDEX + 1))", "1"))[2:])  # type: ignore[no-untyped-call]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == told.nproc_per_node
        assert pod["terminationGracePeriodSeconds"] > told.shutdown_timeout
        assert [told.training_script, *told.training_script_args] == ["leco", "learner"]
        network, metadata = learner["spec"]["network"], learner["metadata"]
        assert told.master_addr == f"{metadata['name']}-first-0-0.{network['subdomain']}"
        ranks[job["name"]] = told.node_rank
        found = read(variables(container), tmp_path, monkeypatch)
        assert found.device == "cuda"
        assert found.ranks == 1, "torchrun starts them, not the learner"
        nodes = int(told.nnodes)
    assert ranks == {"first": 0, "others": 1}
    assert nodes == sum(each["template"]["spec"]["completions"] for each in learner["spec"]["replicatedJobs"])
    selector = objects["Service", "learner"]["spec"]["selector"]
    assert selector["jobset.sigs.k8s.io/replicatedjob-name"] == "first"
    assert ("Service", learner["spec"]["network"]["subdomain"]) not in objects, "JobSet makes it"
    pods = learner["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["labels"]
    policy = objects["NetworkPolicy", "learner-ranks"]["spec"]
    assert policy["podSelector"]["matchLabels"] == pods
    size = parse(Built("dmlab", ()).config("experiment")["experiment.toml"]).learner.batch_size
    assert size >= nodes * int(told.nproc_per_node)
