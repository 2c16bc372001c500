"""The dashboards as Grafana's model of one demands, and as a person can read them; what they ask for exists in the code."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from support.dashboards import OBSERVABILITY, Query, boards, queries
from support.promql import MEASURES, check_expression, selectors

SCHEMA_VERSION = 39  # of Grafana 11; newer ones bring it up to date when they read it
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"Bps", "bytes", "none", "ops", "percentunit", "reqps", "s", "short"}
CONTENT = {"gauge", "stat", "table", "timeseries"}
KEYS = {
    *("annotations", "description", "editable", "fiscalYearStartMonth", "graphTooltip", "links", "panels", "refresh"),
    *("schemaVersion", "tags", "templating", "time", "timepicker", "timezone", "title", "uid", "version", "weekStart"),
}
BOARDS = boards()
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"]]
DRAWN = [(name, panel) for name, panel in PANELS if panel["type"] in CONTENT]


def label_of(panel: tuple[str, dict[str, Any]]) -> str:
    return f"{panel[0]}: {panel[1]['title']}"


def test_there_are_three_dashboards() -> None:
    assert set(BOARDS) == {"training", "exploration", "serving"}
    assert len(queries()) > 60


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_has_the_fields_of_its_model(name: str) -> None:
    board = BOARDS[name]
    assert set(board) == KEYS  # without an id, which Grafana gives
    assert board["schemaVersion"] == SCHEMA_VERSION
    assert board["uid"] == f"leco-{name}"
    assert (board["title"], board["tags"]) == (f"leco: {name}", ["leco"])
    assert board["description"].endswith(".")
    [link] = board["links"]
    assert (link["type"], link["tags"], link["includeVars"]) == ("dashboards", ["leco"], True)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_ids_of_their_own_and_places_that_do_not_overlap(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["w"] >= 1
        assert place["h"] >= 1
        assert 0 <= place["x"] <= 24 - place["w"]
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_begins_with_a_text_that_says_what_to_look_for(name: str) -> None:
    row, text, *_ = BOARDS[name]["panels"]
    assert row["type"] == "row"
    assert (text["type"], text["title"], text["options"]["mode"]) == ("text", "What to look for", "markdown")
    assert len(text["options"]["content"]) > 300


@pytest.mark.parametrize("panel", PANELS, ids=label_of)
def test_every_panel_is_of_a_known_kind_and_described(panel: tuple[str, dict[str, Any]]) -> None:
    _, found = panel
    assert found["type"] in CONTENT | {"row", "text"}
    assert found["title"].strip()
    if found["type"] != "row":
        assert found["description"].endswith(".")
        assert len(found["description"]) > 20


@pytest.mark.parametrize("panel", DRAWN, ids=label_of)
def test_every_panel_that_draws_has_a_unit_thresholds_legends_and_the_datasource_of_choice(
    panel: tuple[str, dict[str, Any]],
) -> None:
    _, found = panel
    defaults = found["fieldConfig"]["defaults"]
    units = [
        each["value"]
        for over in found["fieldConfig"]["overrides"]
        for each in over["properties"]
        if each["id"] == "unit"
    ]
    assert {defaults["unit"], *units} <= UNITS
    first, *steps = [step["value"] for step in defaults["thresholds"]["steps"]]
    assert first is None
    assert steps == sorted(steps)
    assert defaults.get("min", 0) <= defaults.get("max", float("inf"))
    assert found["datasource"] == DATASOURCE
    assert found["targets"]
    assert len({target["refId"] for target in found["targets"]}) == len(found["targets"])
    for target in found["targets"]:
        assert target["datasource"] == DATASOURCE
        assert found["type"] == "table" or target["legendFormat"]
    if found["type"] == "timeseries":
        assert found["options"]["legend"]["showLegend"]


@pytest.mark.parametrize("name", BOARDS)
def test_variables_are_described_and_all_that_are_used_are_there(name: str) -> None:
    variables = {variable["name"]: variable for variable in BOARDS[name]["templating"]["list"]}
    datasource = variables["datasource"]
    assert (datasource["type"], datasource["query"]) == ("datasource", "prometheus")
    # The uid of the one that docker compose provisions; where it is another one, Grafana takes the default.
    assert datasource["current"]["value"] == "prometheus"
    asked = {found for query in queries() if query.dashboard == name for found in re.findall(r"\$(\w+)", query.expr)}
    assert asked - {"__rate_interval"} == set(variables) - {"datasource"}
    for variable in variables.values():
        assert variable["label"]
        assert variable["description"].endswith(".")
        if variable["type"] == "query":
            assert (variable["allValue"], variable["current"]["value"]) == (".*", ["$__all"])
            [metric, label] = re.findall(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])[0]
            assert label in MEASURES[metric].labels


@pytest.mark.parametrize("query", queries(), ids=lambda query: f"{query.dashboard}: {query.panel}")
def test_what_a_query_asks_for_exists(query: Query) -> None:
    check_expression(query.filled())


def test_every_metric_of_the_code_is_on_a_dashboard_or_in_an_alert() -> None:
    rules = (OBSERVABILITY / "alerts" / "leco.rules.yaml").read_text()
    shown = {selector.metric for query in queries() for selector in selectors(query.filled())}
    shown |= set(re.findall(r"leco_\w+", rules))
    unseen = {measure.name for measure in MEASURES.values() if not shown & set(measure.series)}
    # What the learner says about all actors is better than what each of them says about itself.
    assert unseen == {"leco_actor_episodes_total", "leco_actor_successes_total"}


@pytest.mark.parametrize(
    ("expr", "complaint"),
    [
        ("sum(leco_learner_frame_total)", "no metric"),
        ('leco_learner_frames_total{sign="positive"}', "has no label"),
        ('leco_learner_trajectories_dropped_total{reason="old"}', "is never"),
        ('leco_hashcount_batches_total{status=~"gap|lots"}', "is never"),
        ('leco_learner_training_statistic{name="entrophy"}', "is never"),
        ('leco_learner_rpc_requests_total{method="Count"}', "is never"),
        ('leco_learner_rpc_requests_total{code!~"OK|CANCELED"}', "is never"),
        ("sum by (reason) (leco_learner_frames_total)", "reason"),
        ("sum(leco_learner_frames_total", "invalid|unclosed|unexpected"),
    ],
)
def test_the_check_of_queries_finds_what_does_not_exist(expr: str, complaint: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=complaint):
        check_expression(expr)
