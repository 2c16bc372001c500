"""A trained policy as a file that other programs run: ONNX or TorchScript; and whether it plays the same.

N     environments
"""

from __future__ import annotations

import io
import json
import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from leco.config.experiment import task_of
from leco.envs.registry import make
from leco.evaluation.rollout import FRESH, EvaluationError
from leco.models.exported import INPUTS, OUTPUTS, ExportedPolicy, example_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from leco.envs.task import Task
    from leco.evaluation.trained import Trained
    from leco.models.policy import Policy

    Format = Literal["onnx", "torchscript"]
    # INPUTS to OUTPUTS
    Step = Callable[..., tuple[npt.NDArray[np.float32], ...]]

EPISODES = 4
MOST_STEPS = 2000
TOLERANCE = 1e-3  # of logits: another runtime adds in another order, and a recurrent state carries that on
METADATA = "leco"


def export(trained: Trained, format_: Format) -> bytes:
    """The file. What is known of the policy is in it, as JSON under the name `leco`: task, method, updates, shapes, actions.

    Raises:
        ModuleNotFoundError: onnx is not installed.
    """
    task = task_of(trained.experiment)
    if format_ == "onnx":
        import onnx  # noqa: F401, PLC0415  # before torch looks for it: its absence is then told as that of any package
    module, inputs = ExportedPolicy(trained.policy).eval(), example_inputs(trained.policy, task.observation_shape)
    out = io.BytesIO()
    about = json.dumps(description(trained))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript, which torch keeps and asks to replace
        if format_ == "torchscript":
            torch.jit.save(torch.jit.trace(module, inputs), out, _extra_files={METADATA: about})  # type: ignore[no-untyped-call]
            return out.getvalue()
        axes = {name: {0: "N"} for name in (*INPUTS, *OUTPUTS)} | {name: {2: "N"} for name in ("state", "next_state")}
        # By way of TorchScript: torch's newer exporter needs one package more, and makes the same graph in thirty times as long.
        torch.onnx.export(
            module,
            inputs,
            out,  # type: ignore[arg-type]  # a file is as good
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_axes=axes,
            dynamo=False,
        )
    return _with_metadata(out.getvalue(), about)


def _with_metadata(model: bytes, about: str) -> bytes:
    import onnx  # noqa: PLC0415  # only this format needs it

    loaded = onnx.load_from_string(model)
    onnx.helper.set_model_props(loaded, {METADATA: about})
    result: bytes = loaded.SerializeToString()
    return result


def description(trained: Trained) -> dict[str, object]:
    """What a program must know to play with the file."""
    task = task_of(trained.experiment)
    return {
        "task": task.name,
        "method": trained.experiment.method,
        "updates": trained.updates,
        "observation_shape": list(task.observation_shape),
        "actions": list(task.action_names) or task.num_actions,
        "state_shape": list(trained.policy.initial_state(1).shape),
        "inputs": list(INPUTS),
        "outputs": list(OUTPUTS),
    }


def load_step(model: bytes, format_: Format) -> Step:
    """An exported policy as a function, by the runtime of its format.

    Raises:
        ModuleNotFoundError: onnxruntime is not installed.
    """
    if format_ == "torchscript":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            script = torch.jit.load(io.BytesIO(model))  # type: ignore[no-untyped-call]

        def by_torch(*inputs: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.float32], ...]:
            with torch.no_grad():
                return tuple(each.numpy() for each in script(*map(torch.from_numpy, inputs)))

        return by_torch
    import onnxruntime  # noqa: PLC0415  # see above

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return lambda *inputs: tuple(session.run(None, dict(zip(INPUTS, inputs, strict=True))))


def check(step: Step, policy: Policy, task: Task, *, episodes: int = EPISODES, seed: int = 0) -> int:
    """Plays episodes by an exported policy's most probable actions, beside the policy itself.

    Returns:
        How many actions were compared.

    Raises:
        EvaluationError: they are not the same.
    """
    compared, reward_N = 0, np.zeros(episodes, np.float32)
    start_N, action_N, over_N = np.ones(episodes, bool), np.full(episodes, -1), np.zeros(episodes, bool)
    state = policy.initial_state(episodes)
    own_state, their_state = state, state.numpy()
    with closing(make(task, episodes, FRESH + seed)) as env, torch.inference_mode():
        observation_NO = env.reset()
        for _ in range(MOST_STEPS):
            given = (observation_NO, start_N, action_N, reward_N)
            output = policy(*(torch.from_numpy(each).unsqueeze(0) for each in given), own_state)
            own_NA, own_state = output.logits_TBA[0].numpy(), output.state
            logits_NA, _, their_state = step(*given, their_state)
            if not np.allclose(own_NA, logits_NA, rtol=0, atol=TOLERANCE):
                off = float(np.abs(own_NA - logits_NA).max())
                raise EvaluationError(f"after {compared} actions the exported policy's logits are off by {off:.3g}")
            compared += int((~over_N).sum())
            steps = env.step(logits_NA.argmax(1))
            over_N |= steps.done_E
            if over_N.all():
                break
            start_N, observation_NO = steps.done_E, steps.observation_EO
            action_N = np.where(start_N, -1, logits_NA.argmax(1))
            reward_N = np.where(start_N, np.float32(0), steps.reward_E)
    return compared
