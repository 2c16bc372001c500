"""DeepMind Lab: one engine a process, all of them stepped at the same time. See docs/dmlab.md.

E     environments
F     episodes that ended in this step
O...  shape of one observation: 72, 96, 3
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from leco.envs.dmlab import engine as wire
from leco.envs.dmlab.process import SHAPE, Engine, gather, not_installed
from leco.envs.vector import Steps, checked_actions, checked_num_envs, checked_seed, episode_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leco.envs.dmlab.process import EngineError

_log = logging.getLogger(__name__)

REPEAT = 4  # frames an action lasts; DeepMind Lab has 60 a second
MAX_STEPS = 3600  # the levels' own 240 seconds
# Look right, look down, strafe right, move forward, fire, jump, crouch; docs/dmlab.md says where they come from.
ACTIONS = (
    (0, 0, 0, 1, 0, 0, 0),  # forward
    (0, 0, 0, -1, 0, 0, 0),  # backward
    (0, 0, -1, 0, 0, 0, 0),  # strafe left
    (0, 0, 1, 0, 0, 0, 0),  # strafe right
    (-10, 0, 0, 0, 0, 0, 0),  # look left a little
    (10, 0, 0, 0, 0, 0, 0),  # look right a little
    (-60, 0, 0, 0, 0, 0, 0),  # look left
    (60, 0, 0, 0, 0, 0, 0),  # look right
    (0, 10, 0, 0, 0, 0, 0),  # look down
    (0, -10, 0, 0, 0, 0, 0),  # look up
    (-10, 0, 0, 1, 0, 0, 0),  # forward, looking left a little
    (10, 0, 0, 1, 0, 0, 0),  # forward, looking right a little
    (-60, 0, 0, 1, 0, 0, 0),  # forward, looking left
    (60, 0, 0, 1, 0, 0, 0),  # forward, looking right
    (0, 0, 0, 0, 1, 0, 0),  # fire
)
SEEDS = 2**31  # that the module takes
GIVE_UP_AFTER = 5  # engines of one environment that failed, without a step between
CLOSE_SECONDS = 5.0  # for engines to end by themselves


@dataclass(frozen=True, slots=True)
class Machine:
    """What belongs to this machine and not to an experiment: environment variables, LECO_DMLAB_... in front.

    python                      PYTHON: the interpreter that has deepmind_lab; this one if it is not set
    cache                       CACHE: folder of compiled levels; `off` for none
    cache_bytes                 CACHE_GB: how large it may grow
    renderer                    RENDERER: software, or hardware for a graphics card
    step_seconds, reset_seconds STEP_SECONDS, RESET_SECONDS: an engine that takes longer is taken to hang
    levels                      LEVELS: play only so many different levels, seeds 0 and up, so that all can be in the cache
    """

    python: str
    cache: Path | None
    cache_bytes: int
    renderer: str
    step_seconds: float
    reset_seconds: float
    levels: int | None = None

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> Machine:
        """Reads the variables. Raises a ValueError that names the one that cannot be."""

        def text(name: str, default: str) -> str:
            return variables.get(f"LECO_DMLAB_{name}", "") or default

        def positive(name: str, default: str) -> float:
            value = text(name, default)
            with contextlib.suppress(ValueError):
                if 0 < float(value) < float("inf"):
                    return float(value)
            raise ValueError(f"LECO_DMLAB_{name} is {value!r}, expected a number above 0")

        levels = text("LEVELS", str(SEEDS))
        if not levels.isascii() or not levels.isdigit() or not 0 < int(levels) <= SEEDS:
            raise ValueError(f"LECO_DMLAB_LEVELS is {levels!r}, expected a whole number from 1 to {SEEDS}")
        renderer = text("RENDERER", "software")
        if renderer not in ("software", "hardware"):
            raise ValueError(f"LECO_DMLAB_RENDERER is {renderer!r}, expected software or hardware")
        users = Path(variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME") or tempfile.gettempdir()) / ".cache")
        cache = text("CACHE", str(users / "leco" / "dmlab"))
        return cls(
            python=text("PYTHON", sys.executable),
            cache=None if cache == "off" else Path(cache).absolute(),
            cache_bytes=int(positive("CACHE_GB", "10") * 1e9),
            renderer=renderer,
            step_seconds=positive("STEP_SECONDS", "60"),
            reset_seconds=positive("RESET_SECONDS", "300"),
            levels=None if int(levels) == SEEDS else int(levels),
        )

    def configuration(self, level: str) -> bytes:
        """The first message to an engine that plays this level."""
        settings = {"width": SHAPE[1], "height": SHAPE[0], "fps": 60, "mixerSeed": 0, "logLevel": "WARN"}
        configuration = {
            "level": level,
            "settings": {key: str(value) for key, value in settings.items()},  # the module takes nothing but texts
            "renderer": self.renderer,
            "cache": None if self.cache is None else str(self.cache),
            "cache_bytes": self.cache_bytes,
            "repeat": REPEAT,
            "shape": SHAPE,
        }
        return json.dumps(configuration).encode()


class DmlabEnv:
    """E environments of one level; see `FixedLengthEnv`. Rewards are the level's own, and no episode is called a success.

    An engine that crashes or hangs is replaced, and its episode ends where it was last seen.

    Args:
        level: As DeepMind Lab calls it, for example contributed/dmlab30/lasertag_three_opponents_small.
        num_envs: How many.
        seed: The map of episode k of environment e depends on (seed, e, k) alone. Where players start, and what is seen later,
            does not: the engine draws that itself.
        machine: Read from the environment variables if it is not given.

    Raises:
        ValueError: a setting is wrong, or the interpreter or DeepMind Lab cannot be used; the message says what to do.

    Attributes:
        dropped_episodes: How many ended because their engine failed.
        dropped_E: bool [E], whether the episode that ended in the last step did, or was cut to spread ends.
    """

    def __init__(self, level: str, num_envs: int, seed: int, *, machine: Machine | None = None) -> None:
        self._machine = machine = Machine.from_environment() if machine is None else machine
        self._seed = checked_seed(seed)
        self.dropped_episodes = 0
        if machine.cache is not None:
            _look_at(machine.cache)
        first_message = machine.configuration(level)
        self._engines = [Engine(machine.python, first_message) for _ in range(checked_num_envs(num_envs))]
        self._episode_E = [-1] * num_envs
        self._length_E = [0] * num_envs
        self._limit_E = [MAX_STEPS] * num_envs
        self._failures_E = [0] * num_envs
        self.dropped_E = np.zeros(num_envs, np.bool_)
        self._seen_EO: npt.NDArray[np.uint8] | None = None
        self._try_one(level)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """O..., the shape of one observation."""
        return SHAPE

    @property
    def num_actions(self) -> int:
        """How many actions there are."""
        return len(ACTIONS)

    @property
    def num_envs(self) -> int:
        """E, how many environments there are."""
        return len(self._engines)

    def reset(self, seed: int | None = None, *, first_lengths: Sequence[int] | None = None) -> npt.NDArray[np.uint8]:
        """Starts every environment at its episode 0."""
        if not self._engines:
            raise RuntimeError("the environments have been closed")
        if seed is not None:
            self._seed = checked_seed(seed)
        self._episode_E = [-1] * len(self._engines)
        self._limit_E = list(first_lengths or [MAX_STEPS] * self.num_envs)
        self._seen_EO = np.zeros((len(self._engines), *SHAPE), np.uint8)
        self._begin(range(len(self._engines)))
        return self._seen_EO.copy()

    def step(self, action_E: npt.ArrayLike) -> Steps:
        """Takes one action in each environment: four frames of the engine."""
        if self._seen_EO is None:
            raise RuntimeError("reset() must be called before step()")
        action_E = checked_actions(action_E, len(self._engines), len(ACTIONS))
        for engine, action in zip(self._engines, action_E, strict=True):
            engine.act(ACTIONS[action])
        answers, lost = gather(dict(enumerate(self._engines)), self._machine.step_seconds)
        reward_E = np.zeros(len(self._engines), np.float32)
        done_E = np.zeros(len(self._engines), np.bool_)
        self.dropped_E = np.zeros(len(self._engines), np.bool_)
        for e, content in answers.items():
            self._failures_E[e] = 0
            self._length_E[e] += 1
            reward_E[e], running = wire.OUTCOME.unpack_from(content)
            done_E[e] = not running or self._length_E[e] >= self._limit_E[e]
            self.dropped_E[e] = running and self._limit_E[e] <= self._length_E[e] < MAX_STEPS
            if running:  # else the engine shows nothing: the episode ends with what was seen before
                self._seen_EO[e] = _picture(content[wire.OUTCOME.size :])
        for e, error in lost.items():
            self._drop(e, error)
            done_E[e] = self.dropped_E[e] = True
        terminal_FO = self._seen_EO[done_E]
        ended = np.flatnonzero(done_E).tolist()
        for e in ended:
            self._limit_E[e] = MAX_STEPS
        self._begin(ended)
        return Steps(self._seen_EO.copy(), reward_E, done_E, np.zeros_like(done_E), terminal_FO)

    def close(self) -> None:
        """Ends all engines."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for engine in self._engines:
            engine.leave()
        for engine in self._engines:
            engine.wait(max(deadline - time.monotonic(), 0.01))
        self._engines, self._seen_EO = [], None

    def _try_one(self, level: str) -> None:
        """Starts the first engine, so that a machine that cannot play says so at once."""
        python, advice = self._machine.python, "LECO_DMLAB_PYTHON names the interpreter to use, see docs/dmlab.md"
        try:
            self._engines[0].start()
        except OSError as error:
            raise ValueError(f"cannot run {python} ({error.strerror}): {advice}") from None
        _, lost = gather({0: self._engines[0]}, self._machine.reset_seconds)
        if not lost:
            return
        words = self._engines[0].words()
        self._engines[0].kill()
        if lost[0].missing:
            raise not_installed(python, lost[0])
        raise ValueError(
            f"DeepMind Lab cannot play {level}: its process {lost[0]}{words}; it ran in {python}, which must be Python 3.7 to "
            f"3.11 with numpy and deepmind_lab; {advice}"
        )

    def _begin(self, environments: Iterable[int]) -> None:
        """Starts the next episode of each of these environments; one that cannot be started is dropped for the one after."""
        assert self._seen_EO is not None  # noqa: S101  # there has been a reset
        todo = list(environments)
        while todo:
            for e in todo:
                self._episode_E[e] += 1
                self._length_E[e] = 0
                seed = (episode_seed(self._seed, e, self._episode_E[e]) >> 33) % (self._machine.levels or SEEDS)
                self._engines[e].begin(self._episode_E[e] % 2**31, seed)
            answers, lost = gather({e: self._engines[e] for e in todo}, self._machine.reset_seconds)
            for e, content in answers.items():
                self._seen_EO[e] = _picture(content)
            for e, error in lost.items():
                self._drop(e, error)
            todo = sorted(lost)

    def _drop(self, e: int, error: EngineError) -> None:
        """Gives up the episode and its engine; the next episode starts another."""
        engine = self._engines[e]
        words = engine.words()
        engine.kill()
        self.dropped_episodes += 1
        self._failures_E[e] += 1
        _log.warning("dropped episode %d of environment %d: its engine %s%s", self._episode_E[e], e, error, words)
        if self._failures_E[e] >= GIVE_UP_AFTER:
            self.close()
            raise RuntimeError(
                f"the engine of environment {e} failed {GIVE_UP_AFTER} times without a step between; the last one {error}{words}"
            )


def _look_at(cache: Path) -> None:
    """Makes the folder, and warns if it is of little use. Nobody needs it to play."""
    advice = "LECO_DMLAB_CACHE names another folder, or is off"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _log.warning("compiled levels are not kept: cannot make %s (%s); %s", cache, error.strerror, advice)
        return
    if not os.access(cache, os.W_OK | os.X_OK):
        _log.warning("new levels are not kept: %s cannot be written to; %s", cache, advice)


def _picture(content: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8).reshape(SHAPE)
