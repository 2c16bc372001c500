"""How many actors the component autoscaling asks for: its query on series of a learner, evaluated by Prometheus' own promtool."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from services.learner.metrics import LearnerMetrics
from support import needs
from support.kustomized import K8S, OVERLAYS, Built

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs.kustomize.mark
LABELS = '{namespace="leco",job="learner"'


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_apply_says_nothing_of_how_many_actors_there_are(overlay: str) -> None:
    before, after = (Built(overlay, chosen).object("Deployment", "actor")["spec"] for chosen in ((), ("autoscaling",)))
    assert "replicas" not in after
    assert after == {key: value for key, value in before.items() if key != "replicas"}
    # Nor does the first one, where a number was applied before: kubectl takes away what its note of the last apply has.
    text = (K8S / "README.md").read_text().partition("### autoscaling\n")[2].partition("\n### ")[0]
    assert "kubectl -n leco annotate deployment actor kubectl.kubernetes.io/last-applied-configuration-\n" in text


def query() -> str:
    scaled = Built("dmlab", ("autoscaling",)).object("ScaledObject", "actor")
    [trigger] = scaled["spec"]["triggers"]
    return str(trigger["metadata"]["query"])


@needs.prometheus.mark
@pytest.mark.parametrize(
    ("actors", "busy", "done", "wanted"),
    [
        (100, 0.425, False, 200.0),  # busy for half of what it should be: twice as many
        (100, 0.85, False, 100.0),  # as it should be
        (100, 1.0, False, 85.0),  # more than it needs: fewer, step by step
        (100, 0.0, False, 425.0),  # starved altogether: not without a bound
        (0, 0.0, False, 0.0),  # nobody is there yet: the least number
        (100, 0.5, True, 0.0),  # nothing is left to do: the least number too
    ],
)
def test_the_wanted_number_of_actors(actors: int, busy: float, done: bool, wanted: float, tmp_path: Path) -> None:
    series = {
        f"leco_learner_open_streams{LABELS}}}": f"{actors}x20",
        f'leco_learner_time_seconds_total{LABELS},activity="updating"}}': f"0+{busy * 0.8 * 15}x20",
        f'leco_learner_time_seconds_total{LABELS},activity="publishing"}}': f"0+{busy * 0.2 * 15}x20",
        # It stands still while the learner waits for its first trajectory, and must not matter.
        f'leco_learner_time_seconds_total{LABELS},activity="waiting"}}': "0x20",
        f"leco_learner_run_frames{LABELS}}}": f"{200 if done else 100}x20",
        f"leco_learner_run_target_frames{LABELS}}}": "200x20",
        # Another run in the same cluster.
        'leco_learner_open_streams{namespace="other",job="learner"}': "7x20",
    }
    sample = {"labels": "{}", "value": wanted}
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": f"round({query()}, 0.001)", "eval_time": "5m", "exp_samples": [sample]}],
    }
    file = tmp_path / "case.yaml"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "15s", "tests": [case]}))
    done_with = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done_with.returncode == 0, done_with.stdout + done_with.stderr


@needs.prometheus.mark
def test_without_a_learner_there_is_no_answer_so_that_keda_falls_back(tmp_path: Path) -> None:
    case = {
        "interval": "15s",
        "input_series": [{"series": 'up{namespace="leco"}', "values": "1x20"}],
        "promql_expr_test": [{"expr": query(), "eval_time": "5m", "exp_samples": []}],
    }
    file = tmp_path / "case.yaml"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "15s", "tests": [case]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_query_names_metrics_and_labels_that_the_learner_has() -> None:
    registry = CollectorRegistry()
    LearnerMetrics(registry)
    samples = {sample.name: sample.labels for family in registry.collect() for sample in family.samples}
    named = re.findall(r"(leco_\w+)\{([^}]*)\}", query())
    assert {name for name, _ in named} <= samples.keys()
    for name, labels in named:
        own = set(re.findall(r"(\w+)!?=", labels)) - {"namespace"}  # which Prometheus adds
        assert own <= samples[name].keys()
