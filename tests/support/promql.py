"""What PromQL expressions ask for, and whether the code has it: metrics, their labels, and the values of these."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import grpc
import promql_parser

from leco.cli.catalogue import SERVICES, catalogue
from leco.telemetry.logging import new_registry
from leco.v1 import hash_count_pb2, learner_pb2
from services.learner.metrics_logger import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable


class Condition(NamedTuple):
    """On a label: `op` is one of = != =~ !~."""

    label: str
    op: str
    value: str


class Selector(NamedTuple):
    """A metric, and the conditions on its labels."""

    metric: str
    conditions: tuple[Condition, ...]
    text: str


FROM_PROMETHEUS = ("instance", "job")
MEASURES = {series: measure for service in SERVICES for measure in catalogue(service) for series in measure.series}
OF_ANY_PROCESS = {sample.name for family in new_registry().collect() for sample in family.samples}
METHODS = {
    "hashcount": set(hash_count_pb2.DESCRIPTOR.services_by_name["HashCountService"].methods_by_name),
    "learner": set(learner_pb2.DESCRIPTOR.services_by_name["LearnerService"].methods_by_name),
}
OPS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}


def selectors(expr: str) -> list[Selector]:
    """Every selector in an expression; ValueError if it is none."""
    found: list[Selector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            visit(node.vector_selector)
        if isinstance(node, promql_parser.VectorSelector):
            conditions = tuple(Condition(each.name, OPS[str(each.op)], each.value) for each in node.matchers.matchers)
            found.append(Selector(node.name or "", conditions, str(node)))

    promql_parser.walk(promql_parser.parse(expr), visit)
    return list(dict.fromkeys(found))


def grouped_by(expr: str) -> set[str]:
    """Labels that aggregations in an expression keep."""
    found: set[str] = set()

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            labels: Iterable[str] = node.modifier.labels
            found.update(labels)

    promql_parser.walk(promql_parser.parse(expr), visit)
    return found


def check_expression(expr: str) -> None:
    """Fails unless all metrics, labels and values in an expression can come from the code."""
    known = set(FROM_PROMETHEUS)
    for selector in selectors(expr):
        if selector.metric in {"up", *OF_ANY_PROCESS}:
            continue
        assert selector.metric in MEASURES, f"no metric is called {selector.metric}"
        labels = MEASURES[selector.metric].labels
        known |= {*labels, "le"}
        for condition in selector.conditions:
            if condition.label not in FROM_PROMETHEUS:
                assert condition.label in labels, f"{selector.metric} has no label {condition.label}"
                _check_value(selector, condition)
    assert grouped_by(expr) <= known, f"{grouped_by(expr) - known}"


def _check_value(selector: Selector, condition: Condition) -> None:
    values = _possible(selector.metric, condition.label)
    named = condition.value.split("|") if "~" in condition.op else [condition.value]
    for name in named:
        assert not values or name in {*values, ".*"}, f"{condition.label} of {selector.metric} is never {name}"


def _possible(metric: str, label: str) -> set[str]:
    """The values that a label can have; none if they are not known beforehand."""
    if metric == "leco_learner_training_statistic":
        return {*COLUMNS, "mean_count", "largest_count"}
    rpc = re.match(r"leco_(\w+)_rpc_", metric)
    if rpc:
        return METHODS[rpc[1]] if label == "method" else {code.name for code in grpc.StatusCode}
    return set(MEASURES[metric].labels[label])
