"""A real Prometheus scrapes a running system: every query of the dashboards has an answer, and alerts notice what breaks."""

from __future__ import annotations

import math
import re
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest
import yaml

from support import needs
from support.dashboards import OBSERVABILITY, Query, boards, queries
from support.prometheus_server import Prometheus, Sample
from support.promql import selectors
from support.redis_servers import RedisServer
from support.service_process import ServiceProcess
from support.training_services import actor, learner, until_updates
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs.prometheus.mark
RULES = OBSERVABILITY / "alerts" / "leco.rules.yaml"
FOR_EVER = 1_000_000_000  # frames
# Panels on which nothing but zeros is well.
ZERO = {
    "Errors per second",
    "Failed calls",
    "Failed round trips to Redis",
    "Uncounted",
    "Uncounted and lost",
}


class System(NamedTuple):
    redis: RedisServer
    prometheus: Prometheus


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer("--maxmemory", "64mb"))
        hashcount = stack.enter_context(ServiceProcess("--store", redis.url))
        training = stack.enter_context(
            learner(tmp_path_factory.mktemp("run") / "run", frames=FOR_EVER, learner__log_every=10**6)
        )
        playing = stack.enter_context(actor(training.address, hashcount.address))
        services = {"hashcount": hashcount, "learner": training, "actor": playing}
        targets = {job: [f"127.0.0.1:{service.metrics_port}"] for job, service in services.items()}
        prometheus = stack.enter_context(Prometheus(targets, RULES))
        until_updates(training, 20)
        # Rates are over what was scraped; an episode must have ended within it, too. A test says which query has no answer.
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not all(map(finite, answers(prometheus))):
            time.sleep(1)
        yield System(redis, prometheus)


def filled(query: Query) -> str:
    return query.filled(interval="5m", window="10m")  # as long as these tests may take


def answers(prometheus: Prometheus) -> list[list[Sample]]:
    return [prometheus.query(filled(query)) for query in queries()]


def finite(samples: list[Sample]) -> bool:
    return bool(samples) and all(math.isfinite(sample.value) for sample in samples)


@pytest.mark.parametrize("query", queries(), ids=lambda query: f"{query.dashboard}: {query.panel}")
def test_every_query_of_the_dashboards_has_an_answer(system: System, query: Query) -> None:
    samples = system.prometheus.query(filled(query))
    assert finite(samples)
    if query.panel in ZERO:
        assert {sample.value for sample in samples} == {0}


def test_the_labels_in_legends_are_there(system: System) -> None:
    for board in boards().values():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                query = Query("", panel["title"], target["expr"])
                for sample in system.prometheus.query(filled(query)):
                    assert wanted <= set(sample.labels), (panel["title"], target["legendFormat"])


def test_what_is_trained_is_what_the_dashboards_show(system: System) -> None:
    [frames] = [query for query in queries() if query.panel == "Done"]
    [sample] = system.prometheus.query(filled(frames))
    assert sample.labels == {"run": "run", "task": "MiniGrid-Fetch-5x5-N2-v0", "method": "leco"}
    [shares] = [query for query in queries() if (query.dashboard, query.panel) == ("serving", "What the trainer does")]
    spent = {sample.labels["activity"]: sample.value for sample in system.prometheus.query(filled(shares))}
    assert set(spent) == {"waiting", "updating", "publishing"}
    assert sum(spent.values()) == pytest.approx(1)


def test_everything_that_alerts_look_at_is_there(system: System) -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        for selector in selectors(rule["expr"]):
            if 'code!~"OK' not in selector.text:  # calls that failed, of which there are none yet
                assert system.prometheus.query(selector.text), (rule["alert"], selector.text)


def test_nothing_is_wrong_until_something_is(system: System) -> None:
    """The last test here: it takes the store away."""

    def pending() -> set[str]:
        return {alert["labels"]["alertname"] for alert in system.prometheus.alerts()}

    until(lambda: pending() <= {"LecoLearnerStarved"})  # which says only that this machine is busy
    system.redis.kill()
    until(lambda: "LecoStoreDown" in pending())
