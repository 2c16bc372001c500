"""Stable-Baselines3's recurrent PPO (sb3-contrib) on MiniGrid with the count bonus; `time_to_solve.py` runs it.

python -m rivals.sb3_recurrent METRICS --task DoorKey-8x8 --seed 1
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import minigrid  # noqa: F401  # it registers its tasks
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from minigrid.wrappers import ImgObsWrapper
from rivals.count_bonus import CountBonus
from rivals.network import WIDTH, encoder
from rivals.successes import Successes
from sb3_contrib import RecurrentPPO  # type: ignore[import-not-found]  # of the rivals' environment
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnvWrapper

REWARD_SCALE = 10.0
CELLS = gymnasium.spaces.Box(0, 10, (7, 7, 3), np.uint8)  # no picture, whose values end at 255


class Shown(VectorEnv[Any, Any, Any]):
    """What environments have just done, for `leco.rewards.EpisodicCount`, which wraps those of Gymnasium."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.single_observation_space = num_envs, CELLS
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.last: tuple[Any, ...] = ()

    def reset(self, **_: Any) -> Any:
        """What they show."""
        return self.last

    def step(self, _actions: Any) -> Any:
        """What they have done."""
        return self.last


class Counted(VecEnvWrapper):
    """Adds the bonus to rewards, scales their sum, and notes which episodes were solved."""

    def __init__(self, venv: Any, count: str, alpha: float, successes: Successes) -> None:
        super().__init__(venv, observation_space=CELLS)
        self._successes, self._shown = successes, Shown(venv.num_envs)
        self._exact = CountBonus(venv.num_envs, alpha) if count == "exact" else None
        if self._exact is None:
            from leco.rewards import EpisodicCount  # noqa: PLC0415  # otherwise nothing of leco is needed

            self._lecos = EpisodicCount(self._shown, alpha=alpha)

    def reset(self) -> Any:
        """Begins all episodes."""
        observation_EHWC = self.venv.reset()
        if self._exact is None:
            self._shown.last = (observation_EHWC, {})
            self._lecos.reset()
        else:
            for e, observation in enumerate(observation_EHWC):
                self._exact.begin(e, observation)
        return observation_EHWC

    def step_wait(self) -> tuple[Any, Any, Any, Any]:
        """An episode that ended is followed by the next one at once."""
        observation_EHWC, reward_E, done_E, infos = self.venv.step_wait()
        last = [info.get("terminal_observation") for info in infos]
        for solved in reward_E[done_E] > 0:
            self._successes.ended(solved=bool(solved))
        bonus_E = self._pay(observation_EHWC, done_E, last)
        return observation_EHWC, REWARD_SCALE * (reward_E + bonus_E), done_E, infos

    def _pay(self, observation_EHWC: Any, done_E: Any, last: list[Any]) -> Any:
        bonus_E = np.zeros(self.num_envs, np.float32)
        if self._exact is None:
            self._shown.last = (observation_EHWC, bonus_E, done_E, np.zeros_like(done_E), {"final_obs": last})
            return self._lecos.step(None)[4]["bonus"]
        for e, observation in enumerate(observation_EHWC):
            bonus_E[e] = self._exact.add(e, last[e] if done_E[e] else observation)
            if done_E[e]:
                self._exact.begin(e, observation)
        return bonus_E


class Cells(BaseFeaturesExtractor):
    """leco's encoder."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__(space, WIDTH)
        self.layers = encoder()

    def forward(self, observation_NHWC: torch.Tensor) -> torch.Tensor:
        """Features of cells."""
        features: torch.Tensor = self.layers(observation_NHWC)
        return features


class Lines(BaseCallback):
    """A line of metrics after each rollout."""

    def __init__(self, successes: Successes) -> None:
        super().__init__()
        self._successes = successes

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._successes.write(self.num_timesteps)


def main() -> None:
    """Trains until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", type=Path)
    parser.add_argument("--task", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--entropy", type=float, default=0.02)
    parser.add_argument("--gae-lambda", type=float, default=0.9)
    parser.add_argument("--alpha", type=float, default=0.005)
    parser.add_argument(
        "--count", choices=("exact", "leco"), default="leco", help="of exact observations, or leco's own"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", action="store_true", help="environments in processes of their own")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    successes = Successes(given.metrics)
    made = make_vec_env(
        f"MiniGrid-{given.task}-v0",
        given.num_envs,
        seed=given.seed,
        wrapper_class=ImgObsWrapper,
        vec_env_cls=SubprocVecEnv if given.processes else DummyVecEnv,
    )
    model = RecurrentPPO(
        "MlpLstmPolicy",
        Counted(made, given.count, given.alpha, successes),
        learning_rate=given.learning_rate,
        n_steps=given.steps,
        batch_size=given.batch_size,
        n_epochs=given.epochs,
        gamma=0.97,
        gae_lambda=given.gae_lambda,
        ent_coef=given.entropy,
        max_grad_norm=5.0,
        policy_kwargs={
            "features_extractor_class": Cells,
            "normalize_images": False,
            "lstm_hidden_size": WIDTH,
            "net_arch": [],
            "shared_lstm": True,
            "enable_critic_lstm": False,
        },
        seed=given.seed,
        device="cpu",
    )
    model.learn(10**9, callback=Lines(successes))


if __name__ == "__main__":
    main()
