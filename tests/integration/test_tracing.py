"""One unroll through three real processes, as a real receiver of traces sees it; and what tracing does when it cannot."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from support.service_process import ServiceProcess
from support.trace_receiver import ReceivedSpan, TraceReceiver
from support.training_services import LECO, TrainingProcess, actor, learner, until_updates
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FOR_EVER = 1_000_000_000  # frames
ENVIRONMENTS = 2
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
# Everything that happens to an unroll, in order; trajectories are accepted one by one.
WHOLE = {
    ("leco-actor", "unroll"): 1,
    ("leco-actor", "play"): 1,
    ("leco-actor", "code"): 1,
    ("leco-actor", "count"): 1,
    ("leco-hashcount", "Count"): 1,
    ("leco-hashcount", "store"): 1,
    ("leco-actor", "send"): 1,
    ("leco-learner", "accept"): ENVIRONMENTS,
}


@pytest.fixture(autouse=True, scope="module")
def _no_settings_of_this_machine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("OTEL_")]:
            patch.delenv(name)
        yield


@contextmanager
def receiving(**env: str) -> Iterator[TraceReceiver]:
    """A receiver, and an environment that names it to the services that are started in it."""
    with TraceReceiver() as receiver, pytest.MonkeyPatch.context() as patch:
        for name, value in ({ENDPOINT: receiver.address, "OTEL_BSP_SCHEDULE_DELAY": "200"} | env).items():
            patch.setenv(name, value)
        yield receiver


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> list[ReceivedSpan]:
    """Spans of a run: at least one whole unroll, and one update with all that it is linked with."""
    with receiving() as receiver, ExitStack() as stack:
        run_all(stack, tmp_path_factory.mktemp("traced"))
        until(lambda: any(map(whole, traces(receiver.spans).values())))
        until(lambda: bool(linked_updates(receiver.spans)))
        return receiver.spans


def traces(spans: list[ReceivedSpan]) -> dict[str, list[ReceivedSpan]]:
    found: dict[str, list[ReceivedSpan]] = {}
    for span in spans:
        found.setdefault(span.trace, []).append(span)
    return found


def linked_updates(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
    """Updates with links, all of which were received too."""
    sends = {(span.trace, span.id) for span in spans if span.name == "send"}
    updates = [span for span in spans if span.name == "train" and span.links]
    return [span for span in updates if {(span.trace, span.parent), *span.links} <= sends]


def names(spans: list[ReceivedSpan]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for span in spans:
        found[span.service, span.name] = found.get((span.service, span.name), 0) + 1
    return found


def whole(spans: list[ReceivedSpan]) -> bool:
    return WHOLE.items() <= names(spans).items()


def one(spans: list[ReceivedSpan], name: str) -> ReceivedSpan:
    [found] = [span for span in spans if span.name == name]
    return found


def run_all(stack: ExitStack, folder: Path) -> tuple[TrainingProcess, TrainingProcess]:
    """A learner whose batches are of two unrolls, and an actor."""
    hashcount = stack.enter_context(ServiceProcess())
    training = stack.enter_context(learner(folder / "run", frames=FOR_EVER, learner__batch_size=2 * ENVIRONMENTS))
    playing = stack.enter_context(actor(training.address, hashcount.address))
    return training, playing


def test_a_trace_of_an_unroll_spans_three_processes(received: list[ReceivedSpan]) -> None:
    spans = next(spans for spans in traces(received).values() if whole(spans))
    unroll = one(spans, "unroll")
    assert unroll.parent == ""
    for name in ("play", "code", "count", "send"):
        assert one(spans, name).parent == unroll.id
    assert one(spans, "Count").parent == one(spans, "count").id
    assert one(spans, "store").parent == one(spans, "Count").id
    assert {span.parent for span in spans if span.name == "accept"} == {one(spans, "send").id}
    kinds = {span.name: span.kind for span in spans}
    assert (kinds["count"], kinds["Count"]) == ("CLIENT", "SERVER")
    assert (kinds["send"], kinds["accept"]) == ("PRODUCER", "CONSUMER")
    assert all(0 <= span.seconds <= unroll.seconds for span in spans if span.service == "leco-actor")


def test_an_update_belongs_to_the_traces_of_all_trajectories_in_it(received: list[ReceivedSpan]) -> None:
    update = linked_updates(received)[0]
    assert update.service == "leco-learner"
    [other] = update.links  # a batch is two unrolls of this actor
    assert other[0] != update.trace


def test_only_actors_begin_traces(received: list[ReceivedSpan]) -> None:
    assert {(span.service, span.name) for span in received if not span.parent} == {("leco-actor", "unroll")}


def test_the_environment_samples_and_names(tmp_path: Path) -> None:
    sampling = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    with receiving(OTEL_SERVICE_NAME="mine", **sampling) as receiver, ExitStack() as stack:
        training, playing = run_all(stack, tmp_path)
        until_updates(training, 20)
        until(lambda: any(span.name == "train" for span in receiver.spans))
        spans = receiver.spans
        played = int(playing.metrics()["leco_actor_frames_total"]) // (8 * ENVIRONMENTS)
    assert {span.service for span in spans} == {"mine"}
    assert played >= 40
    assert 0 < len(traces(spans)) < 0.6 * played


def test_a_collector_that_is_away_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{port}")
    with ExitStack() as stack:
        training, playing = run_all(stack, tmp_path)
        until_updates(training, 20)
        for process in (playing, training):
            process.terminate()
            assert process.wait() == 0


def leco(*arguments: str, blocked: bool = False, **env: str) -> tuple[int, str]:
    """What the command says; `blocked`: where OpenTelemetry is not installed."""
    command: list[str] = [*LECO, *arguments]
    if blocked:
        program = "import sys; sys.modules['opentelemetry'] = None; from leco.cli.main import main; main()"
        command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    return done.returncode, done.stderr.strip()


NOT_INSTALLED = "is set, but what sends traces is not installed: pip install 'leco[tracing]', or unset it"
OTHER_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/protobuf', expected grpc: traces are sent by no other protocol"


@pytest.mark.parametrize(
    ("service", "env", "complaint"),
    [
        *((service, {}, f"{ENDPOINT} {NOT_INSTALLED}") for service in ("hashcount", "learner", "actor")),
        ("hashcount", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, OTHER_PROTOCOL),
    ],
)
def test_tracing_that_cannot_be_had_is_said_at_once(
    service: str, env: Mapping[str, str], complaint: str, tmp_path: Path
) -> None:
    flags = ["--metrics-port=off"]
    if service == "learner":
        (tmp_path / "experiment.toml").write_text('task = "Empty-5x5"\n')
        flags += [f"--config={tmp_path / 'experiment.toml'}", f"--run-dir={tmp_path / 'run'}"]
    assert leco(service, *flags, blocked=True, **{ENDPOINT: "http://127.0.0.1:4317"}, **env) == (
        2 if service == "actor" else 1,  # an actor's mistakes are final: another start would not mend them
        f"leco {service}: {complaint}",
    )


def test_while_it_is_off_nothing_of_it_is_imported() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
import services.actor.__main__, services.hashcount.__main__, services.learner.__main__
from leco.telemetry import tracing
tracing.start_tracing("actor")()
with tracing.begin("unroll") as journey, tracing.span("play", parent=journey.traceparent, links=["x"], steps=1):
    assert (journey.traceparent, tracing.traceparent(), tracing.calling()) == ("", "", None)
assert "leco.telemetry.spans" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "OTEL_SDK_DISABLED": "true"})
