"""Stable-Baselines3's PPO on MiniGrid, with leco's episodic count as an intrinsic reward, or without it.

    python examples/sb3_ppo.py                 # with the bonus
    python examples/sb3_ppo.py --alpha 0       # the same PPO without it

Needs `pip install 'leco[actor,hashcount]' stable-baselines3`. docs/how-to/add-the-bonus-to-your-loop.md explains it.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import gymnasium
import minigrid  # noqa: F401  # it registers its environments
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from minigrid.wrappers import ImgObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch.nn.functional import one_hot

from leco.rewards import EpisodicCount

if TYPE_CHECKING:
    from collections.abc import Sequence

REWARD_SCALE = 10.0  # PPO learns the value of rewards near 1, and MiniGrid pays once in an episode


class AsVecEnv(VecEnv):
    """Environments of Gymnasium (autoreset SAME_STEP) as those of Stable-Baselines3."""

    def __init__(self, envs: VectorEnv) -> None:
        cells = gymnasium.spaces.Box(
            0, 10, envs.single_observation_space.shape, np.uint8
        )  # no picture, whose values end at 255
        super().__init__(envs.num_envs, cells, envs.single_action_space)
        self._envs, self._actions = envs, np.zeros(0)

    def reset(self) -> np.ndarray:
        return self._envs.reset(seed=self._seeds[0])[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observation, reward, terminated, truncated, info = self._envs.step(self._actions)
        extrinsic = info.get("extrinsic_reward", reward)
        infos: list[dict[str, Any]] = [{"extrinsic_reward": float(each)} for each in extrinsic]
        for e in np.flatnonzero(terminated | truncated):
            infos[e]["terminal_observation"] = info["final_obs"][e]
            infos[e]["TimeLimit.truncated"] = bool(truncated[e] and not terminated[e])
        return observation, REWARD_SCALE * reward, terminated | truncated, infos

    def close(self) -> None:
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ARG002
        return [getattr(self._envs, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:  # noqa: ARG002
        return [False] * self.num_envs


class OneHotCells(BaseFeaturesExtractor):
    """MiniGrid's cells as categories: object, colour and state."""

    VALUES = (11, 6, 4)

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        height, width, _ = space.shape
        super().__init__(space, height * width * sum(self.VALUES))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        channels = zip(observation.long().unbind(-1), self.VALUES, strict=True)
        return torch.cat([one_hot(channel, count) for channel, count in channels], -1).flatten(1).float()


class Successes(BaseCallback):
    """The share of the last 100 episodes that the task rewarded, for every rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, float, float]] = []  # steps, share, seconds
        self._recent: deque[bool] = deque(maxlen=100)
        self._begin = time.process_time()

    def _on_step(self) -> bool:
        for done, info in zip(self.locals["dones"], self.locals["infos"], strict=True):
            if done:
                self._recent.append(info["extrinsic_reward"] > 0)
        return True

    def _on_rollout_end(self) -> None:
        share = float(np.mean(self._recent)) if self._recent else 0.0
        self.lines.append((self.num_timesteps, share, time.process_time() - self._begin))
        if len(self.lines) % 10 == 0:
            sys.stdout.write(f"{self.num_timesteps:>9,} steps   {100 * share:3.0f} % of the last 100 episodes solved\n")
            sys.stdout.flush()


def train(task: str, *, steps: int, alpha: float, seed: int, num_envs: int = 16) -> list[tuple[int, float, float]]:
    """Trains; returns steps, success and processor seconds after each rollout."""
    envs: VectorEnv = gymnasium.make_vec(
        f"MiniGrid-{task}-v0",
        num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        wrappers=[ImgObsWrapper],
    )
    torch.manual_seed(seed)
    if alpha > 0:
        envs = EpisodicCount(envs, alpha=alpha)
    model = PPO(
        "MlpPolicy",
        AsVecEnv(envs),
        learning_rate=7e-4,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        gamma=0.97,
        gae_lambda=0.9,
        ent_coef=0.02,
        policy_kwargs={"features_extractor_class": OneHotCells, "normalize_images": False, "net_arch": [64, 64]},
        seed=seed,
        device="cpu",
    )
    successes = Successes()
    model.learn(steps, callback=successes)
    envs.close()
    return successes.lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, and writes the curve to a file if one is named."""
    parser = argparse.ArgumentParser(description="Stable-Baselines3's PPO with leco's episodic count.")
    parser.add_argument("--task", default="MultiRoom-N6")
    parser.add_argument("--steps", type=float, default=4e5)
    parser.add_argument("--alpha", type=float, default=0.005, help="the weight of the bonus; 0 for none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", help="a file for the curve")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines = train(given.task, steps=int(given.steps), alpha=given.alpha, seed=given.seed)
    if given.csv:
        with open(given.csv, "w", newline="") as file:  # noqa: PTH123
            writer = csv.writer(file)
            writer.writerow(("steps", "success", "cpu_seconds"))
            writer.writerows((steps, f"{share:g}", f"{seconds:.1f}") for steps, share, seconds in lines)


if __name__ == "__main__":
    main()
