"""Every metric of every service, as its own code registers it.

docs/metrics.md is made from it, and dashboards and alerts are held against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from leco.rpc.interceptor import RpcMetrics
from services.actor.metrics import ActorMetrics
from services.hashcount.metrics import HashCountMetrics
from services.learner.metrics import LearnerMetrics

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

SERVICES = ("actor", "learner", "hashcount")


class Measure(NamedTuple):
    """A metric.

    name      as Prometheus shows it: counters with their _total
    kind      counter, gauge or histogram
    labels    names of its labels, each with the values that are there from the start, if there are any
    meaning   its help text
    """

    name: str
    kind: str
    labels: dict[str, tuple[str, ...]]
    meaning: str

    @property
    def series(self) -> tuple[str, ...]:
        """The names by which a query can ask for it."""
        parts = ("bucket", "sum", "count")
        return tuple(f"{self.name}_{part}" for part in parts) if self.kind == "histogram" else (self.name,)


class _Registry(CollectorRegistry):
    """Remembers in which order metrics came."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[MetricWrapperBase] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        if isinstance(collector, MetricWrapperBase):
            self.found.append(collector)


def catalogue(service: str) -> list[Measure]:
    """The metrics of one of SERVICES, in the order of its code."""
    registry = _Registry()
    if service == "actor":
        ActorMetrics(registry)
    else:
        (LearnerMetrics if service == "learner" else HashCountMetrics)(registry)
        RpcMetrics(registry, service)
    return [_measure(collector) for collector in registry.found]


def _measure(collector: MetricWrapperBase) -> Measure:
    [family] = collector.describe()
    [samples] = [each.samples for each in collector.collect()]
    names: tuple[str, ...] = collector._labelnames  # noqa: SLF001  # no public way tells labels that have no values yet
    labels = {name: tuple(dict.fromkeys(sample.labels[name] for sample in samples)) for name in names}
    suffix = "_total" if family.type == "counter" else ""
    return Measure(family.name + suffix, family.type, labels, family.documentation)
