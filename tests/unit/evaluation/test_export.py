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
from leco.config.training import NetworkConfig
from leco.envs.registry import find_task
from leco.evaluation.export import METADATA, check, export, load_step
from leco.evaluation.rollout import EvaluationError
from leco.evaluation.trained import trained_state
from leco.evaluation.zoo import find_run
from leco.models.exported import ExportedPolicy
from leco.models.kinds.table import PIXELS, networks_of

if TYPE_CHECKING:
    from leco.evaluation.trained import Trained

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


def test_a_policy_on_pixels_with_two_layers_that_sees_its_last_action_is_the_same_function() -> None:
    torch.manual_seed(0)
    policy = networks_of(PIXELS).build_policy(5, NetworkConfig(width=32))
    exported, state = ExportedPolicy(policy), torch.randn(2, 2, 3, policy.core.hidden_size)
    observation = torch.randint(0, 256, (3, *PIXELS.shape), dtype=torch.uint8)
    start, action = torch.tensor([True, False, False]), torch.tensor([-1, 4, 0])
    reward = torch.tensor([0.0, 1.0, -2.0])
    with torch.no_grad():
        logits, value, after = exported(observation, start, action, reward, state)
        expected = policy(*(each.unsqueeze(0) for each in (observation, start, action, reward)), state)
    torch.testing.assert_close(logits, expected.logits_TBA[0])
    torch.testing.assert_close(value, expected.value_TB[0])
    torch.testing.assert_close(after, expected.state)


def test_the_command_exports_an_entry_of_the_zoo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.onnx"
    command.main(["zoo/MultiRoom-N2-S4", f"--output={path}"])
    assert path.stat().st_size > 100_000
    said = capsys.readouterr().out
    assert said.startswith(f"{path} (")
    assert "checked: the same actions, " in said
