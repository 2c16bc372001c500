"""What runs in a Kubernetes cluster, and how far it is: `leco cluster`."""

from __future__ import annotations

import argparse
import collections
import http.client
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from services.flags import Parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.samples import Sample

DESCRIPTION = """\
Shows the pods of leco in a Kubernetes cluster, what is wrong with those that are not ready, and how far training is. It uses the
same access as kubectl. Ends with code 0 if everything is ready, and with code 1 if not."""
SELECTOR = "app.kubernetes.io/part-of=leco"
COMPONENT = "app.kubernetes.io/component"
LEARNER_POD, METRICS_PORT = "learner-0", 9451
WATCH_SECONDS = 5.0  # over which frames per second are measured
TIMEOUT_SECONDS = 10
SPENT, WAITING = "leco_learner_time_seconds_total", "leco_learner_time_seconds_total waiting"


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment or StatefulSet. `problems` are what keeps pods from being ready, with how many have it."""

    name: str
    wanted: int
    ready: int
    restarts: int
    problems: dict[str, int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Asks the cluster once."""
    parser = Parser("leco cluster", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespace", "-n", default="leco", help="where leco is (default: leco)")
    parser.add_argument("--context", help="which cluster of the kubeconfig (default: the current one)")
    given = parser.parse_args(arguments)
    import kubernetes  # noqa: PLC0415  # `leco cluster --help` does not need it
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        kubernetes.config.load_kube_config(context=given.context)
    except Exception as error:  # noqa: BLE001  # a malformed file raises whatever its readers do
        why = " ".join(str(error).split()) or type(error).__name__
        parser.error(
            f"there is no access to a cluster: {why}; look at ~/.kube/config or KUBECONFIG, which kubectl uses"
        )
    try:
        found = workloads(given.namespace)
    except kubernetes.client.ApiException as error:
        sys.exit(f"leco cluster: the cluster answered {error.status} {error.reason}")
    except HTTPError as error:
        sys.exit(f"leco cluster: the cluster does not answer: {error}")
    if not found:
        sys.exit(f"leco cluster: nothing of leco is in the namespace {given.namespace}; see deploy/k8s/README.md")
    sys.stdout.write("".join(f"{line(each)}\n" for each in found))
    ready = all(each.ready >= each.wanted for each in found)
    if any(each.name == "learner" and each.ready for each in found):
        try:
            sys.stdout.write(f"\n{progress(given.namespace)}\n")
        except (OSError, http.client.HTTPException, kubernetes.client.ApiException) as error:
            sys.exit(f"leco cluster: the learner's metrics cannot be read: {error}")
    sys.exit(0 if ready else 1)


def workloads(namespace: str) -> list[Workload]:
    """The Deployments and StatefulSets of leco, and what is wrong with their pods."""
    from kubernetes import client  # noqa: PLC0415

    options: dict[str, Any] = {"label_selector": SELECTOR, "_request_timeout": TIMEOUT_SECONDS}
    apps: Any = client.AppsV1Api()  # whose annotations allow for objects without a name
    core: Any = client.CoreV1Api()
    sets = [
        *apps.list_namespaced_stateful_set(namespace, **options).items,
        *apps.list_namespaced_deployment(namespace, **options).items,
    ]
    pods: dict[str, list[Any]] = collections.defaultdict(list)
    for pod in core.list_namespaced_pod(namespace, **options).items:
        pods[pod.metadata.labels.get(COMPONENT)].append(pod)
    return [
        Workload(
            name=each.metadata.name,
            wanted=each.spec.replicas,
            ready=each.status.ready_replicas or 0,
            restarts=sum(_restarts(pod) for pod in pods[each.metadata.name]),
            problems=collections.Counter(filter(None, map(_problem, pods[each.metadata.name]))),
        )
        for each in sorted(sets, key=lambda each: str(each.metadata.name))
    ]


def _restarts(pod: Any) -> int:
    return sum(each.restart_count for each in pod.status.container_statuses or [])


def _problem(pod: Any) -> str | None:
    """Why a pod is not ready, in Kubernetes' own word; None if it is."""
    conditions = {each.type: each for each in pod.status.conditions or []}
    if (ready := conditions.get("Ready")) and ready.status == "True":
        return None
    for status in pod.status.container_statuses or []:
        if status.state.waiting is not None:
            return str(status.state.waiting.reason)
    if (scheduled := conditions.get("PodScheduled")) and scheduled.status == "False":
        return str(scheduled.reason)
    return "Terminating" if pod.metadata.deletion_timestamp else "NotReady"


def line(workload: Workload) -> str:
    """One workload for people."""
    words = [f"{workload.name:10} {workload.ready:4} of {workload.wanted:4} ready"]
    words += [f"{number} {problem}" for problem, number in sorted(workload.problems.items())]
    if workload.restarts:
        words.append(f"{workload.restarts} restart{'s' if workload.restarts > 1 else ''}")
    return ", ".join(words)


def progress(namespace: str) -> str:
    """How far the learner is, from its metrics a few seconds apart."""
    begin, before = time.monotonic(), _numbers(_page(namespace))
    done = before["leco_learner_run_frames"] >= before["leco_learner_run_target_frames"]
    if not done:
        time.sleep(WATCH_SECONDS)
    page = _page(namespace)
    seconds, now = time.monotonic() - begin, _numbers(page)
    frames, target = now["leco_learner_run_frames"], now["leco_learner_run_target_frames"]
    rate = (frames - before["leco_learner_run_frames"]) / seconds
    words = [f"{_run(page)}: {frames:,.0f} of {target:,.0f} frames ({frames / target:.0%})"]
    if not done:
        busy = sum(now[each] - before[each] for each in now if each.startswith(SPENT))
        waited = now[WAITING] - before[WAITING]
        words += [f"{rate:,.0f} frames/s", f"{now['leco_learner_open_streams']:.0f} actors connected"]
        words += [f"waiting {waited / busy:.0%} of the time"] if busy else ["waiting all the time"]
    words.append(f"saved {time.time() - now['leco_learner_checkpoint_timestamp_seconds']:,.0f} s ago")
    return ", ".join(words)


def _samples(page: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(page):
        yield from family.samples


def _run(page: str) -> str:
    """What is trained."""
    [labels] = [sample.labels for sample in _samples(page) if sample.name == "leco_learner_run_info"]
    return "{run}, {method} on {task}".format(**labels)


def _numbers(page: str) -> dict[str, float]:
    """Every value by its name and the values of its labels."""
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in _samples(page)}


def _page(namespace: str) -> str:
    """The learner's metrics, through a port-forward: the only way in that no network policy closes."""
    from kubernetes import client, stream  # noqa: PLC0415

    forward = stream.portforward(
        client.CoreV1Api().connect_get_namespaced_pod_portforward, LEARNER_POD, namespace, ports=str(METRICS_PORT)
    )
    connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_SECONDS)
    connection.sock = forward.socket(METRICS_PORT)
    connection.sock.settimeout(TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/metrics", headers={"Connection": "close"})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


if __name__ == "__main__":
    main()
