"""One environment as leco's vectors of them want it: observations are bytes, actions numbers, and of `info` little is left.

Put around the others, in the process that steps them: then only bytes go from process to process, and whatever else is in `info`,
of which Gymnasium's vectors make arrays, cannot fail there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from leco.envs.gymnasium.actions import Actions
from leco.envs.gymnasium.making import make_one
from leco.envs.gymnasium.observations import Encoder

if TYPE_CHECKING:
    from leco.envs.task import EnvironmentConfig

SUCCESS = ("is_success", "success")  # what `info` may have of it


class Single(gymnasium.Wrapper[npt.NDArray[np.uint8], int, Any, Any]):
    """An environment whose observations are bytes, and whose actions are numbered.

    Args:
        env: Of any space that leco can learn from.
        masks: Whether it says which actions may be taken.
        success: What calls an episode solved; see `EnvironmentConfig`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, masks: bool, success: str) -> None:
        super().__init__(env)
        self._actions = Actions(env.action_space)
        self.encoder = Encoder(env.observation_space, self._actions.count if masks else 0)
        self._masks, self._success = masks, success
        self._threshold = (
            math.inf if env.spec is None or env.spec.reward_threshold is None else env.spec.reward_threshold
        )
        self._return = 0.0
        self.observation_space = gymnasium.spaces.Box(0, 255, self.encoder.layout.shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self._actions.count)  # type: ignore[assignment]  # whose numbers are numpy's
        self.num_actions = self._actions.count

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """The first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._return = 0.0
        return self.encoder.encode(observation, self._mask(info)), {}

    def step(self, action: int) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One action; where it ended an episode, `info` says whether it was solved."""
        observation, given, terminated, truncated, info = self.env.step(self._actions.decode(int(action)))
        reward = float(given)
        if not math.isfinite(reward):
            raise ValueError(f"{self.env} gave the reward {reward}, expected a finite number")
        self._return += reward
        done = bool(terminated or truncated)
        seen = self.encoder.encode(observation, self._mask(info, ended=done))
        return seen, reward, bool(terminated), bool(truncated), {"solved": self._solved(reward, info)} if done else {}

    def _mask(self, info: dict[str, Any], *, ended: bool = False) -> npt.NDArray[np.bool_] | None:
        """Which actions may be taken; after the end, where none is, all."""
        if not self._masks:
            return None
        if ended:
            return np.ones(self._actions.count, bool)
        return self._actions.mask(mask_of(self.env, info))

    def _solved(self, reward: float, info: dict[str, Any]) -> bool:
        if self._success == "info":
            return bool(next((info[name] for name in SUCCESS if name in info), False))
        if self._success == "reward":
            return reward > 0
        return self._success == "threshold" and self._return >= self._threshold


def mask_of(env: gymnasium.Env[Any, Any], info: dict[str, Any]) -> Any:
    """Which actions an environment says may be taken: in `info`, or by a method `action_masks`; None if it does not say."""
    if "action_mask" in info:
        return info["action_mask"]
    return env.get_wrapper_attr("action_masks")() if env.has_wrapper_attr("action_masks") else None


def make_single(name: str, given: EnvironmentConfig) -> Single:
    """One environment, as a configuration that says all of it describes it."""
    env = make_one(name, given.kwargs, given.wrappers or ())
    return Single(env, masks=given.masks, success=given.success or "none")
