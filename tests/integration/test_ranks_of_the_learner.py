"""The learner as several ranks, with real actors: trained, killed, and gone on with in another number."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from leco.checkpoint.state_file import dumps, load
from support.service_process import ServiceProcess
from support.training_services import SMALL, actor, learner, rows, state_of, until_updates
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from support.training_services import TrainingProcess

FOR_EVER = 1_000_000_000  # frames
FRAMES_OF_UPDATE = SMALL["actors.unroll_length"] * SMALL["learner.batch_size"]
OTHER_NUMBER = "the run goes on with another number of ranks"


def learner_of(ranks: int, run: Path, **overrides: Any) -> TrainingProcess:
    return learner(run, method="leco", **overrides).given(f"--ranks={ranks}")


def saved(run: Path) -> list[int]:
    return sorted(int(path.stem) for path in (run / "checkpoints").glob("[0-9]*.safetensors"))


def said_of_ranks(run: Path) -> object:
    """What the newest checkpoint says."""
    newest = saved(run)[-1]
    path = run / "checkpoints" / f"{newest:09d}.safetensors"
    return load(path, state_of(run, newest))[1]["ranks"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_that_is_killed_ends_the_job_which_goes_on_with_any_number_of_ranks(tmp_path: Path, which: int) -> None:
    run = tmp_path / "run"
    with ServiceProcess() as hashcount, ExitStack() as stack:
        two = stack.enter_context(learner_of(2, run, frames=FOR_EVER))
        pids = [two.until_logged("serving")["pid"], two.until_logged("following")["pid"]]
        one_actor = stack.enter_context(actor(two.address, hashcount.address))
        until_updates(two, SMALL["learner.checkpoint_every"] + 1)
        os.kill(pids[which], signal.SIGKILL)
        assert two.wait() != 0, "all have ended"
        one_actor.kill()  # on a busy machine it would give up before there is a learner again
        last = saved(run)[-1]
        assert said_of_ranks(run) == 2

        one = stack.enter_context(learner_of(1, run, frames=FOR_EVER))
        told = one.until_logged(OTHER_NUMBER)
        assert (told["before"], told["ranks"]) == (2, 1)
        with actor(one.address, hashcount.address):
            until_updates(one, 2)
        one.terminate()
        assert one.wait() == 0
        assert saved(run)[-1] >= last + 2
        assert said_of_ranks(run) == 1

        again = stack.enter_context(learner_of(2, run, frames=FOR_EVER))
        with actor(again.address, hashcount.address):
            until_updates(again, 2)
        again.terminate()
        assert again.wait() == 0, "rank 0 saves, and then all end"
        assert "stopped" in [line["event"] for line in again.logged() if line.get("rank") == 1]
    told_updates = [int(row["updates"]) for row in rows(run)]
    assert told_updates == list(range(1, len(told_updates) + 1)), "each update once"
    assert saved(run)[-1] == told_updates[-1]


def test_deterministic_runs_of_two_ranks_are_equal_bit_for_bit_also_if_one_was_killed(tmp_path: Path) -> None:
    checkpoint, last = 4, 12  # in updates

    def begun(name: str) -> TrainingProcess:
        return learner_of(
            2,
            tmp_path / name,
            frames=last * FRAMES_OF_UPDATE - 1,
            actors__num_envs=2 * SMALL["learner.batch_size"],
            learner__keep_checkpoints=10,
            learner__checkpoint_every=checkpoint,
            learner__deterministic=True,
        )

    with ServiceProcess() as hashcount, ExitStack() as stack:
        with begun("whole") as service, actor(service.address, hashcount.address):
            assert service.wait() == 0

        service = stack.enter_context(begun("killed"))
        follower = service.until_logged("following")["pid"]
        one = stack.enter_context(actor(service.address, hashcount.address))
        until(lambda: checkpoint in saved(tmp_path / "killed"))
        os.kill(follower, signal.SIGKILL)
        assert service.wait() != 0
        one.kill()  # on a busy machine it would give up before there is a learner again
        assert last not in saved(tmp_path / "killed"), "it was killed too late"
        service = stack.enter_context(begun("killed"))
        with actor(service.address, hashcount.address):
            assert service.wait() == 0
    whole, resumed = (dumps(state_of(tmp_path / name, last), {}) for name in ("whole", "killed"))
    assert whole == resumed


def test_ranks_that_would_have_nothing_to_do_are_refused(tmp_path: Path) -> None:
    three = learner_of(3, tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"there are 3 ranks, but learner\.batch_size is 2"), three:
        pass
    assert three.wait() == 2, "no other start heals it"
