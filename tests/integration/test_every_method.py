"""Every method through the real services, and in what they leave behind, what makes each method itself."""

from __future__ import annotations

import math
import statistics
import subprocess
from typing import TYPE_CHECKING

import pytest
import torch

from leco.methods.table import METHODS
from support.training_services import LECO, TASK, rows, state_of
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from leco.learning.state import TrainingState

SMALL = ("actors.unroll_length=8", "learner.batch_size=4", "learner.log_every=1", "learner.checkpoint_every=1000")
UPDATES = 60


def trained(run: Path, method: str, *settings: str, updates: int = UPDATES) -> TrainingState:
    """`leco train` from the beginning to the end; its last state."""
    flags = [f"--task={TASK}", f"--method={method}", "--num-envs=4", "--threads=1", f"--run-dir={run}"]
    flags += [f"--frames={8 * 4 * updates}", *(f"--set={each}" for each in (*SMALL, *settings))]
    done = subprocess.run([*LECO, "train", *flags], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    state = state_of(run, updates)
    assert all(
        torch.isfinite(each).all() for part in (state.policy, state.intrinsic, state.novelty) for each in part.values()
    )
    return state


def column(run: Path, name: str) -> list[float]:
    return [float(row[name]) for row in rows(run)]


def halves(numbers: list[float]) -> tuple[float, float]:
    """The means of the first and of the last quarter."""
    quarter = len(numbers) // 4
    return statistics.mean(numbers[:quarter]), statistics.mean(numbers[-quarter:])


@pytest.mark.parametrize("method", ["no-int", "leco-ae-lsh", "leco-naive"])  # the tests below train the others
def test_a_method_trains_and_says_what_it_rewards(method: str, tmp_path: Path) -> None:
    row = METHODS[method]
    trained(tmp_path / "run", method, updates=10)
    last = rows(tmp_path / "run")[-1]
    assert bool(last["r_ep"]) == row.counts
    assert bool(last["r_ta"]) == (row.modulation.value != "-")
    assert bool(last["hash_loss"]) == row.learns_hash


def test_noveld_pays_only_first_visits_in_an_episode(tmp_path: Path) -> None:
    run = tmp_path / "run"
    few = ("hash.size=[1, 1]", "hash.codebook_size=2")  # two codes: most observations are no first visit
    trained(run, "noveld", "training.novelty_learning_rate=1e-3", *few)
    paid, new = column(run, "r_ep"), column(run, "new_code_share")
    assert any(share == 0 for share in new)
    assert any(reward > 0 for reward in paid)
    assert all(reward == 0 for reward, share in zip(paid, new, strict=True) if share == 0)
    first, last = halves(column(run, "rnd_error"))
    assert last < 0.85 * first


def test_rnds_error_falls_on_repeated_states(tmp_path: Path) -> None:
    run = tmp_path / "run"
    state = trained(run, "rnd", "training.novelty_learning_rate=1e-3")
    first, last = halves(column(run, "rnd_error"))
    assert last < 0.85 * first
    assert state.novelty_running["seen.rows"] == pytest.approx(UPDATES * 8 * 4, abs=0.01)
    assert not (run / "logs" / "hashcount.log").exists(), "it counts nothing"


def test_rides_reward_shrinks_with_the_count(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained(run, "ride", "training.novelty_learning_rate=1e-3")
    pairs = sorted(zip(column(run, "new_code_share"), column(run, "r_ep"), strict=True))
    few, many = halves([reward for _, reward in pairs])
    assert few < 0.7 * many, "batches with few new codes are rewarded less"
    first, last = halves(column(run, "inverse_loss"))
    assert last < first


def test_agacs_adversary_follows_the_policy(tmp_path: Path) -> None:
    """Over the last half, since a policy may leap, and its adversary follows only then."""
    run = tmp_path / "run"
    trained(run, "agac", "training.novelty_learning_rate=2e-3", "training.policy_learning_rate=3e-4")
    certain = [math.log(7) - entropy for entropy in column(run, "entropy")]  # apart from one that has learned nothing
    shares = [apart / most for apart, most in zip(column(run, "adversary_kl"), certain, strict=True)]
    assert certain[-1] > 0.001
    assert statistics.median(shares[UPDATES // 2 :]) < 0.5


def test_lambda_at_its_ends_is_another_method_to_the_bit(tmp_path: Path) -> None:
    same = ["learner.deterministic=true", "learner.checkpoint_every=4", "hash.kind=vq", "training.alpha=0.01"]
    same.append("training.penalty_on_revisits=false")  # which lirpg, that counts nothing, cannot have

    def policy(name: str, method: str, *settings: str) -> dict[str, torch.Tensor]:
        # Few updates: once the task rewards, V^e trains leco's encoder, and so its hash, which vq-only has no V^e for.
        return trained(tmp_path / name, method, *settings, *same, updates=4).policy

    count, modulator = policy("zero", "leco", "training.lambda=0"), policy("one", "leco", "training.lambda=1")
    for ours, theirs in ((count, policy("vq-only", "vq-only")), (modulator, policy("lirpg", "lirpg"))):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert any(not torch.equal(count[name], modulator[name]) for name in count)


@pytest.mark.parametrize(
    ("method", "size", "name", "rows_of_it"),
    [
        ("vq-only", ("hash.size=[2, 4]", "hash.codebook_size=16"), "vectors", 16),
        ("ae-lsh", ("hash.bits=9",), "projection_PF", 9),
    ],
)
def test_the_hash_may_have_another_size(
    method: str, size: tuple[str, ...], name: str, rows_of_it: int, tmp_path: Path
) -> None:
    state = trained(tmp_path / "run", method, *size, updates=5)
    assert len({**state.intrinsic, **state.running}[f"bottleneck.{name}"]) == rows_of_it
    assert rows(tmp_path / "run")[-1]["new_code_share"] != ""
