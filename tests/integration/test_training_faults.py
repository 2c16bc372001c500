"""Training with real processes while what it needs is away or slow: it waits, loses nothing, and makes nothing up."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from contextlib import ExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from leco.checkpoint.state_file import not_finite
from leco.rpc.channel import open_channel
from leco.rpc.learner_client import SERVICE, LearnerClient, Rejected
from leco.types import EpisodeSummary, Trajectory
from support.redis_servers import RedisServer
from support.service_process import ServiceProcess
from support.training_services import SMALL, actor, learner, rows, state_of, until_updates, updates
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from leco.types import TrajectorySpec
    from support.training_services import TrainingProcess

# Four, so that it practically never happens that all of them begin an episode with the same unroll.
ENVIRONMENTS = BATCH = 4
UNROLL: int = SMALL["actors.unroll_length"]
LONGEST_EPISODE = 125  # actions
# What was played and is neither trained on nor dropped, in trajectories: a batch in the queue (the queue has room for one, as by
# default), an unroll that is counted or sent, and the one that was played meanwhile.
MOST_UNDER_WAY = BATCH + 2 * ENVIRONMENTS
MOST_MEMORY_BYTES = 32 << 20  # by which an actor may grow while it waits; 1 to 11 MiB were seen
SUSPENDED_SECONDS = 2.5


def leco_learner(run: Path) -> TrainingProcess:
    """A learner that trains for ever, and more slowly than an actor can play."""
    sizes: dict[str, Any] = {
        "actors__num_envs": ENVIRONMENTS,
        "learner__batch_size": BATCH,
        "learner__queue_capacity": BATCH,
    }
    return learner(run, method="leco", frames=1_000_000_000, **sizes)


def played(one: TrainingProcess) -> int:
    """Trajectories that an actor has played."""
    return int(one.metrics()["leco_actor_frames_total"]) // UNROLL


def uncounted(one: TrainingProcess) -> int:
    """Trajectories that an actor has marked as uncounted."""
    return int(one.metrics()["leco_actor_uncounted_trajectories_total"])


def taken(service: TrainingProcess) -> int:
    """Trajectories that a learner trains on."""
    return int(service.metrics()["leco_learner_trajectories_taken_total"])


def dropped(service: TrainingProcess) -> dict[str, int]:
    """Trajectories that a learner does not train on, by the reason; without those of which there are none."""
    name = "leco_learner_trajectories_dropped_total "
    found = {key.removeprefix(name): int(x) for key, x in service.metrics().items() if key.startswith(name)}
    return {reason: number for reason, number in found.items() if number}


def under_way(one: TrainingProcess, service: TrainingProcess) -> int:
    """At most so many trajectories were played and have not come to the trainer. Exact if nothing moves."""
    mine = played(one)  # first: what arrives between the two questions makes the difference less, never more
    return mine - taken(service) - sum(dropped(service).values())


def account(one: TrainingProcess, service: TrainingProcess) -> None:
    """Ends the actor, which sends what it has; then every trajectory that it played was trained on or dropped, once."""
    one.terminate()
    assert one.wait() == 0
    assert not [line for line in one.logged() if line["event"].startswith("ended before")]
    assert "Traceback" not in "\n".join(one.lines)
    mine = one.logged()[-1]["frames"] // UNROLL

    def arrived() -> int:
        found = service.metrics()
        queued = int(found["leco_learner_queue_trajectories"])
        return taken(service) + sum(dropped(service).values()) + (queued if queued < BATCH else 0)

    until(lambda: arrived() == mine)
    until(lambda: updates(service) * BATCH == taken(service))
    assert service.metrics()["leco_learner_trajectories_refused_total"] == 0
    assert service.running


@contextlib.contextmanager
def suspended(process: TrainingProcess) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def test_without_a_store_only_what_was_counted_trains_and_with_an_empty_one_training_goes_on(tmp_path: Path) -> None:
    with RedisServer() as store, ServiceProcess("--store", store.url) as hashcount, ExitStack() as stack:
        service = stack.enter_context(leco_learner(tmp_path / "run"))
        one = stack.enter_context(actor(service.address, hashcount.address))
        until_updates(service, 3)
        assert uncounted(one) == 0
        memory = one.memory_bytes()

        store.kill()
        before = played(one)  # none of those that come later can have been counted

        def gave_up() -> bool:
            found = one.metrics()  # of one page the frames are read first
            waits = found["leco_actor_frames_total"] <= (before + 2 * ENVIRONMENTS) * UNROLL
            return bool(found["leco_actor_uncounted_trajectories_total"]) or not waits

        until(gave_up)
        assert uncounted(one) >= ENVIRONMENTS, "it went on without having given up"
        assert re.match("UNAVAILABLE|DEADLINE_EXCEEDED|the store", one.until_logged("counting failed")["first"])
        # What is left of the lost episodes is played and dropped, until a new one begins, which is waited for again.
        until(lambda: dropped(service).get("uncounted") == uncounted(one))
        assert taken(service) <= before
        assert under_way(one, service) <= MOST_UNDER_WAY
        assert one.memory_bytes() <= memory + MOST_MEMORY_BYTES

        trained = updates(service)
        store.start()
        assert store.client().dbsize() == 0
        until_updates(service, trained + 10)
        assert store.client().dbsize() > 0
        assert one.running
        assert hashcount.running
        account(one, service)
        lost = sum(line["batches"] for line in one.logged() if line["event"].startswith("counting failed"))
        assert dropped(service).keys() == {"uncounted"}
        # An episode of which a part was not counted is left out to its end, but no more than that.
        assert ENVIRONMENTS < dropped(service)["uncounted"] <= lost * (LONGEST_EPISODE // UNROLL + 2)


def test_an_actor_waits_for_a_learner_that_is_slow_and_nothing_is_lost_or_trained_on_twice(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with ServiceProcess() as hashcount, ExitStack() as stack:
        service = stack.enter_context(leco_learner(run))
        one = stack.enter_context(actor(service.address, hashcount.address))
        until_updates(service, 5)
        memory, before, away = one.memory_bytes(), one.metrics(), 0.0
        for _ in range(3):
            begin = time.monotonic()
            with suspended(service):
                at_once = played(one)
                until(lambda: time.monotonic() - begin > SUSPENDED_SECONDS)  # noqa: B023  # called at once
                assert played(one) <= at_once + 2 * ENVIRONMENTS, "it plays ahead of a learner that takes nothing"
                away += time.monotonic() - begin
            made = updates(service)
            while updates(service) < made + 6:  # slower than the actor, but not stopped
                assert under_way(one, service) <= MOST_UNDER_WAY
        after = one.metrics()
        waited = {
            activity: after[f"leco_actor_time_seconds_total {activity}"]
            - before[f"leco_actor_time_seconds_total {activity}"]
            for activity in ("waiting", "fetching", "pushing")
        }
        assert waited["waiting"] + waited["fetching"] > away / 2  # the thread that acts
        assert waited["pushing"] + waited["fetching"] > away / 2  # the one that sends, or nothing was to be sent
        assert one.memory_bytes() <= memory + MOST_MEMORY_BYTES

        assert one.running
        account(one, service)
        assert dropped(service) == {}
        found = service.metrics()
        assert found["leco_learner_policy_lag_versions_bucket 4.0"] == found["leco_learner_policy_lag_versions_count"]
        assert [int(row["updates"]) for row in rows(run)] == list(range(1, updates(service) + 1))


def invented(spec: TrajectorySpec, played_with: int, *, reward: float = 0.0, episode_return: float = 0.0) -> Trajectory:
    """What no environment gave: an episode that ends with the unroll."""
    steps, shape = spec.unroll_length, spec.observation_shape
    return Trajectory(
        number=1,
        parameters_version=played_with,
        previous_action=-1,
        previous_reward=0.0,
        observation=np.zeros((steps + 1, *shape), np.uint8),
        start=np.array([True, *[False] * (steps - 1), True]),
        terminal_observation=np.zeros((1, *shape), np.uint8),
        action=np.zeros(steps, np.int32),
        reward=np.full(steps, reward, np.float32),
        behaviour_logits=np.zeros((steps, spec.action_count), np.float32),
        core_state=np.zeros(spec.core_state_shape, np.float32),
        count=None,
        episodes=(EpisodeSummary(episode_return, steps, success=True),),
    )


def test_absurd_rewards_and_returns_are_refused_and_training_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with learner(run, method="no-int", frames=1_000_000_000) as service, actor(service.address) as one:
        until_updates(service, 3)
        for n, absurd in enumerate(({"reward": 1e12}, {"reward": -3e38}, {"episode_return": 3e38}), start=1):
            with (
                open_channel(service.address, service=SERVICE) as channel,
                LearnerClient(
                    channel, actor_name="hostile", software_version=version("leco"), max_unacknowledged=1
                ) as client,
            ):
                specification, newest = client.join(give_up_after=PATIENCE)
                client.push(invented(specification.trajectories, newest, **absurd))
                with pytest.raises(
                    Rejected, match=r"INVALID_ARGUMENT: trajectory 1: .* expected -10 to 10, the run's rew"
                ):
                    client.drain(PATIENCE)
            until(lambda: service.metrics()["leco_learner_trajectories_refused_total"] == n)  # noqa: B023
        until_updates(service, updates(service) + 5)
        assert one.running
        began = [line for line in service.logged() if line["event"] == "a stream began" and line["actor"] == "hostile"]
        assert [line["peer"].startswith("ipv4:127.0.0.1:") for line in began] == 3 * [True]
        service.terminate()
        assert service.wait() == 0
    newest_state = state_of(run, int(max(path.stem for path in (run / "checkpoints").glob("[0-9]*.safetensors"))))
    assert not_finite(newest_state) == ""


def test_a_run_with_damaged_side_files_goes_on_with_versions_above_all_others(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with learner(run, method="no-int", frames=1_000_000_000) as service:
        with actor(service.address):
            until_updates(service, 12)
        published = service.metrics()["leco_learner_parameters_version"]
        service.kill()
    (run / "checkpoints" / "versions").write_text(str(2**70))
    (run / "versions.json").write_bytes(b"[{")
    (run / "metrics.csv").write_bytes(b"\xff\x00")
    (run / "checkpoints" / "000000999.safetensors").mkdir()
    with learner(run, method="no-int", frames=1_000_000_000) as service, actor(service.address) as one:
        assert service.until_logged("serving")["frames"] == 10 * 2 * UNROLL
        assert service.metrics()["leco_learner_parameters_version"] > published
        until_updates(service, 3)
        assert one.running
        named = "\n".join(line["event"] for line in service.logged() if line["level"] == "error")
        for damaged in ("a folder", "versions is", "versions.json is", "metrics.csv is"):
            assert damaged in named
