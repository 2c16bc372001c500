"""A trained policy for other programs: `leco export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from leco.checkpoint.atomic_file import atomic_write
from leco.checkpoint.state_file import SavedStateError
from leco.config.experiment import ConfigError, task_of
from leco.evaluation.export import check, export, load_step
from leco.evaluation.rollout import EvaluationError
from leco.evaluation.trained import trained_state
from leco.evaluation.zoo import find_run
from services.flags import Parser, new_file

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = """\
Writes the policy of a run, or of an entry of the zoo, as a file for ONNX Runtime or TorchScript. Its inputs are the observation,
whether an episode begins, the action and the reward before, and the recurrent state; its outputs are logits, value, and the next
state. Then it plays some episodes with the file, beside the policy itself: they must act the same."""
ENDINGS = {"onnx": ".onnx", "torchscript": ".pt"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Exports, checks, and says where the file is."""
    parser = Parser("leco export", description=DESCRIPTION)
    parser.add_argument("run", type=Path, help="the run's folder, or an entry of the zoo")
    parser.add_argument("--format", choices=tuple(ENDINGS), default="onnx", help="default: onnx")
    parser.add_argument("--output", type=new_file, metavar="FILE", help="default: the run's name, .onnx or .pt, here")
    parser.add_argument("--checkpoint", default="newest", help="as for `leco eval` (default: newest)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        run = find_run(given.run)
        trained = trained_state(run, given.checkpoint)
        path = given.output or new_file(f"{run.resolve().name}{ENDINGS[given.format]}")
        model = export(trained, given.format)
        try:
            step = load_step(model, given.format)
        except ModuleNotFoundError as error:
            verdict = f"not checked: the package {error.name} is not installed (pip install 'leco[export]')"
        else:
            task = task_of(trained.experiment)
            verdict = f"checked: the same actions, {check(step, trained.policy, task):,} of them in fresh episodes"
        atomic_write(path, model)
    except (ConfigError, SavedStateError, EvaluationError, OSError, ValueError) as error:  # the last: no simulator
        parser.refuse(error)
    sys.stdout.write(f"{path} ({len(model):,} bytes)\n{verdict}\n")


if __name__ == "__main__":
    main()
