"""Every overlay with every set of components: it builds, Kubernetes would take it, and what refers to something finds it."""

from __future__ import annotations

import functools
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from support import needs
from support.crd_schemas import SCHEMAS
from support.kustomized import (
    COMPONENTS,
    K8S,
    OVERLAYS,
    Built,
    Object,
    build,
    combinations,
    included,
    plain_name,
    quantity,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = needs.kustomize.mark
every_combination = pytest.mark.parametrize("built", list(combinations()), ids=str)
# The oldest with everything that is used (gRPC probes, how a budget treats unhealthy pods), and the newest there is.
VERSIONS = ("1.27", "1.37")
MADE_BY_USERS = {"redis-password"}
QUEUE = "kueue.x-k8s.io/queue-name"
OF_THE_CLUSTER = ("Namespace", "PriorityClass")


@every_combination
def test_kubernetes_would_take_every_object(built: Built) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in built.objects]
    assert len(names) == len(set(names))
    for each in built.objects:
        validate(json.dumps(each, sort_keys=True))


@functools.cache
def validate(text: str) -> None:
    """Strictly: a field that is not known is an error. Most objects are the same in most combinations."""
    each = json.loads(text)
    if each["kind"] in SCHEMAS:
        jsonschema.validate(each, SCHEMAS[each["kind"]], cls=jsonschema.Draft202012Validator)
    else:
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)


@every_combination
def test_whatever_is_referred_to_is_there(built: Built) -> None:
    secrets = {each["spec"]["secretName"] for each in built.kinds("Certificate")} | MADE_BY_USERS
    maps = {each["metadata"]["name"] for each in built.kinds("ConfigMap")}
    claims = {each["metadata"]["name"] for each in built.kinds("PersistentVolumeClaim")}
    accounts = {each["metadata"]["name"] for each in built.kinds("ServiceAccount")}
    for workload in built.workloads():
        pod = workload["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] in accounts
        volumes = {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])}
        for volume in pod["volumes"]:
            volumes.add(volume["name"])
            if "secret" in volume and not volume["secret"].get("optional"):
                assert volume["secret"]["secretName"] in secrets
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        for container in pod["containers"]:
            assert {each["name"] for each in container["volumeMounts"]} == volumes
            paths = sorted(each["mountPath"] for each in container["volumeMounts"])
            # A volume in a read-only volume has nowhere to be mounted.
            assert not [(a, b) for a in paths for b in paths if b.startswith(f"{a}/")]
            for source in container.get("envFrom", []):
                assert source["configMapRef"]["name"] in maps
    issuers = {each["metadata"]["name"] for each in built.kinds("Issuer")}
    assert {each["spec"]["issuerRef"]["name"] for each in built.kinds("Certificate")} <= issuers


@every_combination
def test_every_selector_finds_the_pods_it_means_and_no_others(built: Built) -> None:
    pods = {each["metadata"]["name"]: each["spec"]["template"] for each in built.workloads()}
    for workload in built.kinds("Deployment", "StatefulSet"):
        name = workload["metadata"]["name"]
        assert selected(workload["spec"]["selector"]["matchLabels"], pods) == [name]
        for constraint in pods[name]["spec"].get("topologySpreadConstraints", []):
            assert selected(constraint["labelSelector"]["matchLabels"], pods) == [name]
    for service in built.kinds("Service"):
        [name] = selected(service["spec"]["selector"], pods)
        assert name == service["metadata"]["name"]
        ports = {each["name"]: each["containerPort"] for each in pods[name]["spec"]["containers"][0]["ports"]}
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]]
    for budget in built.kinds("PodDisruptionBudget"):
        assert selected(budget["spec"]["selector"]["matchLabels"], pods) == [budget["metadata"]["name"]]
    for scaled in built.kinds("ScaledObject"):
        assert built.object("Deployment", scaled["spec"]["scaleTargetRef"]["name"])
    for monitor in built.kinds("PodMonitor"):
        found = {name for name in selected(monitor["spec"]["selector"]["matchLabels"], pods) if has_metrics(pods[name])}
        assert found == {"actor", "hashcount", "learner"}
        label = monitor["spec"]["jobLabel"]
        assert {pods[name]["metadata"]["labels"][label] for name in found} == found  # the jobs of dashboards and alerts


def selected(labels: dict[str, str], pods: dict[str, Object]) -> list[str]:
    return [name for name, pod in pods.items() if labels.items() <= pod["metadata"]["labels"].items()]


def has_metrics(pod: Object) -> bool:
    return any(port["name"] == "metrics" for each in pod["spec"]["containers"] for port in each.get("ports", []))


@every_combination
def test_no_pod_may_do_more_than_the_restricted_standard_allows(built: Built) -> None:
    namespace = built.object("Namespace", "leco")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for each in built.kinds("ServiceAccount"):
        assert each["automountServiceAccountToken"] is False
    for workload in built.workloads():
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] != "default"
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        kinds = {key for volume in pod["volumes"] for key in volume} - {"name"}
        assert kinds <= {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert {"cpu", "memory", "ephemeral-storage"} <= requests.keys()
            assert {"memory", "ephemeral-storage"} <= limits.keys()


@every_combination
def test_everything_is_in_one_namespace_and_secrets_are_never_written_down(built: Built) -> None:
    for each in built.objects:
        assert each["kind"] in OF_THE_CLUSTER or each["metadata"]["namespace"] == "leco", each["metadata"]
    assert built.kinds("Secret") == []
    [password] = {
        volume["secret"]["secretName"]
        for name in ("redis", "hashcount")
        for volume in built.pod(name)["volumes"]
        if volume["name"] == "redis-password"
    }
    assert password in MADE_BY_USERS


@pytest.mark.parametrize("built", [each for each in combinations() if "tls" not in each.components], ids=str)
def test_an_apply_waits_for_no_secret_that_somebody_has_to_make_first(built: Built) -> None:
    for each in built.workloads():
        for volume in each["spec"]["template"]["spec"]["volumes"]:
            assert "secret" not in volume or volume["secret"]["optional"] is True


@every_combination
def test_a_pod_that_is_never_ready_is_replaced_when_its_manifest_is_corrected(built: Built) -> None:
    for each in built.kinds("StatefulSet"):  # with OrderedReady Kubernetes waits for it to be ready first
        assert each["spec"]["podManagementPolicy"] == "Parallel"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_plain_overlay_needs_no_operator(overlay: str) -> None:
    assert not [
        each["kind"]
        for each in Built(overlay, ()).objects
        if "." in each["apiVersion"].partition("/")[0].replace(".k8s.io", "")
    ]


def test_the_example_has_every_component_and_the_users_own_registry_and_run() -> None:
    objects = build(K8S / "example")
    for each in objects:
        validate(json.dumps(each, sort_keys=True))
    everything = Built("minigrid", tuple(sorted(set(COMPONENTS) - included("minigrid"))))
    assert {(each["kind"], each["metadata"]["name"]) for each in objects} == {
        (each["kind"], each["metadata"]["name"]) for each in everything.objects
    }
    containers = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["containers"][0]
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    ours = [containers[name]["image"] for name in ("actor", "hashcount", "learner")]
    assert all(re.fullmatch(r"registry\.example\.com/leco-[a-z-]+:\d+\.\d+\.\d+", image) for image in ours), ours
    assert {"name": "LECO_LEARNER_RUN_DIR", "value": "/runs/second"} in containers["learner"]["env"]


def test_the_example_says_for_every_image_where_it_is() -> None:
    def images(objects: list[Object]) -> set[str]:
        pods = [each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})]
        return {container["image"].partition(":")[0] for pod in pods for container in pod["containers"]}

    listed = {each["name"] for each in yaml.safe_load((K8S / "example" / "kustomization.yaml").read_text())["images"]}
    used = set().union(*(images(each.objects) for each in combinations()))
    assert {"leco-actor", "leco-actor-dmlab", "leco-learner", "leco-learner-cuda", "leco-hashcount"} < used
    assert used == listed
    assert all("/" in each for each in images(build(K8S / "example")))


def test_what_the_example_has_in_comments_works_when_it_is_none(tmp_path: Path) -> None:
    text = (K8S / "example" / "kustomization.yaml").read_text()
    folder = tmp_path / "k8s" / "mine"
    shutil.copytree(K8S, tmp_path / "k8s")
    shutil.copytree(K8S.parent / "observability", tmp_path / "observability")
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(re.sub(r"^  #([- ] )", r"  \1", text, flags=re.MULTILINE))
    objects = {(each["kind"], each["metadata"]["name"]): each for each in build(folder)}
    for each in objects.values():
        validate(json.dumps(each, sort_keys=True))
        if each["kind"] == "ServiceAccount":
            assert each["imagePullSecrets"] == [{"name": "registry"}]
        if each["kind"] in ("Deployment", "StatefulSet"):
            assert each["metadata"]["labels"][QUEUE] == "NAME"
    learner = objects["StatefulSet", "learner"]["spec"]
    assert learner["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert [each["key"] for each in learner["template"]["spec"]["tolerations"]] == ["nvidia.com/gpu", "sku"]
    [claim] = learner["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "NAME"
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Gi"


@every_combination
def test_kueue_counts_every_pod_or_none(built: Built) -> None:
    queues = {
        each["metadata"]["labels"].get(QUEUE) for each in built.workloads() if each["metadata"]["name"] != "redis-setup"
    }
    assert queues == ({"leco"} if "kueue" in built.components else {None})


def test_the_pod_that_copies_runs_mounts_the_learners_volume_and_keeps_to_the_standard() -> None:
    [pod] = build(K8S / "copy")
    validate(json.dumps(pod))
    built = Built("minigrid", ())
    learner = built.object("StatefulSet", "learner")["spec"]
    [template] = learner["volumeClaimTemplates"]
    [volume] = pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == f"{template['metadata']['name']}-learner-0"
    [container] = pod["spec"]["containers"]
    assert container["volumeMounts"] == [
        each for each in built.container("learner")["volumeMounts"] if each["name"] == template["metadata"]["name"]
    ]
    assert container["image"] == built.container("redis")["image"]
    assert container["securityContext"] == built.container("learner")["securityContext"]
    assert (
        pod["spec"]["securityContext"] == built.pod("learner")["securityContext"]
    )  # so that it may read what is there
    assert pod["metadata"]["namespace"] == "leco"
    # No Service, budget or policy takes it for one of the parts.
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] not in {
        plain_name(each) for each in built.workloads()
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_may_be_asked_for_wherever_a_cluster_answers_them(overlay: str) -> None:
    asked: dict[str, set[int]] = {}
    for rule in Built(overlay, ()).object("NetworkPolicy", "names")["spec"]["egress"]:
        assert {each["protocol"] for each in rule["ports"]} == {"UDP", "TCP"}
        for peer in rule["to"]:
            labels = peer.get("namespaceSelector", {}).get("matchLabels", {})
            where = labels.get("kubernetes.io/metadata.name") or peer["ipBlock"]["cidr"].removesuffix("/32")
            asked[where] = {each["port"] for each in rule["ports"]}
    assert asked == {
        "kube-system": {53},
        "169.254.20.10": {53},  # the cache on each node
        "169.254.169.254": {53},  # GKE with Cloud DNS
        "172.20.0.10": {53},  # EKS Auto Mode
        "10.100.0.10": {53},
        "openshift-dns": {5353},
    }


@every_combination
def test_actors_make_room_for_what_they_wait_for(built: Built) -> None:
    values = {each["metadata"]["name"]: each["value"] for each in built.kinds("PriorityClass")}
    found = {plain_name(each): values[built.pod(plain_name(each))["priorityClassName"]] for each in built.workloads()}
    below = {"actor", "level-warm-up"}
    assert max(found[each] for each in below & found.keys()) < min(found[each] for each in found.keys() - below)
    # Nobody else's pods, which have 0 unless somebody gave them more, make room; and new nodes are made for actors too.
    assert all(-10 <= value <= 0 for value in values.values())


def requested(built: Built, *, jobs: bool = False) -> tuple[float, float]:
    """CPUs and GiB that all pods ask for together, with or without those of jobs."""
    cpu = memory = 0.0
    for each in built.workloads():
        count = each["spec"].get("parallelism", 1) if each["kind"] == "Job" else each["spec"]["replicas"]
        if each["kind"] != "Job" or jobs:
            asked = built.container(plain_name(each))["resources"]["requests"]
            cpu += count * float(quantity(asked["cpu"]))
            memory += count * float(quantity(asked["memory"])) / 2**30
    return cpu, memory


def test_minigrid_fits_on_a_node_of_4_processors_beside_the_cluster_itself() -> None:
    cpu, memory = requested(Built("minigrid", ()))
    assert cpu <= 4 - 0.95  # what kind's own pods ask for on a node that is the whole cluster
    assert memory <= 6


def test_the_readme_says_what_all_pods_ask_for_together() -> None:
    said = re.findall(r"^\| ([\w ]+) \| ([\d.]+) \| ([\d.]+) \|$", (K8S / "README.md").read_text(), re.MULTILINE)
    found = {
        "minigrid": requested(Built("minigrid", ())),
        "dmlab": requested(Built("dmlab", ())),
        "dmlab while levels are compiled": requested(Built("dmlab", ()), jobs=True),
    }
    assert {name: (float(cpu), float(memory)) for name, cpu, memory in said} == {
        name: pytest.approx(both) for name, both in found.items()
    }


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_builds_on_the_base_alone(component: str) -> None:
    for each in Built("base", (component,)).objects:
        validate(json.dumps(each, sort_keys=True))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_order_of_components_does_not_matter(overlay: str) -> None:
    """But for the GPUs: many of them come after one, and say so."""
    others = sorted(set(COMPONENTS) - included(overlay))
    back_again = [name for name in reversed(others) if name != "multi-gpu"]
    back_again += [name for name in others if name == "multi-gpu"]
    forth, back = (Built(overlay, tuple(order)) for order in (others, back_again))
    assert {as_set(each) for each in forth.objects} == {as_set(each) for each in back.objects}


def as_set(each: Object) -> str:
    """Text that does not depend on the order of lists whose items have names."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(inner) for key, inner in value.items()}
        if isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value):
            return sorted((ordered(item) for item in value), key=lambda item: str(item["name"]))
        return [ordered(item) for item in value] if isinstance(value, list) else value

    return json.dumps(ordered(each), sort_keys=True)


def network(built: Built) -> Iterator[tuple[str, str, int]]:
    """Who may speak to whom, on which port: what both sides' policies allow."""
    pods = {each["metadata"]["name"]: each["spec"]["template"] for each in built.workloads()}
    allowed: dict[str, set[tuple[str, str, int]]] = {"ingress": set(), "egress": set()}
    for policy in built.kinds("NetworkPolicy"):
        mine = selected(policy["spec"]["podSelector"].get("matchLabels", {}), pods)
        for direction, side in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(direction, []):
                peers = {
                    name
                    for peer in rule[side]
                    if "podSelector" in peer
                    for name in selected(peer["podSelector"]["matchLabels"], pods)
                }
                for port in rule["ports"]:
                    for one in mine:
                        for other in peers:
                            pair = (other, one) if direction == "ingress" else (one, other)
                            allowed[direction].add((*pair, port["port"]))
    yield from allowed["ingress"] & allowed["egress"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_policies_let_through_just_what_the_services_say_to_each_other(overlay: str) -> None:
    paths = {("actor", "learner", 50051), ("actor", "hashcount", 50061), ("hashcount", "redis", 6379)}
    # Redis is one pod here, and would not speak to itself.
    assert set(network(Built(overlay, ()))) - {("redis", "redis", 6379), ("redis", "redis", 16379)} == paths
    of_cluster = {("redis-setup", "redis", 6379), ("redis", "redis", 6379), ("redis", "redis", 16379)}
    assert set(network(Built(overlay, ("redis-cluster",)))) == paths | of_cluster
    [deny] = [each for each in Built(overlay, ()).kinds("NetworkPolicy") if each["metadata"]["name"] == "default-deny"]
    assert deny["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_the_readmes_overlay_gives_actors_a_module_of_ones_own(tmp_path: Path) -> None:
    [overlay] = re.findall(
        r'```yaml title="deploy/k8s/rooms/kustomization.yaml"\n(.*?)^```$',
        (K8S / "README.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    for part in ("base", "components", "minigrid"):
        shutil.copytree(K8S / part, tmp_path / part)
    folder = tmp_path / "rooms"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(overlay)
    (folder / "my_rooms.py").write_text("import gymnasium\n")
    (folder / "experiment.toml").write_text('task = "my_rooms:MyRooms-v0"\n')
    objects = build(folder)
    for each in objects:
        validate(json.dumps(each, sort_keys=True))
    found = {(each["kind"], re.sub(r"-[a-z0-9]{10}$", "", each["metadata"]["name"])): each for each in objects}
    assert found["ConfigMap", "modules"]["data"] == {"my_rooms.py": "import gymnasium\n"}
    assert found["ConfigMap", "experiment"]["data"] == {"experiment.toml": 'task = "my_rooms:MyRooms-v0"\n'}
    actor = found["Deployment", "actor"]["spec"]["template"]["spec"]
    [container] = actor["containers"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "modules"]
    assert (mount["mountPath"], mount["readOnly"]) == (container["workingDir"], True)
    [volume] = [each for each in actor["volumes"] if each["name"] == "modules"]
    assert volume["configMap"]["name"] == found["ConfigMap", "modules"]["metadata"]["name"]  # with its hash
    learner = found["StatefulSet", "learner"]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "LECO_LEARNER_RUN_DIR", "value": "/runs/rooms"} in learner["env"]
