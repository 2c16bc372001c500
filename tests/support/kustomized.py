"""What `kubectl apply -k` would apply: overlays of deploy/k8s with any components, built by kustomize, as Python values."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from support.paths import ROOT
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

K8S = ROOT / "deploy" / "k8s"
OVERLAYS = ("minigrid", "dmlab")
COMPONENTS = tuple(sorted(each.name for each in (K8S / "components").iterdir() if each.is_dir()))
COMMAND = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["kustomize", "build"]

Object = dict[str, Any]


def build(folder: Path) -> list[Object]:
    """The objects of a folder with a kustomization.

    Raises:
        RuntimeError: what kustomize says of one that cannot be built, or warns of.
    """
    done = subprocess.run([*COMMAND, str(folder)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(done.stderr)
    return list(yaml.safe_load_all(done.stdout))


@dataclass(frozen=True)
class Built:
    """An overlay with components, as a user writes it down: their own kustomization that names both."""

    base: str
    components: tuple[str, ...]

    def __str__(self) -> str:
        return "+".join((self.base, *self.components))

    @property
    def objects(self) -> list[Object]:
        return _objects(self)

    def kinds(self, *kinds: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] in kinds]

    def object(self, kind: str, name: str) -> Object:
        [found] = [each for each in self.kinds(kind) if name in (each["metadata"]["name"], plain_name(each))]
        return found

    def workloads(self) -> list[Object]:
        return self.kinds("Deployment", "StatefulSet", "Job")

    def pod(self, name: str) -> Object:
        """The pod's specification of a workload."""
        [found] = [each for each in self.workloads() if plain_name(each) == name]
        specification: Object = found["spec"]["template"]["spec"]
        return specification

    def container(self, name: str) -> Object:
        [container] = self.pod(name)["containers"]
        found: Object = container
        return found

    def variables(self, name: str) -> dict[str, str]:
        """The environment variables of a workload's container, as the kubelet makes them."""
        container = self.container(name)
        values: dict[str, str] = {}
        for source in container.get("envFrom", []):
            values |= self.object("ConfigMap", source["configMapRef"]["name"])["data"]
        for each in container.get("env", []):
            if "value" in each:
                values[each["name"]] = expanded(each["value"], values)
            elif "configMapKeyRef" in each["valueFrom"]:
                source = each["valueFrom"]["configMapKeyRef"]
                values[each["name"]] = self.object("ConfigMap", source["name"])["data"][source["key"]]
            else:
                values[each["name"]] = from_pod(each["valueFrom"], container, f"{name}-0")
        return values

    def config(self, prefix: str) -> dict[str, str]:
        """The data of the ConfigMap whose generated name begins so."""
        [found] = [each for each in self.kinds("ConfigMap") if each["metadata"]["name"].startswith(f"{prefix}-")]
        data: dict[str, str] = found["data"]
        return data


def plain_name(each: Object) -> str:
    """The name of an object, for a job without the part that kustomize made of its ConfigMap's content."""
    name = str(each["metadata"]["name"])
    return re.sub(r"-[a-z0-9]{10}$", "", name) if each["kind"] == "Job" else name


def expanded(text: str, values: Mapping[str, str]) -> str:
    """$(NAME) as the kubelet replaces it: by variables that stand before; what is not known stays as it is."""
    return re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), text)


def quantity(text: str) -> Fraction:
    """An amount as Kubernetes writes it: 2, 500m, 16Gi."""
    number, unit = re.fullmatch(r"([\d.]+)(m|Ki|Mi|Gi)?", str(text)).groups()  # type: ignore[union-attr]
    scale = {
        None: Fraction(1),
        "m": Fraction(1, 1000),
        "Ki": Fraction(2**10),
        "Mi": Fraction(2**20),
        "Gi": Fraction(2**30),
    }
    return Fraction(number) * scale[unit]


def from_pod(source: Object, container: Object, pod: str) -> str:
    """The value of a variable that names a field of its pod."""
    if "fieldRef" in source:
        assert source["fieldRef"]["fieldPath"] == "metadata.name"
        return pod
    field = source["resourceFieldRef"]
    assert field["containerName"] == container["name"]
    kind, _, resource = field["resource"].partition(".")
    assert field["divisor"] == "1"
    return str(math.ceil(quantity(container["resources"][kind][resource])))  # as Kubernetes rounds


def included(overlay: str) -> set[str]:
    """The components that an overlay has of its own."""
    text = yaml.safe_load((K8S / overlay / "kustomization.yaml").read_text())
    return {Path(each).name for each in text.get("components", [])}


def combinations() -> Iterator[Built]:
    """Every overlay with every set of components that it does not have of its own; several GPUs only with one, or with all."""
    for overlay in OVERLAYS:
        others = sorted(set(COMPONENTS) - included(overlay) - {"multi-gpu"})
        for size in range(len(others) + 1):
            for chosen in itertools.combinations(others, size):
                yield Built(overlay, chosen)
        for with_gpu in ({"gpu"} - included(overlay), others):
            yield Built(overlay, (*sorted(with_gpu), "multi-gpu"))


@functools.cache
def _objects(built: Built) -> list[Object]:
    """Relative paths, as in a folder of the user's, because kustomize takes no other."""
    with tempfile.TemporaryDirectory(prefix="leco-kustomize-") as name:
        folder = Path(name).resolve()
        kustomization: Object = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(K8S / built.base, folder)],
            "components": [os.path.relpath(K8S / "components" / each, folder) for each in built.components],
        }
        if built.base == "base":  # which needs what an overlay would add
            kustomization |= {"namespace": "leco", "configMapGenerator": [{"name": "experiment", "literals": ["a=b"]}]}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return build(folder)
