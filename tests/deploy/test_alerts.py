"""The alerts: what they ask for exists, each has a runbook entry, fires when it should, and is written once."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support import needs
from support.dashboards import OBSERVABILITY
from support.paths import ROOT
from support.promql import check_expression

if TYPE_CHECKING:
    from pathlib import Path


RULES = OBSERVABILITY / "alerts" / "leco.rules.yaml"
CASES = OBSERVABILITY / "alerts" / "leco.rules.test.yaml"
RUNBOOK = ROOT / "docs" / "operations.md"


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def expectations(name: str) -> list[bool]:
    """Of every check of an alert in the unit tests: whether it fires."""
    cases = yaml.safe_load(CASES.read_text())["tests"]
    return [
        bool(check["exp_alerts"]) for case in cases for check in case["alert_rule_test"] if check["alertname"] == name
    ]


@pytest.mark.parametrize("name", rules())
def test_an_alert_asks_for_what_exists_and_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    rule = rules()[name]
    check_expression(rule["expr"])
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert name.startswith("Leco")
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
    if "increase(" not in rule["expr"]:  # whose window is its patience
        assert re.fullmatch(r"[1-9][0-9]*m", rule["for"])


@pytest.mark.parametrize("name", rules())
def test_an_alert_is_tested_when_it_fires_and_when_it_does_not(name: str) -> None:
    assert set(expectations(name)) == {True, False}


def test_the_runbook_has_an_entry_for_each_alert_and_for_no_other() -> None:
    text = RUNBOOK.read_text()
    entries = re.findall(r"^### (Leco\w+)\n\n(.+)", text, re.MULTILINE)
    assert [name for name, _ in entries] == list(rules())
    assert all(len(first) > 40 for _, first in entries)
    assert set(re.findall(r"\(#(leco\w+)\)", text)) <= {name.lower() for name in rules()}


def test_the_form_for_the_operator_says_the_same() -> None:
    made = yaml.safe_load((RULES.parent / "prometheusrule.yaml").read_text())
    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert made["spec"] == yaml.safe_load(RULES.read_text())


def test_what_is_made_from_other_files_is_up_to_date() -> None:
    command = [sys.executable, str(OBSERVABILITY / "derive.py"), "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_component_has_every_dashboard_by_the_label_that_grafana_looks_for() -> None:
    component = yaml.safe_load((OBSERVABILITY / "kustomization.yaml").read_text())
    assert component["kind"] == "Component"
    assert component["resources"] == ["alerts/prometheusrule.yaml"]
    assert component["generatorOptions"]["labels"] == {"grafana_dashboard": "1"}
    files = {file for each in component["configMapGenerator"] for file in each["files"]}
    assert files == {str(path.relative_to(OBSERVABILITY)) for path in OBSERVABILITY.glob("dashboards/*.json")}


@needs.prometheus.mark
def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    result = subprocess.run(["promtool", "test", "rules", str(CASES)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@needs.prometheus.mark
def test_the_configuration_in_the_documentation_is_one(tmp_path: Path) -> None:
    [config] = re.findall(r"```yaml\n(.+?)```", RUNBOOK.read_text(), re.DOTALL)
    path = tmp_path / "prometheus.yml"
    path.write_text(config.replace("deploy/", f"{ROOT}/deploy/"))
    result = subprocess.run(["promtool", "check", "config", str(path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(rules())} rules found" in result.stdout
