"""Sample Factory's APPO on MiniGrid with the count bonus; `time_to_solve.py` runs it in Sample Factory's environment.

    python -m rivals.sample_factory_counts METRICS --env=MiniGrid-DoorKey-8x8-v0 --train_dir=FOLDER ...

After the file METRICS come Sample Factory's own flags. Environments run in its workers, which note in a file beside METRICS which
episodes were solved.
"""

from __future__ import annotations

import functools
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import minigrid  # noqa: F401  # it registers its tasks
from minigrid.wrappers import ImgObsWrapper
from rivals.count_bonus import CountBonus
from rivals.network import WIDTH, encoder
from rivals.successes import Successes
from sample_factory.algo.utils.context import global_model_factory  # type: ignore[import-not-found]
from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS, ExperimentStatus  # type: ignore[import-not-found]
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args  # type: ignore[import-not-found]
from sample_factory.envs.env_utils import register_env  # type: ignore[import-not-found]
from sample_factory.model.encoder import Encoder  # type: ignore[import-not-found]
from sample_factory.train import make_runner  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = {
    "algo": "APPO",
    "device": "cpu",
    "async_rl": True,
    "with_vtrace": False,
    "num_workers": 2,
    "num_envs_per_worker": 16,
    "worker_num_splits": 2,
    "rollout": 32,
    "recurrence": 32,
    "batch_size": 1024,
    "num_batches_per_epoch": 2,
    "num_epochs": 2,
    "learning_rate": 1e-3,
    "adam_eps": 1e-5,
    "exploration_loss_coeff": 0.02,
    "value_loss_coeff": 0.5,
    "max_grad_norm": 5.0,
    "gamma": 0.97,
    "gae_lambda": 0.9,
    "reward_scale": 10.0,
    "reward_clip": 1000.0,
    "use_rnn": True,
    "rnn_type": "lstm",
    "rnn_size": WIDTH,
    "rnn_num_layers": 1,
    "normalize_input": False,
    "normalize_returns": False,
    "summaries_use_frameskip": False,  # count actions
    "save_every_sec": 10**6,
}


class Cells(Encoder):  # type: ignore[misc]  # mypy does not see Sample Factory
    """leco's encoder."""

    def __init__(self, cfg: Any, _space: Any) -> None:
        super().__init__(cfg)
        self.layers = encoder()

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Features of cells."""
        features: Tensor = self.layers(observations["obs"])
        return features

    def get_out_size(self) -> int:
        """How many features there are."""
        return WIDTH


class Counted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the bonus to rewards, and notes which episodes were solved. The environments of a worker share the bonus's mean."""

    shared: CountBonus | None = None
    made = 0

    def __init__(self, env: gymnasium.Env[Any, Any], alpha: float, most: int, solved: Path) -> None:
        super().__init__(env)
        Counted.shared = Counted.shared or CountBonus(most, alpha)
        self._bonus, self._number, self._solved = Counted.shared, Counted.made % most, solved.open("a", buffering=1)
        Counted.made += 1

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        observation, info = self.env.reset(**settings)
        self._bonus.begin(self._number, observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps, counts and pays."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self._solved.write(f"{int(float(reward) > 0)}\n")
        bonus = self._bonus.add(self._number, observation)
        return observation, float(reward) + bonus, terminated, truncated, info


def make_env(solved: Path, name: str, cfg: Any, *_: Any, **__: Any) -> gymnasium.Env[Any, Any]:
    """One environment that shows its image alone, without gymnasium's checks of every step."""
    env = ImgObsWrapper(gymnasium.make(name, disable_env_checker=True))
    return Counted(env, cfg.alpha, cfg.num_envs_per_worker, solved)


def main() -> int:
    """Trains until Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
    metrics, flags = Path(sys.argv[1]), sys.argv[2:]
    ended = metrics.with_suffix(".episodes")
    ended.touch()

    parser, known = parse_sf_args(flags)
    parser.add_argument("--alpha", type=float, default=0.015)
    parser.set_defaults(**SETTINGS)
    register_env(known.env, functools.partial(make_env, ended))
    global_model_factory().register_encoder_factory(Cells)
    _, runner = make_runner(parse_full_cfg(parser, flags))
    successes = Successes(metrics)
    with ended.open() as file:

        def write(_runner: Any, message: dict[str, Any], _policy: int) -> None:
            for line in file:
                successes.ended(solved=line == "1\n")
            successes.write(message[LEARNER_ENV_STEPS])

        runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(write)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
