"""When the trainer publishes, saves, records and ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from leco.checkpoint.milestones import find_milestones
from leco.checkpoint.snapshot import make_snapshot
from leco.checkpoint.state_file import load, not_finite
from leco.config.experiment import ConfigError, Experiment
from leco.config.toml import parse
from leco.learning.state import init
from leco.types import EpisodeSummary
from services.learner import trainer as module
from services.learner.best_return import BestReturn
from services.learner.checkpoints import Checkpoints
from services.learner.followers import Followers
from services.learner.metrics import LearnerMetrics
from services.learner.metrics_logger import EpisodeStats, MetricsLogger
from services.learner.trainer import Trainer
from services.learner.update_guard import DivergedError
from support.learner_parts import T, networks, trajectory
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from leco.learning.state import TrainingState
    from leco.types import ParameterSnapshot, Trajectory

BATCH = 2


class Trajectories:
    """Stands for the queue: so many batches, and then no more. In some of them a reward is absurd."""

    def __init__(self, batches: int, *, after: int = 0, absurd: dict[int, float] | None = None) -> None:
        self.left, self.waiting, self.number, self.held = batches, 0, after * BATCH, False
        self.absurd = absurd or {}

    def take(self, count: int, *, hold: bool = False) -> list[Trajectory] | None:
        assert not hold or not self.held, "what was taken before was never freed"
        self.held = hold
        self.left -= 1
        self.number += count
        if self.left < 0:
            return None
        taken = [trajectory(self.number - i, version=1) for i in range(count)]
        if (reward := self.absurd.get(self.number // count)) is not None:
            taken[0] = replace(taken[0], reward=np.full(T, reward, np.float32))
        return taken

    def free(self) -> None:
        self.held = False


class Case:
    def __init__(
        self,
        folder: Path,
        batches: int,
        *,
        updates: int = 0,
        best: float = float("-inf"),
        state: TrainingState | None = None,
        absurd: dict[int, float] | None = None,
        **changes: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.registry = folder, CollectorRegistry()
        keys = {key.replace("__", "."): value for key, value in changes.items()}
        small = {
            "learner.batch_size": BATCH,
            "learner.queue_capacity": 8,
            "actors.unroll_length": T,
            "actors.num_envs": BATCH,
        }
        self.experiment: Experiment = parse("", {"task": "Empty-5x5", "method": "no-int"} | small | keys)
        self.published: list[ParameterSnapshot] = []
        nets = networks(self.experiment.method)
        self.metrics_logger = MetricsLogger(folder, updates)
        self.episodes = EpisodeStats(self.metrics_logger.episodes)
        self.trainer = Trainer(
            self.experiment,
            nets,
            state or init(nets)._replace(updates=updates),
            queue=Trajectories(batches, after=state.updates if state else 0, absurd=absurd),  # type: ignore[arg-type]
            publish=self.published.append,
            checkpoints=Checkpoints(folder / "checkpoints", 100),
            metrics_logger=self.metrics_logger,
            episodes=self.episodes,
            metrics=LearnerMetrics(self.registry),
            device=torch.device("cpu"),
            followers=Followers(),
            best=BestReturn(best),
        )

    def run(self) -> bool:
        try:
            return self.trainer.run()
        finally:
            self.metrics_logger.close()

    @property
    def saved(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / "checkpoints").glob("[0-9]*.safetensors"))

    @property
    def recorded(self) -> list[int]:
        lines = (self.folder / "metrics.csv").read_text().splitlines()[1:]
        return [int(line.split(",")[1]) for line in lines]


def test_it_ends_when_all_frames_are_trained_on_and_saves(tmp_path: Path) -> None:
    case = Case(tmp_path, 99, frames=BATCH * T * 4 + 1, learner__checkpoint_every=2, learner__log_every=2)
    assert case.run()
    assert case.trainer.frames == BATCH * T * 5
    assert case.saved == [2, 4, 5]
    assert case.recorded == [1, 2, 4, 5]
    assert case.registry.get_sample_value("leco_learner_updates_total") == 5
    assert case.registry.get_sample_value("leco_learner_frames_total") == BATCH * T * 5
    assert case.registry.get_sample_value("leco_learner_run_frames") == BATCH * T * 5
    assert case.registry.get_sample_value("leco_learner_run_target_frames") == BATCH * T * 4 + 1
    saved = (tmp_path / "checkpoints" / "000000005.safetensors").stat().st_mtime
    assert abs((case.registry.get_sample_value("leco_learner_checkpoint_timestamp_seconds") or 0) - saved) < PATIENCE


@pytest.mark.parametrize(("updates", "lines"), [(1, [1]), (5, [1, 5])])
def test_a_run_that_is_shorter_than_the_way_to_its_first_line_is_recorded_and_measured(
    tmp_path: Path, updates: int, lines: list[int]
) -> None:
    ways: tuple[tuple[str, dict[str, Any]], ...] = (("done", {"frames": BATCH * T * updates}), ("stopped", {}))
    for folder, changes in ways:
        case = Case(tmp_path / folder, updates, learner__log_every=20, **changes)
        case.run()
        assert case.recorded == lines
        assert case.registry.get_sample_value("leco_learner_training_statistic", {"name": "entropy"})


def test_every_step_is_measured_also_between_two_lines(tmp_path: Path) -> None:
    found = []
    for updates in (1, 2):
        case = Case(tmp_path / str(updates), updates, learner__log_every=20)
        case.trainer._record_last = lambda: None  # type: ignore[method-assign]
        case.run()
        found.append(case.registry.get_sample_value("leco_learner_training_statistic", {"name": "entropy"}))
    assert found[0] != found[1]


def test_it_saves_when_it_is_asked_to_stop(tmp_path: Path) -> None:
    case = Case(tmp_path, 3, learner__checkpoint_every=100)
    assert not case.run()
    assert case.saved == [3]


def test_what_is_saved_already_is_not_saved_again_and_a_run_that_is_done_stays_so(tmp_path: Path) -> None:
    case = Case(tmp_path, 99, updates=7, frames=BATCH * T * 7, learner__checkpoint_every=7)
    assert case.run()
    assert (case.saved, case.published) == ([], [])


def test_a_failing_update_still_saves_what_was_trained(tmp_path: Path) -> None:
    case = Case(tmp_path, 3, learner__checkpoint_every=100, learner__log_every=2)
    case.metrics_logger._file.close()
    with pytest.raises(ValueError, match="closed file"):
        case.run()
    assert case.saved == [1]


def test_a_deterministic_run_ends_at_a_checkpoint_and_saves_nowhere_else(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "frames": BATCH * T * 4 + 1,
        "learner__checkpoint_every": 3,
        "learner__deterministic": True,
    }
    case = Case(tmp_path / "whole", 99, **changes)
    assert case.run()
    assert case.saved == [3, 6]
    stopped = Case(tmp_path / "stopped", 4, **changes)
    assert not stopped.run()
    assert stopped.saved == [3]


def test_parameters_are_published_with_growing_versions_and_their_updates(tmp_path: Path) -> None:
    case = Case(tmp_path, 6, learner__publish_every=2)
    case.trainer.publish()
    case.run()
    assert [int(each.tensors["updates"]) for each in case.published] == [0, 2, 4, 6]
    assert [each.version for each in case.published] == [1, 3, 5, 7]
    first, last = (each.tensors["policy/policy_head.bias"] for each in (case.published[0], case.published[-1]))
    assert (first != last).any()


def test_the_best_is_kept_only_if_a_hundred_episodes_were_better(tmp_path: Path) -> None:
    def with_return(folder: str, mean: float, episodes: int, best: float) -> bool:
        case = Case(tmp_path / folder, 2, learner__checkpoint_every=2, best=best)
        case.episodes.add(1, [EpisodeSummary(mean, 3, success=True)] * episodes)
        case.run()
        return (tmp_path / folder / "checkpoints" / "best.safetensors").exists()

    assert with_return("better", 0.5, 100, 0.4)
    assert not with_return("worse", 0.3, 100, 0.4)
    assert not with_return("few", 0.5, 99, 0.4)
    assert with_return("first", 0.0, 100, float("-inf"))


def test_counts_of_the_last_step_are_measured(tmp_path: Path) -> None:
    case = Case(tmp_path, 1, learner__log_every=1)
    case.run()
    counts = [each.count for each in Trajectories(1).take(BATCH) or [] if each.count is not None]
    assert counts
    for name, expected in (
        ("mean_count", sum(map(sum, counts)) / (BATCH * T)),
        ("largest_count", max(map(max, counts))),
    ):
        found = case.registry.get_sample_value("leco_learner_training_statistic", {"name": name})
        assert found == pytest.approx(expected)


def test_milestones_are_kept_for_good(tmp_path: Path) -> None:
    frames = 10 * BATCH * T
    case = Case(tmp_path, 99, frames=frames, learner__milestones=4, learner__checkpoint_every=100)
    assert case.run()
    folder = tmp_path / "checkpoints"
    kept = find_milestones(tmp_path, case.experiment)
    assert {share: path.name for share, path in kept.items()} == {
        f"{share}%": f"milestone-{updates:09d}.safetensors"
        for share, updates in ((25, 3), (50, 5), (75, 8), (100, 10))  # the first that has them all
    }
    state, metadata = load(kept["75%"], init(networks()))
    assert (state.updates, metadata["frames"]) == (8, 8 * BATCH * T)
    assert [path.name for path in folder.glob("[0-9]*")] == ["000000010.safetensors"]
    more = parse(
        "", {"task": "Empty-5x5", "frames": 2 * frames, "learner.batch_size": BATCH, "actors.unroll_length": T}
    )
    assert list(find_milestones(tmp_path, more)) == ["15%", "25%", "40%", "50%"]


def test_no_milestones(tmp_path: Path) -> None:
    case = Case(tmp_path, 99, frames=4 * BATCH * T, learner__milestones=0)
    assert case.run()
    assert not list((tmp_path / "checkpoints").glob("milestone*"))
    with pytest.raises(ConfigError, match=r"has no milestones yet: learner\.milestones is 0"):
        find_milestones(tmp_path, case.experiment)


def played(solved: int, lost: int = 0) -> list[EpisodeSummary]:
    return [EpisodeSummary(1.0, 3, success=True)] * solved + [EpisodeSummary(0.0, 3, success=False)] * lost


LINE_EVERY_2: dict[str, Any] = {"learner__log_every": 2, "learner__checkpoint_every": 100, "until": 0.95}


def test_it_ends_with_the_line_that_has_the_success_rate_and_saves(tmp_path: Path) -> None:
    case = Case(tmp_path, 99, frames=10**6, **LINE_EVERY_2)
    case.episodes.add(1, played(95, 5))
    assert case.run()
    assert (case.saved, case.recorded) == ([1], [1])
    assert case.trainer.ending == "95 % of the last 100 episodes were solved"
    for name in ("run_frames", "run_target_frames"):  # nobody waits for the rest
        assert case.registry.get_sample_value(f"leco_learner_{name}") == BATCH * T


@pytest.mark.parametrize(("solved", "lost"), [(94, 6), (99, 0)])
def test_fewer_or_too_few_episodes_do_not_end_it(tmp_path: Path, solved: int, lost: int) -> None:
    case = Case(tmp_path, 99, frames=BATCH * T * 6, **LINE_EVERY_2)
    case.episodes.add(1, played(solved, lost))
    assert case.run()
    assert (case.saved, case.recorded) == ([6], [1, 2, 4, 6])
    assert case.trainer.ending == "all frames are trained on"


def test_without_a_success_rate_it_trains_on_all_frames(tmp_path: Path) -> None:
    case = Case(tmp_path, 99, frames=BATCH * T * 4, learner__log_every=2)
    case.episodes.add(1, played(100))
    assert case.run()
    assert case.saved == [4]


def test_a_run_that_has_ended_so_ends_at_once_when_it_is_started_again(tmp_path: Path) -> None:
    first = Case(tmp_path, 99, frames=10**6, **LINE_EVERY_2)
    first.episodes.add(1, played(97, 3))
    assert first.run()
    again = Case(tmp_path, 99, updates=1, frames=10**6, **LINE_EVERY_2)
    assert again.run()
    assert (again.trainer.state.updates, again.recorded) == (1, [1])
    assert again.trainer.ending == "97 % of the last 100 episodes were solved"
    # Asked for more, it goes on; the few episodes since then do not count as the last hundred.
    more = Case(tmp_path, 99, updates=1, frames=BATCH * T * 6, **LINE_EVERY_2 | {"until": 0.98})
    more.episodes.add(1, played(99))
    assert more.run()
    assert more.trainer.state.updates == 6


def test_a_run_that_has_not_reached_it_goes_on(tmp_path: Path) -> None:
    assert not Case(tmp_path, 4, frames=10**6, **LINE_EVERY_2).run()
    again = Case(tmp_path, 99, updates=4, frames=10**6, **LINE_EVERY_2)
    again.episodes.add(1, played(100))
    assert again.run()
    assert (again.saved, again.recorded) == ([4, 6], [1, 2, 4, 6])


def test_a_deterministic_run_that_has_the_success_rate_ends_at_its_next_checkpoint(tmp_path: Path) -> None:
    changes = LINE_EVERY_2 | {"frames": 10**6, "learner__deterministic": True, "learner__checkpoint_every": 5}
    case = Case(tmp_path, 99, **changes)
    case.episodes.add(1, played(100))
    assert case.run()
    assert (case.saved, case.recorded) == ([5], [1, 2, 4]), "the line that has the success rate is the last"
    again = Case(tmp_path, 99, updates=5, **changes)
    assert again.run()
    assert again.trainer.state.updates == 5


def test_training_that_failed_has_not_ended_by_itself(tmp_path: Path) -> None:
    case = Case(tmp_path, 3, frames=10**6, **LINE_EVERY_2)
    case.metrics_logger._file.close()
    with pytest.raises(ValueError, match="closed file"):
        case.run()
    assert case.trainer.ending == "training failed"


# What would ruin the state.


def same(one: TrainingState, other: TrainingState) -> bool:
    """Whether policies and what Adam remembers of them are equal, bit for bit."""
    pairs = zip(
        (one.policy, one.policy_adam.exp_avg, one.policy_adam.exp_avg_sq),
        (other.policy, other.policy_adam.exp_avg, other.policy_adam.exp_avg_sq),
        strict=True,
    )
    return all(torch.equal(left[name], right[name]) for left, right in pairs for name in left)


EARLY: dict[str, Any] = {"learner__synchronous": True}  # the policy is published before the update is done


@pytest.mark.parametrize("early", [{}, EARLY], ids=["published after", "published early"])
@pytest.mark.parametrize("reward", [1e12, -1e20, 3e38])
def test_an_update_on_an_absurd_reward_is_left_out_and_counted(
    tmp_path: Path, reward: float, early: dict[str, Any]
) -> None:
    case = Case(tmp_path, 6, absurd={4: reward}, learner__checkpoint_every=1, learner__log_every=1, **early)
    assert not case.run()
    assert case.registry.get_sample_value("leco_learner_updates_left_out_total") == 1
    assert case.saved == case.recorded == [1, 2, 3, 4, 5, 6]
    states = [load(tmp_path / "checkpoints" / f"{n:09d}.safetensors", init(networks()))[0] for n in range(1, 7)]
    assert [not_finite(state) for state in states] == [""] * 6
    assert same(states[3], states[2])
    assert not same(states[4], states[3]), "and it learns on"
    for snapshot in case.published:
        assert all(np.isfinite(array).all() for array in snapshot.tensors.values())
    versions = [each.version for each in case.published]
    assert versions == sorted(versions)


def test_a_resumed_run_leaves_out_what_one_that_never_ended_leaves_out(tmp_path: Path) -> None:
    absurd = {2: 30.0, 5: 1e6}
    whole = Case(tmp_path / "whole", 7, absurd=absurd)
    whole.run()
    Case(tmp_path / "half", 4, absurd=absurd).run()
    found = Checkpoints(tmp_path / "half" / "checkpoints", 100).newest(init(networks()))
    assert found is not None
    resumed = Case(tmp_path / "half", 3, updates=4, state=found[0], absurd=absurd)
    resumed.run()
    assert resumed.registry.get_sample_value("leco_learner_updates_left_out_total") == 1
    assert same(resumed.trainer.state, whole.trainer.state)


def test_a_run_with_nothing_but_such_updates_ends_with_an_error_and_a_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LEFT_OUT", 3)
    absurd = dict.fromkeys((2, 3, 5, 6, 7), 3e38)
    case = Case(tmp_path, 99, absurd=absurd, learner__checkpoint_every=100)
    with pytest.raises(
        DivergedError, match=r"the last 3 updates were all left out \(.* is (nan|inf)\); the state before"
    ):
        case.run()
    assert case.saved == [6], "two in a row are no reason to end"
    state, _ = load(tmp_path / "checkpoints" / "000000006.safetensors", init(networks()))
    assert not_finite(state) == ""
    assert case.trainer.ending == "training failed"


def test_a_record_that_later_episodes_do_not_bear_out_does_not_stay_the_best(tmp_path: Path) -> None:
    case = Case(tmp_path, 3, learner__checkpoint_every=1)
    reported = iter([(9.5, 120), (0.5, 160), (0.6, 100)])
    save = case.trainer._save

    def episodes_then_save() -> None:
        mean, count = next(reported)
        case.episodes.add(1, [EpisodeSummary(mean, 3, success=True)] * count)
        save()

    case.trainer._save = episodes_then_save  # type: ignore[method-assign]
    case.run()
    best, metadata = load(tmp_path / "checkpoints" / "best.safetensors", init(networks()))
    assert best.updates == 3
    assert metadata["return"] == pytest.approx(0.6)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_policy_is_published_before_the_hash_has_learned_but_in_a_deterministic_run(
    tmp_path: Path, *, deterministic: bool
) -> None:
    changes: dict[str, Any] = {"learner__checkpoint_every": 1, "learner__deterministic": deterministic}
    case = Case(tmp_path, 3, method="vq-only", **EARLY, **changes)
    case.run()
    states = [init(networks("vq-only"))]
    states += [load(tmp_path / "checkpoints" / f"{n:09d}.safetensors", states[0])[0] for n in (1, 2, 3)]
    assert len(case.published) == 3
    for snapshot, before, after in zip(case.published, states[:-1], states[1:], strict=True):
        hash_of = after if deterministic else before
        expected = make_snapshot(hash_of._replace(policy=after.policy, updates=after.updates), snapshot.version)
        assert snapshot.tensors.keys() == expected.tensors.keys()
        for name, tensor in expected.tensors.items():
            assert np.array_equal(snapshot.tensors[name], tensor), name
        assert not same(before, after)
