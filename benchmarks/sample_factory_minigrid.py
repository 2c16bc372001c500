"""Sample Factory's APPO on MiniGrid with leco's policy network; `end_to_end.py` runs it in Sample Factory's own environment.

    python benchmarks/sample_factory_minigrid.py METRICS --env=MiniGrid-KeyCorridorS4R3-v0 --train_dir=FOLDER ...

After the file METRICS come Sample Factory's own flags. A line "frames,seconds" is added to the file with every update: the
learner's own count of the actions that it has trained on.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import minigrid  # noqa: F401  # registers its tasks with gymnasium
import torch
from minigrid.wrappers import ImgObsWrapper
from sample_factory.algo.utils.context import global_model_factory  # type: ignore[import-not-found]
from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS, ExperimentStatus  # type: ignore[import-not-found]
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args  # type: ignore[import-not-found]
from sample_factory.envs.env_utils import register_env  # type: ignore[import-not-found]
from sample_factory.model.encoder import Encoder  # type: ignore[import-not-found]
from sample_factory.train import make_runner  # type: ignore[import-not-found]
from torch import Tensor, nn

FEATURES = 256
SAME_AS_LECO = {
    "algo": "APPO",
    "device": "cpu",
    "async_rl": True,
    "with_vtrace": False,
    "rollout": 96,
    "recurrence": 96,
    "batch_size": 16 * 96,
    "num_batches_per_epoch": 1,
    "num_epochs": 1,
    "gamma": 0.99,
    "use_rnn": True,
    "rnn_type": "lstm",
    "rnn_size": FEATURES,
    "rnn_num_layers": 1,
    "normalize_input": False,  # leco does not
    "normalize_returns": False,
    "summaries_use_frameskip": False,  # count actions
}


class MiniGridEncoder(Encoder):  # type: ignore[misc]  # mypy does not see Sample Factory
    """The encoder of leco.models.kinds.minigrid.MiniGridPolicy."""

    def __init__(self, cfg: Any, _space: Any) -> None:
        super().__init__(cfg)
        layers = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ELU()),
            *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ELU()),
            *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ELU()),
            nn.Flatten(),
            nn.Linear(32, FEATURES),
        )
        self.layers = torch.jit.script(layers)  # as Sample Factory does with its own encoders

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Features [N, 256] of images [N, 7, 7, 3]."""
        feature_NF: Tensor = self.layers(observations["obs"].permute(0, 3, 1, 2).float())
        return feature_NF

    def get_out_size(self) -> int:
        """How many features there are."""
        return FEATURES


def make_env(name: str, *_: Any, **__: Any) -> gymnasium.Env[Any, Any]:
    """One environment that shows its image alone, without gymnasium's checks of every step."""
    return ImgObsWrapper(gymnasium.make(name, disable_env_checker=True))


def main() -> int:
    """Trains until Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
    metrics, flags = Path(sys.argv[1]), sys.argv[2:]
    parser, known = parse_sf_args(flags)
    parser.set_defaults(**SAME_AS_LECO)
    register_env(known.env, make_env)
    global_model_factory().register_encoder_factory(MiniGridEncoder)
    _, runner = make_runner(parse_full_cfg(parser, flags))
    with metrics.open("w", buffering=1) as file:
        file.write("frames,seconds\n")

        def write(_runner: Any, message: dict[str, Any], _policy: int) -> None:
            file.write(f"{message[LEARNER_ENV_STEPS]},{time.monotonic():.4f}\n")

        runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(write)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
