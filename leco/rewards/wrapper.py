"""A vector environment of Gymnasium that pays for what is new in its episodes.

E     environments        O...  shape of one observation
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from leco.methods.table import Hash
from leco.models.kinds.table import find_kind
from leco.rewards.bonus import EpisodicBonus
from leco.rewards.visits import MemoryCounter, Visits
from leco.rpc.channel import open_channel
from leco.rpc.hashcount_client import SERVICE, HashCountClient
from leco.words import did_you_mean

if TYPE_CHECKING:
    import numpy.typing as npt

    from leco.rewards.visits import Counter

HASHES = tuple(each.value for each in Hash if each is not Hash.NONE)
STEPS = 128  # of a batch that the bonus learns from, as many as the learner's unrolls have
PATIENCE_SECONDS = 20.0


class EpisodicCount(VectorWrapper):
    """Adds to each reward what the observation that an action led to is worth: `alpha` times the bonus.

    The bonus is LECO's episodic count as leco's own defaults have it: an observation is hashed, its code is counted in its
    episode, a first visit is paid by how rare such ones were lately, and all that less its running mean, in units of its
    running deviation. Nothing is paid in the first 128 steps of all environments, in which it learns what is rare; with a
    learned hash in the first 1,152.

    `info["extrinsic_reward"]` has the rewards of the task, float64 [E], and `info["bonus"]` what was added.

    Args:
        env: Its observations are uint8 [E, O...]: MiniGrid's cells, or pictures. It begins episodes by itself, in either of
            Gymnasium's two ways.
        hash: What makes two observations the same, by the names of `leco methods`: exact, dsc, cells, objects, or one that is
            learned on the way: vq-cells, vq-patches, vq or ae-lsh. Default: vq-cells for MiniGrid, vq-patches for pictures.
        worth: Of a count N: information (the log-odds of a first visit), first-visit (1 for the first), or inverse-sqrt
            (1 / sqrt(N)).
        alpha: The weight of the bonus.
        key: Which part of the observation counts, where it is a dictionary.
        hashcount: The address of a hash-count service that counts, "host:port"; without it, this process counts.
        run: By which the service tells these episodes from others.

    Raises:
        ValueError: these environments or observations cannot be counted; the message says why.

    Examples:
        >>> import gymnasium, minigrid
        >>> from minigrid.wrappers import ImgObsWrapper
        >>> envs = gymnasium.make_vec("MiniGrid-Empty-5x5-v0", 2, vectorization_mode="sync", wrappers=[ImgObsWrapper])
        >>> envs = EpisodicCount(envs, hash="cells", alpha=0.01)
        >>> observations, _ = envs.reset(seed=1)
        >>> observations, rewards, terminated, truncated, info = envs.step([2, 2])
        >>> info["bonus"]  # nothing is known yet of what is rare
        array([0., 0.], dtype=float32)
    """

    def __init__(
        self,
        env: VectorEnv,
        *,
        hash: str | None = None,  # noqa: A002  # the setting's name
        worth: Literal["information", "first-visit", "inverse-sqrt"] = "information",
        alpha: float = 0.005,
        key: str | None = None,
        hashcount: str | None = None,
        run: str = "rewards",
    ) -> None:
        super().__init__(env)
        self._mode = _autoreset(env)
        space: Any = env.single_observation_space
        space = space if key is None else space[key]
        if getattr(space, "dtype", None) != np.uint8:
            raise ValueError(
                f"EpisodicCount counts observations of bytes, and these are {space}: wrap the environment so that it gives "
                "uint8 pictures or cells, or name such a part of a dictionary by `key`"
            )
        kind = find_kind(tuple(space.shape))
        hash = ("vq-cells" if kind.has_cells else "vq-patches") if hash is None else hash  # noqa: A001
        if hash not in HASHES:
            hint = did_you_mean(hash, HASHES, f"there are {', '.join(HASHES)}")
            raise ValueError(f"there is no hash {hash!r}; {hint}")
        self._key, self._alpha = key, alpha
        self._bonus = EpisodicBonus(kind, Hash(hash), worth)
        width = self._bonus.hash.width
        self._channel = None if hashcount is None else open_channel(hashcount, service=SERVICE)
        counter: Counter = MemoryCounter(width)
        if self._channel is not None:
            counter = HashCountClient(self._channel, run=run, code_width=width, patience_seconds=PATIENCE_SECONDS)
        self._visits = Visits(counter, self._bonus.hash.levels, env.num_envs)
        self._ended_E = np.zeros(env.num_envs, bool)
        self._kept: list[tuple[npt.NDArray[Any], ...]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes."""
        observation, info = self.env.reset(seed=seed, options=options)
        code_EW = self._bonus.hash.codes(self._seen(observation))
        for e, code_W in enumerate(code_EW):
            self._visits.begin(e, code_W)
        self._visits.count()
        self._ended_E = np.zeros(self.num_envs, bool)
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps, counts and pays."""
        observation, reward_E, terminated_E, truncated_E, info = self.env.step(actions)
        done_E = np.logical_or(terminated_E, truncated_E)
        led_to_EO = now_EO = self._seen(observation)
        acted_E = np.ones(self.num_envs, bool)
        if self._mode is AutoresetMode.NEXT_STEP:
            acted_E = (
                ~self._ended_E
            )  # where an episode has ended, the action is not taken: this is the first of the next
        elif done_E.any():
            led_to_EO = self._with_last(now_EO, done_E, info)
        code_EW = self._bonus.hash.codes(led_to_EO)
        for e in range(self.num_envs):
            if acted_E[e]:
                self._visits.add(e, code_EW[e], final=bool(done_E[e]))
            else:
                self._visits.begin(e, code_EW[e])
        if self._mode is AutoresetMode.SAME_STEP and done_E.any():
            for e, code_W in zip(np.flatnonzero(done_E).tolist(), self._bonus.hash.codes(now_EO[done_E]), strict=True):
                self._visits.begin(e, code_W)
        count_EL = self._visits.count()
        paid_E = acted_E & (count_EL[:, 0] > 0)
        bonus_E = np.where(paid_E, np.float32(self._alpha) * self._bonus.pay(count_EL, code_EW), np.float32(0))
        self._keep(led_to_EO[paid_E], count_EL[paid_E], code_EW[paid_E])
        self._ended_E = done_E
        info = {**info, "extrinsic_reward": reward_E, "bonus": bonus_E}
        return observation, reward_E + bonus_E, terminated_E, truncated_E, info

    def close(self, **kwargs: Any) -> None:
        """Closes the environments, and the connection to the service."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.env.close(**kwargs)

    def _seen(self, observation: Any) -> npt.NDArray[np.uint8]:
        """The part that counts, and a copy of it: an environment may write its next observation into the same memory."""
        return np.array(observation if self._key is None else observation[self._key], np.uint8)

    def _with_last(
        self, now_EO: npt.NDArray[np.uint8], done_E: npt.NDArray[np.bool_], info: dict[str, Any]
    ) -> npt.NDArray[np.uint8]:
        """Observations with the true last ones where an episode has ended and the next one has begun."""
        led_to_EO = now_EO.copy()
        for e in np.flatnonzero(done_E).tolist():
            led_to_EO[e] = self._seen(info["final_obs"][e])
        return led_to_EO

    def _keep(self, *step: npt.NDArray[Any]) -> None:
        """Learns from all steps since the last time, if they are enough."""
        self._kept.append(step)
        if len(self._kept) == STEPS:
            batch = [np.concatenate(each) for each in zip(*self._kept, strict=True)]
            self._kept = []
            if len(batch[0]):  # none if the service was away all the time
                self._bonus.learn(*batch)


def _autoreset(env: VectorEnv) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        raise ValueError(
            "EpisodicCount needs environments that begin their episodes by themselves: make them with "
            "autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP, or NEXT_STEP"
        )
    return AutoresetMode(mode)
