"""Several ranks that train as one: real processes, joined by gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from leco.checkpoint.state_file import load
from leco.learning.state import TrainingState, init
from support import ranks_case
from support.ranks_case import CASES, case_name, trained
from support.training_case import networks
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from torch import Tensor

SIZES = (2, 3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What so many ranks have made of all cases."""
    folders = {}
    for size in SIZES:
        folders[size] = tmp_path_factory.mktemp(f"ranks-{size}")
        script = Path(ranks_case.__file__)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
        subprocess.run(
            [*torchrun, str(script), str(folders[size])],
            check=True,
            timeout=PATIENCE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(script.parents[1]), *sys.path])},
        )
    return folders


def numbers(state: TrainingState) -> dict[str, Tensor]:
    """All of a state, by name."""
    groups = {
        **state._asdict(),
        **{
            f"{name}_{part}": getattr(getattr(state, name), part)
            for name in ("policy_adam", "intrinsic_adam", "novelty_adam")
            for part in ("exp_avg", "exp_avg_sq")
        },
    }
    found = {
        f"{group}/{name}": t for group, named in groups.items() if isinstance(named, dict) for name, t in named.items()
    }
    return found | {"r_ep_mean": state.r_ep_mean, "r_ep_square": state.r_ep_square, "trust": state.trust}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case_name(*case))
def test_several_ranks_learn_what_one_does(case: tuple[str, str | None, str], size: int, made: dict[int, Path]) -> None:
    expected, stats = trained(*case)
    like = init(networks(*case[:2]))
    paths = [made[size] / f"{case_name(*case)}-{rank}.safetensors" for rank in range(size)]
    found, found_stats = load(paths[0], like)
    before = numbers(like._replace(trust=torch.full_like(like.trust, 0.5)))
    moved = [name for name, x in numbers(expected).items() if not torch.equal(x, before[name])]
    assert moved, "it learns"
    for name, x in numbers(expected).items():
        torch.testing.assert_close(numbers(found)[name], x, rtol=1e-9, atol=1e-9, msg=name)
    assert found_stats == pytest.approx(stats, rel=1e-9, abs=1e-9)
    for other in paths[1:]:
        assert other.read_bytes() == paths[0].read_bytes(), "all ranks have the same, bit for bit"
