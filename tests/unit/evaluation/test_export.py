"""Exported policies act as the policies do that they were made of."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
import pytest
import torch

from leco.cli import export as command
from leco.config.experiment import task_of
from leco.config.toml import parse
from leco.config.training import NetworkConfig
from leco.envs.registry import find_task
from leco.evaluation.export import METADATA, check, export, load_step
from leco.evaluation.rollout import EvaluationError
from leco.evaluation.trained import Trained, build_networks, trained_state
from leco.evaluation.zoo import find_run
from leco.learning.state import init
from leco.models.exported import ExportedPolicy
from leco.models.kinds.parts import single_of_bytes
from leco.models.kinds.table import PIXELS, find_kind
from leco.models.policy import make_policy
from leco.types import ObservationLayout

if TYPE_CHECKING:
    Format = Literal["onnx", "torchscript"]

FORMATS: tuple[Format, ...] = ("onnx", "torchscript")


@pytest.fixture(scope="module")
def trained() -> Trained:
    return trained_state(find_run(Path("zoo/MultiRoom-N6")))


@pytest.mark.parametrize("format_", FORMATS)
def test_it_acts_the_same_over_whole_episodes(trained: Trained, format_: Format) -> None:
    step = load_step(export(trained, format_), format_)
    assert check(step, trained.policy, find_task("MultiRoom-N6"), episodes=5) > 200


def test_the_check_can_fail(trained: Trained) -> None:
    step = load_step(export(trained, "onnx"), "onnx")

    def forgets(*inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return step(*inputs[:-1], np.zeros_like(inputs[-1]))

    with pytest.raises(EvaluationError, match="the exported policy's logits are off by"):
        check(forgets, trained.policy, find_task("MultiRoom-N6"))


def test_a_file_says_what_it_is(trained: Trained) -> None:
    [told] = onnx.load_from_string(export(trained, "onnx")).metadata_props
    about = json.loads(told.value)
    assert (told.key, about["task"], about["observation_shape"]) == (METADATA, "MultiRoom-N6", [7, 7, 3])
    assert about["actions"][2] == "forward"
    files = {METADATA: ""}
    with pytest.warns(DeprecationWarning, match=r"torch.jit.load"):
        torch.jit.load(io.BytesIO(export(trained, "torchscript")), _extra_files=files)  # type: ignore[no-untyped-call]
    assert json.loads(files[METADATA]) == about


@pytest.mark.parametrize(
    "layout",
    [
        ObservationLayout(PIXELS.shape),
        ObservationLayout((64, 48, 4), actions=5),
        ObservationLayout(numbers=6, actions=5),
        ObservationLayout((16, 16, 1), numbers=3),
    ],
)
def test_policies_of_all_kinds_are_the_same_function_of_a_step(layout: ObservationLayout) -> None:
    torch.manual_seed(0)
    policy = make_policy(find_kind(layout), 5, NetworkConfig(width=32))
    exported, state = ExportedPolicy(policy), torch.randn_like(policy.initial_state(3))
    bare = torch.randint(0, 60, (3, *layout.shape), dtype=torch.uint8)  # as float32 they are small numbers
    if layout.actions:
        bare[:, -5:] = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    start, action = torch.tensor([True, False, False]), torch.tensor([-1, 4, 0])
    reward = torch.tensor([0.0, 1.0, -2.0])
    with torch.no_grad():
        logits, value, after = exported(bare, start, action, reward, state)
        expected = policy(*(each.unsqueeze(0) for each in (bare, start, action, reward)), state)
    torch.testing.assert_close(logits, expected.logits_TBA[0])
    torch.testing.assert_close(value, expected.value_TB[0])
    torch.testing.assert_close(after, expected.state)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_policy_on_numbers_reads_them_out_of_their_bytes(format_: Format) -> None:
    experiment = parse("", {"task": "CartPole-v1"})
    networks = build_networks(experiment)
    untrained = Trained(experiment, networks.policy, 0, {}, networks, init(networks))
    step = load_step(export(untrained, format_), format_)
    assert check(step, networks.policy, task_of(experiment)) > 10


def test_numbers_of_bytes_are_exact() -> None:
    numbers = np.array([0.0, 1.0, -1.0, 0.1, -3.25e-30, 1.7e38, -np.pi, 65537.0, -0.0], np.float32)
    numbers = np.concatenate([numbers, np.random.default_rng(0).normal(size=1000).astype(np.float32)])
    found = single_of_bytes(torch.from_numpy(numbers.view(np.uint8).reshape(-1, 4)))
    assert (found.numpy() == numbers).all()


def test_the_command_exports_an_entry_of_the_zoo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.onnx"
    command.main(["zoo/MultiRoom-N2-S4", f"--output={path}"])
    assert path.stat().st_size > 100_000
    said = capsys.readouterr().out
    assert said.startswith(f"{path} (")
    assert "checked: the same actions, " in said
