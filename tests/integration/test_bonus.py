"""The bonus in other people's loops: counted by the service, and in the example with Stable-Baselines3."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import gymnasium
import minigrid  # noqa: F401  # it registers its environments
import numpy as np
from gymnasium.vector import AutoresetMode
from minigrid.wrappers import ImgObsWrapper

from leco.rewards import EpisodicCount
from leco.rewards.wrapper import STEPS
from support.harness import memory_counting, serving
from support.paths import ROOT
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path


def counted(**settings: str) -> EpisodicCount:
    envs = gymnasium.make_vec(
        "MiniGrid-MultiRoom-N2-S4-v0",
        4,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        wrappers=[ImgObsWrapper],
    )
    return EpisodicCount(envs, hash="cells", **settings)  # type: ignore[arg-type]


def test_the_service_counts_as_this_process_does() -> None:
    with memory_counting() as store, serving(store.store, store.loop) as service:
        here, there = counted(), counted(hashcount=service.address, run="test")
        here.reset(seed=3)
        there.reset(seed=3)
        draws, bonuses = np.random.default_rng(0), []
        for _ in range(STEPS + 60):
            action_E = draws.integers(0, 7, 4)
            (_, _, _, _, one), (_, _, _, _, other) = here.step(action_E), there.step(action_E)
            assert (one["bonus"] == other["bonus"]).all()
            bonuses.append(one["bonus"])
        assert np.any(bonuses)
        assert store.live_episodes() == 4
        there.close()


def test_the_example_with_stable_baselines3_trains(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples/sb3_ppo.py"), "--task=MultiRoom-N2-S4"]
    done = subprocess.run(
        [*command, "--steps=22000", f"--csv={tmp_path / 'curve.csv'}"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines[0] == "steps,success,cpu_seconds"
    assert len(lines) == 12
    assert float(lines[-1].split(",")[1]) > 0
