"""Training with real processes: to the end, stopped and resumed, and with any of its parts killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from leco.config.toml import parse
from support.redis_servers import RedisServer
from support.service_process import ServiceProcess
from support.training_services import LECO, SMALL, TASK, actor, learner, patient_actor, rows, state_of, until_updates
from support.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leco.learning.state import TrainingState
    from support.training_services import TrainingProcess

FOR_EVER = 1_000_000_000  # frames
FRAMES_OF_UPDATE = SMALL["actors.unroll_length"] * SMALL["learner.batch_size"]


def checkpoints(run: Path) -> list[int]:
    """After how many updates those were saved that are there."""
    return sorted(int(path.stem) for path in (run / "checkpoints").glob("[0-9]*.safetensors"))


def differences(one: TrainingState, other: TrainingState) -> list[str]:
    """Names of the tensors and counters in which two states differ by as much as a bit."""
    found = [] if one.updates == other.updates else ["updates"]
    parts: Sequence[tuple[str, Any, Any]] = (
        ("policy", one.policy, other.policy),
        ("policy mean", one.policy_adam.exp_avg, other.policy_adam.exp_avg),
        ("mean of r_ep", {"": one.r_ep_mean}, {"": other.r_ep_mean}),
        ("policy square", one.policy_adam.exp_avg_sq, other.policy_adam.exp_avg_sq),
        ("intrinsic", one.intrinsic, other.intrinsic),
        ("intrinsic mean", one.intrinsic_adam.exp_avg, other.intrinsic_adam.exp_avg),
        ("running", one.running, other.running),
        ("novelty", one.novelty, other.novelty),
        ("novelty running", one.novelty_running, other.novelty_running),
    )
    for part, mine, its in parts:
        found += [f"{part}/{name}" for name in mine if not torch.equal(mine[name], its[name])]
    return found


def increases(run: Path) -> bool:
    """Whether metrics.csv tells of each update once, in order."""
    told = [int(row["updates"]) for row in rows(run)]
    return told == list(range(1, len(told) + 1))


def test_leco_train_stops_on_ctrl_c_goes_on_from_there_ends_and_can_be_evaluated(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = ("actors.unroll_length=16", "learner.batch_size=4", "learner.log_every=1", "learner.checkpoint_every=1000")
    flags = ["--task=Empty-5x5", "--method=leco", "--num-envs=4", "--threads=1", f"--run-dir={run}"]
    flags += [f"--set={each}" for each in small]
    frames = 64
    command = [*LECO, "train", *flags]
    with subprocess.Popen([*command, "--frames=1e9"], stdout=subprocess.PIPE, text=True) as training:
        try:
            until(lambda: len(rows(run)) >= 5)
            training.send_signal(signal.SIGINT)
            output, _ = training.communicate(timeout=PATIENCE)
        finally:
            training.kill()
    assert training.returncode == 130
    assert "stopping: the learner saves, the same command goes on from here" in output
    assert re.search(r"frames +done +frames/s +return +success", output)
    [saved] = checkpoints(run)
    assert saved >= 5
    assert not_running(run)

    more = subprocess.run(
        [*command, f"--frames={frames * (saved + 12)}"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (more.returncode, more.stderr) == (0, "")
    assert checkpoints(run) == [saved, saved + 12]
    assert increases(run)
    assert int(rows(run)[-1]["frames"]) == frames * (saved + 12)
    assert rows(run)[-1]["r_ep"] != ""  # it was counted
    assert parse((run / "config.toml").read_text()).task == "Empty-5x5"
    assert [each["leco"] for each in json.loads((run / "versions.json").read_text())] == 2 * [version("leco")]
    assert list((run / "tensorboard").glob("events*"))
    assert not_running(run)

    evaluated = subprocess.run(
        [*LECO, "eval", str(run), "--episodes=7"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (evaluated.returncode, evaluated.stderr) == (0, "")
    assert f"Empty-5x5, leco, after {saved + 12} updates: 7 fresh episodes" in evaluated.stdout
    assert re.search(r"success rate +[0-9.]+ % +\(95 %: ", evaluated.stdout)


def test_leco_train_says_that_its_store_has_gone_and_that_it_is_back(tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    small = ("actors.unroll_length=16", "learner.batch_size=4", "learner.log_every=1")
    command = [*LECO, "train", "--task=Empty-5x5", "--method=exact", "--num-envs=4", "--threads=1", "--frames=1e9"]
    with RedisServer() as store, output.open("wb") as out:
        command += [f"--store={store.url}", f"--run-dir={run}", *(f"--set={each}" for each in small)]
        with subprocess.Popen(command, stdout=out) as training:
            try:
                until(lambda: len(rows(run)) >= 2)
                store.kill()
                until(lambda: "hashcount: the store cannot be reached" in output.read_text())
                store.start()
                until(lambda: "hashcount: the store is back" in output.read_text())
                trained = len(rows(run))
                until(lambda: len(rows(run)) > trained)
                training.send_signal(signal.SIGINT)
                assert training.wait(PATIENCE) == 130
            finally:
                training.kill()


def not_running(run: Path) -> bool:
    """No process is left that has the run's folder on its command line."""
    found = subprocess.run(["pgrep", "-f", str(run)], capture_output=True, text=True, check=False)
    return found.stdout == ""


def test_folders_called_like_ours_where_it_is_started_are_not_taken_for_ours(tmp_path: Path) -> None:
    for name in ("leco", "services"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    small = ("actors.unroll_length=16", "learner.batch_size=4", "learner.queue_capacity=4", "learner.log_every=1")
    flags = ["--task=Empty-5x5", "--method=exact", "--num-envs=4", "--threads=1", "--frames=200"]
    command = [str(Path(sys.executable).with_name("leco")), "train", *flags, *(f"--set={each}" for each in small)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(tmp_path / "runs" / "Empty-5x5-exact-1")


def test_leco_train_ends_at_a_success_rate_and_stays_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = [f"--task={TASK}", "--method=no-int", "--preset=paper", "--threads=1", f"--run-dir={run}"]
    flags += ["--frames=1e9", "--until=1%"]
    flags += [f"--set={key}={value}" for key, value in SMALL.items() if key != "task"]

    def train() -> tuple[str, float]:
        begin = time.monotonic()
        done = subprocess.run([*LECO, "train", *flags], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout, time.monotonic() - begin

    output, seconds = train()
    assert re.search(
        r"^ended by --until 1 %: \d+ % of the last 100 episodes, after [0-9,]+ of 1,000 M frames$", output, re.MULTILINE
    )
    assert re.search(r"^90 % (not reached: at best|of the last 100 episodes after)", output, re.MULTILINE)
    told = rows(run)
    assert int(told[-2]["episodes"]) < 100 <= int(told[-1]["episodes"])
    # The clock is that of the command: it had begun before the learner did, and has ended after the last line.
    last = float(told[-1]["seconds"])
    assert sum(FRAMES_OF_UPDATE / float(row["frames_per_second"]) for row in told) < last < seconds
    [saved] = checkpoints(run)[-1:]
    assert saved == int(told[-1]["updates"])

    again, _ = train()
    assert again.splitlines()[-2:] == output.splitlines()[-2:]
    assert (checkpoints(run)[-1], rows(run)) == (saved, told)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot tell a child that its parent was killed")
def test_when_leco_train_is_killed_its_services_end_by_themselves_and_the_learner_saves(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = (
        "actors.unroll_length=16",
        "learner.batch_size=4",
        "learner.log_every=1",
        "learner.checkpoint_every=1000000",
    )
    flags = ["--task=Empty-5x5", "--method=dsc", "--num-envs=4", "--threads=1", f"--run-dir={run}", "--frames=1e9"]
    with subprocess.Popen(
        [*LECO, "train", *flags, *(f"--set={each}" for each in small)], stdout=subprocess.DEVNULL
    ) as parent:
        try:
            until(lambda: len(rows(run)) >= 5)
            found = subprocess.run(["pgrep", "-P", str(parent.pid)], capture_output=True, text=True, check=True)
            services = [int(each) for each in found.stdout.split()]
            assert len(services) == 3  # hashcount, learner, actor
        finally:
            parent.kill()
    until(lambda: not any(Path(f"/proc/{each}").exists() for each in services))
    [saved] = checkpoints(run)
    assert saved >= 5


def test_a_learner_that_is_killed_goes_on_from_its_checkpoint_and_the_actor_heals(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with ServiceProcess() as hashcount, ExitStack() as stack:
        first = stack.enter_context(learner(run, method="dsc", frames=FOR_EVER))
        one = stack.enter_context(actor(first.address, hashcount.address))
        until_updates(first, 14)
        version = first.metrics()["leco_learner_parameters_version"]
        first.kill()
        [saved] = checkpoints(run)[-1:]
        second = stack.enter_context(learner(run, listen=first.address, method="dsc", frames=FOR_EVER))
        assert second.until_logged("serving")["frames"] == saved * FRAMES_OF_UPDATE
        until_updates(second, 5)
        assert one.running
        assert second.metrics()["leco_learner_parameters_version"] > version + 5
        assert "Traceback" not in "\n".join(one.lines)

        second.terminate()
        assert second.wait() == 0
        assert "stopped" in [line["event"] for line in second.logged()]
        assert checkpoints(run)[-1] >= saved + 5
        assert increases(run)


def test_a_new_actor_takes_over_from_one_that_was_killed_and_training_ends(tmp_path: Path) -> None:
    run, count = tmp_path / "run", 60
    with ExitStack() as stack:
        service = stack.enter_context(learner(run, method="no-int", frames=count * FRAMES_OF_UPDATE))
        with actor(service.address) as one:
            until_updates(service, 5)
            one.kill()
        until(lambda: service.metrics()["leco_learner_open_streams"] == 0)
        assert service.running
        stack.enter_context(actor(service.address))
        assert service.wait() == 0
        assert checkpoints(run)[-1] == count
        assert "stopped" in [line["event"] for line in service.logged()]


def test_a_learner_that_shall_wait_when_it_is_done_serves_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with learner(run, method="no-int", frames=64) as serving, actor(serving.address):
        assert serving.wait() == 0  # without the flag it ends
    with learner(run, method="no-int", frames=64).given("--when-done", "wait") as again:
        line = again.until_logged("all frames are trained on; waiting")
        assert line["frames"] == 64
        assert again.metrics()["leco_learner_run_frames"] == 64
        assert again.running
        again.terminate()
        assert again.wait() == 0
        assert again.until_logged("draining")["reason"] == "SIGTERM"


def test_after_counts_were_lost_what_is_affected_is_left_out_and_training_goes_on(tmp_path: Path) -> None:
    with ServiceProcess() as hashcount, ExitStack() as stack:
        service = stack.enter_context(learner(tmp_path / "run", method="dsc", frames=FOR_EVER))
        one = stack.enter_context(patient_actor(service.address, hashcount.address))
        until_updates(service, 3)
        assert one.metrics()["leco_actor_uncounted_trajectories_total"] == 0
        hashcount.kill()
        with ServiceProcess("--listen", hashcount.address):
            until(lambda: one.metrics()["leco_actor_uncounted_trajectories_total"] > 0)
            made = service.metrics()["leco_learner_updates_total"]
            until_updates(service, int(made) + 10)
            told = one.metrics()["leco_actor_uncounted_trajectories_total"]
            one.terminate()
            assert one.wait() == 0
        [warning] = [line for line in one.logged() if line["event"].startswith("counting failed")]
        dropped = service.metrics()["leco_learner_trajectories_dropped_total uncounted"]
        assert 1 <= warning["batches"] <= 2
        assert 1 <= told <= dropped
        assert dropped <= 2 * (125 // SMALL["actors.unroll_length"] + 2), (
            "two environments, until their episodes of 125 actions end"
        )


def test_an_actor_without_learner_and_counts_stops_when_the_time_for_draining_is_over(tmp_path: Path) -> None:
    with ServiceProcess() as hashcount, ExitStack() as stack:
        service = stack.enter_context(learner(tmp_path / "run", method="dsc", frames=FOR_EVER))
        one = stack.enter_context(patient_actor(service.address, hashcount.address, "--drain-seconds=1"))
        until_updates(service, 3)
        hashcount.kill()
        time.sleep(1)  # in which an unroll ends, and waits for its counts; on a slow machine less is tested
        service.kill()
        one.terminate()
        one.until_logged("draining")
        assert one.wait() == 0
        assert "stopped" in [line["event"] for line in one.logged()]


def test_an_actor_that_is_asked_to_stop_first_sends_what_it_has_played(tmp_path: Path) -> None:
    with ExitStack() as stack:
        service = stack.enter_context(learner(tmp_path / "run", method="no-int", frames=FOR_EVER))
        one = stack.enter_context(actor(service.address))
        until_updates(service, 3)
        os.kill(service.pid, signal.SIGSTOP)
        try:
            played = one.metrics()["leco_actor_frames_total"]
            one.terminate()
            one.until_logged("draining")
            assert one.running
        finally:
            os.kill(service.pid, signal.SIGCONT)
        assert one.wait() == 0
        assert "stopped" in [line["event"] for line in one.logged()]
        assert not [line for line in one.logged() if line["event"].startswith("ended before")]
        until(lambda: service.metrics()["leco_learner_queue_trajectories"] == 0)
        taken = int(service.metrics()["leco_learner_trajectories_taken_total"])
        assert taken * SMALL["actors.unroll_length"] == one.logged()[-1]["frames"] >= played
        until_updates(service, taken // SMALL["learner.batch_size"])

        service.terminate()  # nothing comes any more, and the last checkpoint is some updates old
        assert service.wait() == 0
        assert "stopped" in [line["event"] for line in service.logged()]
        assert checkpoints(tmp_path / "run")[-1] == taken // SMALL["learner.batch_size"]


class Deterministic:
    """Runs of one seed, one after the other."""

    TURNS, CHECKPOINT, LAST = 2, 4, 16  # in updates; an unroll of four environments is two of them

    def __init__(self, folder: Path, method: str, hashcount: str | None, **overrides: Any) -> None:
        self._folder, self._method, self._hashcount, self._overrides = folder, method, hashcount, overrides

    def learner(self, name: str, listen: str = "127.0.0.1:0") -> TrainingProcess:
        return learner(
            self._folder / name,
            listen=listen,
            method=self._method,
            frames=self.LAST * FRAMES_OF_UPDATE - 1,
            actors__num_envs=self.TURNS * SMALL["learner.batch_size"],
            learner__keep_checkpoints=10,
            learner__checkpoint_every=self.CHECKPOINT,
            learner__deterministic=True,
            **self._overrides,
        )

    def actor(self, address: str) -> TrainingProcess:
        return actor(address, self._hashcount)

    def final(self, name: str) -> TrainingState:
        return state_of(self._folder / name, self.LAST)

    def whole(self, name: str) -> TrainingState:
        with self.learner(name) as service, self.actor(service.address):
            assert service.wait() == 0
        return self.final(name)

    def killed(self, name: str, *, actor_too: bool) -> TrainingState:
        """The same with a kill soon after the first checkpoint."""
        with ExitStack() as stack:
            service = stack.enter_context(self.learner(name))
            one = stack.enter_context(self.actor(service.address))
            until(lambda: self.CHECKPOINT in checkpoints(self._folder / name))
            service.kill()
            assert self.LAST not in checkpoints(self._folder / name), "it was killed too late"
            if actor_too:
                one.kill()
            service = stack.enter_context(self.learner(name, service.address))
            if actor_too:
                one = stack.enter_context(self.actor(service.address))
            assert service.wait() == 0
            assert one.running
        return self.final(name)


def test_deterministic_runs_are_equal_bit_for_bit_also_if_the_learner_was_killed(tmp_path: Path) -> None:
    runs = Deterministic(tmp_path, "no-int", None)
    whole = runs.whole("whole")
    assert differences(whole, state_of(tmp_path / "whole", runs.CHECKPOINT))
    assert differences(whole, runs.whole("again")) == []
    assert differences(whole, runs.killed("killed", actor_too=False)) == []


def test_a_deterministic_run_of_leco_equals_one_of_which_all_was_killed(tmp_path: Path) -> None:
    with ServiceProcess() as hashcount:
        runs = Deterministic(tmp_path, "leco", hashcount.address)
        whole = runs.whole("whole")
        assert differences(whole, state_of(tmp_path / "whole", runs.CHECKPOINT))
        assert differences(whole, runs.killed("killed", actor_too=True)) == []
    assert TASK in (tmp_path / "whole" / "config.toml").read_text()


REUSE: dict[str, Any] = {
    "actors__unroll_length": 8,
    "learner__synchronous": True,
    "hash__kind": "exact",
    "network__width": 16,
    "training__epochs": 2,
    "training__minibatches": 2,
    "training__sequence_length": 4,
    "training__clip_range": 0.2,
    "training__normalize_advantages": True,
    "training__center_bonus": True,
}


def test_a_deterministic_run_with_epochs_of_minibatches_equals_one_of_which_all_was_killed(tmp_path: Path) -> None:
    with ServiceProcess() as hashcount:
        runs = Deterministic(tmp_path, "leco", hashcount.address, **REUSE)
        whole = runs.whole("whole")
        assert whole.policy_adam.steps == 4 * runs.LAST
        assert whole.r_ep_mean > 0
        assert differences(whole, state_of(tmp_path / "whole", runs.CHECKPOINT))
        assert differences(whole, runs.killed("killed", actor_too=True)) == []


def test_in_a_synchronous_run_nothing_is_played_with_old_parameters(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = REUSE | {"method": "exact", "frames": FOR_EVER, "learner__queue_capacity": SMALL["learner.batch_size"]}
    with ServiceProcess() as hashcount, learner(run, **settings) as service, actor(service.address, hashcount.address):
        until_updates(service, 30)
        service.terminate()
        assert service.wait() == 0
    told = rows(run)
    assert len(told) >= 30
    assert {float(row["policy_lag"]) for row in told} == {0.0}
    assert all(float(row["rho"]) == pytest.approx(1.0, abs=1e-4) for row in told)
