"""What `docker compose up` is told, as far as it can be known without an engine; tests/e2e does it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from leco.config.toml import parse
from leco.rpc import hashcount_client, learner_client
from services.actor.config import read_settings as actor_settings
from services.hashcount.config import read_settings as hashcount_settings
from services.learner.config import read_settings as learner_settings
from support import dashboards
from support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

COMPOSE_TEXT = (ROOT / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
ENV = dict(line.split("=", 1) for line in (ROOT / ".env").read_text().splitlines() if line and not line.startswith("#"))
FOLDER = ROOT / "deploy" / "compose"
OURS = ("actor", "hashcount", "learner")
DOCKERFILES = {name: (ROOT / "services" / name / "Dockerfile").read_text() for name in OURS}


def test_every_setting_is_in_the_env_file_and_is_used() -> None:
    assert {*re.findall(r"\$\{(\w+)\}", COMPOSE_TEXT), "COMPOSE_PROFILES"} == set(ENV)  # Compose itself reads the last
    assert "$" not in re.sub(r"\$\{\w+\}", "", COMPOSE_TEXT), "a default would be a setting outside of .env"


def test_every_container_is_bounded_and_restricted() -> None:
    for name, service in COMPOSE["services"].items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"].startswith("${"), name
        assert {"max-size", "max-file"} <= service["logging"]["options"].keys(), name
        assert "healthcheck" in service or name in OURS, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert not service.get("privileged"), name
    assert all(each.count(":") == 1 and "latest" not in each for key, each in ENV.items() if key.endswith("_IMAGE"))


def variables(service: str) -> dict[str, str]:
    """What the image and compose.yaml put into the environment of a service."""
    [block] = re.findall(r"^ENV (PATH=.*?[^\\])$", DOCKERFILES[service], re.MULTILINE | re.DOTALL)
    image = dict(pair.split("=", 1) for pair in block.replace("\\\n", " ").split())
    given = {key: re.sub(r"\$\{(\w+)\}", lambda found: ENV[found[1]], value) for key, value in environment(service)}
    return {key: value for key, value in (image | given).items() if key.startswith("LECO_")}


def environment(service: str) -> Any:
    return COMPOSE["services"][service]["environment"].items()


@pytest.mark.parametrize("service", OURS)
def test_a_service_understands_its_environment(
    service: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = variables(service)
    if service == "learner":  # where Compose mounts the experiment
        [mounted] = COMPOSE["services"]["learner"]["configs"]
        assert given["LECO_LEARNER_CONFIG"] == mounted["target"]
        given["LECO_LEARNER_CONFIG"] = str(tmp_path / "experiment.toml")
        (tmp_path / "experiment.toml").touch()
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    read = {"actor": actor_settings, "hashcount": hashcount_settings, "learner": learner_settings}[service]
    settings: Any = read([])  # a value that it cannot read would end this
    with pytest.raises(SystemExit):
        read(["--help"])
    flags = set(re.findall(r"--([a-z-]+)", capsys.readouterr().out))
    known = {f"LECO_{service.upper()}_" + flag.replace("-", "_").upper() for flag in flags}
    assert {key for key in given if not key.startswith("LECO_HEALTH_")} <= known
    exposed = {int(port) for port in re.findall(r"^EXPOSE (.*)$", DOCKERFILES[service], re.MULTILINE)[0].split()}
    if service == "actor":
        assert settings.metrics_host == "0.0.0.0"
        assert given["LECO_HEALTH_ADDRESS"] == f"http://127.0.0.1:{settings.metrics_port}/metrics"
        assert exposed == {settings.metrics_port}
    else:
        host, port = settings.listen.split(":")
        assert (host, given["LECO_HEALTH_ADDRESS"]) == ("0.0.0.0", f"127.0.0.1:{port}")
        assert exposed == {int(port), settings.metrics_port}
        assert (
            given["LECO_HEALTH_SERVICE"]
            == {"hashcount": hashcount_client.SERVICE, "learner": learner_client.SERVICE}[service]
        )


def test_actors_are_told_where_the_others_listen() -> None:
    ports = {name: variables(name)[f"LECO_{name.upper()}_LISTEN"].split(":")[1] for name in ("hashcount", "learner")}
    told = variables("actor")
    assert told["LECO_ACTOR_LEARNER"] == f"learner:{ports['learner']}"
    assert told["LECO_ACTOR_HASHCOUNT"] == f"dns:///hashcount:{ports['hashcount']}"


def test_a_drain_ends_before_the_engine_loses_patience() -> None:
    for name, read in (("actor", actor_settings), ("hashcount", hashcount_settings)):
        assert int(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s")) > read([]).drain_seconds
    learner = learner_settings(["--run-dir", "x"])
    assert int(COMPOSE["services"]["learner"]["stop_grace_period"].removesuffix("s")) > 2 * learner.drain_seconds


def test_prometheus_asks_each_service_where_it_serves_metrics() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert set(jobs) == {*OURS, "prometheus"}
    for name, read in (
        ("actor", actor_settings([])),
        ("hashcount", hashcount_settings([])),
        ("learner", learner_settings(["--run-dir", "x"])),
    ):
        [discovery] = jobs[name]["dns_sd_configs"]  # every address behind the name, so every replica
        assert (discovery["names"], discovery["type"], discovery["port"]) == ([name], "A", read.metrics_port)
    mounts = mounted("prometheus")
    [rules] = config["rule_files"]
    inside, _, file = rules.rpartition("/")
    assert (ROOT / mounts[inside] / file).is_file()
    assert (ROOT / mounts["/etc/prometheus/prometheus.yml"]) == FOLDER / "prometheus.yml"


def mounted(service: str) -> dict[str, str]:
    """Read-only mounts of the repository: where, and what."""
    parts = [each.split(":") for each in COMPOSE["services"][service]["volumes"]]
    return {part[1]: part[0] for part in parts if part[2:] == ["ro"]}


def test_grafana_is_given_the_data_source_and_the_dashboards() -> None:
    grafana, mounts = COMPOSE["services"]["grafana"], mounted("grafana")
    provisioning = ROOT / mounts["/etc/grafana/provisioning"]
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert (source["uid"], source["type"], source["url"]) == ("prometheus", "prometheus", "http://prometheus:9090")
    scraping = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraping
    [provider] = yaml.safe_load((provisioning / "dashboards" / "leco.yaml").read_text())["providers"]
    inside = provider["options"]["path"]
    assert (ROOT / mounts[inside]).resolve() == dashboards.DASHBOARDS
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in {f"{inside}/{name}.json" for name in dashboards.boards()}


def test_the_actors_together_play_what_one_of_leco_train_does() -> None:
    ours = parse((ROOT / ENV["LECO_EXPERIMENT"]).read_text())
    alone = parse(f'preset = "laptop"\ntask = "{ours.task}"\nframes = {ours.frames}')
    actors = int(ENV["LECO_ACTORS"])
    assert (
        ours.actors.num_envs * actors == alone.actors.num_envs == ours.learner.queue_capacity == ours.learner.batch_size
    )
    assert replace(ours, actors=alone.actors) == alone


def test_images_are_of_this_version_and_without_what_they_do_not_need() -> None:
    assert ENV["LECO_VERSION"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, text in DOCKERFILES.items():
        assert COMPOSE["services"][name]["image"] == f"leco-{name}:${{LECO_VERSION}}"
        assert f"*extras['{name}'], *extras['tracing']" in text
        last = text.rpartition("\nFROM minigrid\n" if name == "actor" else "\nFROM ")[0 if name == "actor" else 2]
        assert "USER 10001:10001" in last
        assert f'ENTRYPOINT ["leco", "{name}"]' in last  # no shell between the engine's signals and the service
        assert "HEALTHCHECK" in last


def test_actors_are_started_in_the_folder_of_ones_own_modules() -> None:
    """Where they look last: as a part of PYTHONPATH a folder called leco in it would stand for leco."""
    assert mounted("actor") == {COMPOSE["services"]["actor"]["working_dir"]: "${LECO_MODULES}"}
    assert "PYTHONPATH" not in dict(environment("actor"))
    assert [each.name for each in (ROOT / ENV["LECO_MODULES"]).iterdir()] == ["README.md"]


def test_nothing_is_pulled_that_is_built_or_not_wanted() -> None:
    """Compose pulls before it builds, and pulls a service that is scaled to 0."""
    services = COMPOSE["services"]
    assert {name for name, each in services.items() if each.get("pull_policy") == "never"} == set(OURS)
    assert {name: each["profiles"] for name, each in services.items() if "profiles" in each} == {"grafana": ["grafana"]}
    assert ENV["COMPOSE_PROFILES"] == "grafana"  # `docker compose up` has it


def test_the_variant_with_deepmind_lab_has_what_its_module_imports_loads_and_runs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [re.split("[<>=]", each)[0] for each in extras["dmlab"]] == ["dm-env", "setuptools"]
    stage = DOCKERFILES["actor"].partition("AS dmlab-python\n")[2]
    assert "['optional-dependencies']['dmlab']" in stage
    [installed] = re.findall(r"apt-get install -y --no-install-recommends (.*) \\", stage)
    assert {"libosmesa6", "libsdl2-2.0-0", "zip"} <= set(installed.split())


def test_the_large_part_of_two_images_is_one() -> None:
    """Equal lines are built once and kept once; an edit of one of them alone would cost every user a gigabyte."""
    [actor, learner] = [
        re.findall(r"^FROM scratch AS wheels\n.*?(?=^FROM torch )", DOCKERFILES[name], re.MULTILINE | re.DOTALL)
        for name in ("actor", "learner")
    ]
    shared = [[line for line in part.splitlines() if not line.startswith("#")] for part in (actor[0], learner[0])]
    assert shared[0] == shared[1]
    assert DOCKERFILES["actor"].count("slim-bookworm AS minigrid\nCOPY --from=torch /opt/leco /opt/leco\n") == 1
    assert DOCKERFILES["learner"].count("FROM python:3.11-slim-bookworm\nCOPY --from=torch /opt/leco /opt/leco\n") == 1


def test_an_image_is_built_where_every_folder_is_that_the_wheel_takes() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for name, text in DOCKERFILES.items():
        for folder in (*wheel["packages"], *wheel["force-include"]):
            assert f"COPY {folder} {folder}\n" in text or f"RUN mkdir {folder}\n" in text, f"{name}: {folder}"
