"""A stand-in for the module `deepmind_lab`, which no package registry has: its interface and its strictness, without a game.

What it refuses, the real module refuses, or calls undefined. It is deterministic: pictures depend on the level, the seed and
the frame. Row 0 of a picture spells the action of the last frame, row 1 the frame, the seed, the episode and num_steps.
Each frame gives 1 for FIRE and 0.25 for moving forward.

The variable DMLAB_STAND_IN is JSON that makes it misbehave:

    frames        the episode ends after so many frames; 14,400 if not given
    step, reset, constructor   {"do": crash | exit | hang | raise | noise, "at": frame or number of the reset, "once": file}
                  once: only in the one process that succeeds in making this file
    renderer      the only one that it takes
    compiled      a folder that gets a file for each level that was compiled and not taken from the cache
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

_LEVELS = ("small", "large")
_ACTIONS = [
    ("LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", -512, 512),
    ("LOOK_DOWN_UP_PIXELS_PER_FRAME", -512, 512),
    ("STRAFE_LEFT_RIGHT", -1, 1),
    ("MOVE_BACK_FORWARD", -1, 1),
    ("FIRE", 0, 1),
    ("JUMP", 0, 1),
    ("CROUCH", 0, 1),
]


def _text(value: Any, what: str) -> str:
    if type(value) is not str:
        raise TypeError(f"{what} must be str, not {type(value).__name__}")
    return value


class Lab:
    """One engine."""

    def __init__(  # noqa: PLR0917  # as the real one
        self,
        level: str,
        observations: list[str],
        config: dict[str, str] | None = None,
        renderer: str = "software",
        level_cache: Any = None,
        temp_folder: str = "",
    ) -> None:
        self._hooks = json.loads(os.environ.get("DMLAB_STAND_IN", "{}"))
        self._status = "closed"
        self._misbehave("constructor", 0)
        if type(observations) is not list or not (config is None or type(config) is dict):
            raise TypeError("observations must be list, config must be dict")
        if _text(renderer, "renderer") not in ("software", "hardware"):
            raise RuntimeError(f'Failed to set renderer must be "hardware" or "software" actual "{renderer}"!')
        if renderer != self._hooks.get("renderer", renderer):
            raise RuntimeError(f"the renderer is {renderer}")
        if _text(level, "level") not in [f"contributed/dmlab30/lasertag_three_opponents_{each}" for each in _LEVELS]:
            raise RuntimeError(f"Invalid levelName flag '{level}'")
        settings = {"width": "320", "height": "240", "fps": "60", "mixerSeed": "0"}
        settings.update({_text(key, "key"): _text(value, "value") for key, value in (config or {}).items()})
        for name in observations:
            if _text(name, "observation") != "RGB_INTERLEAVED":
                raise ValueError(f"Unknown observation '{name}'.")
        self._observations = observations
        self._level, self._cache, self._mixer = level, level_cache, settings["mixerSeed"]
        self._shape = (int(settings["height"]), int(settings["width"]), 3)
        self._fps = int(settings["fps"])
        self._folder = temp_folder or tempfile.mkdtemp(prefix="dmlab_temp_folder_")
        self._owned = not temp_folder
        self._status, self._episode, self._frame, self._resets = "uninitialized", 0, 0, 0

    def reset(self, episode: int = -1, seed: int | None = None) -> bool:
        if self._status == "closed":
            raise RuntimeError("Environment in wrong status for call to reset()")
        if type(episode) is not int or not -(2**31) <= episode < 2**31:
            raise TypeError(f"episode must be a C int, not {episode!r}")
        if type(seed) is not int:
            raise ValueError(f"'seed' must be int or None, was '{type(seed).__name__}'.")
        if not 0 <= seed < 2**31:
            raise ValueError(f"the seed {seed} would be cut to 32 bits")
        self._resets += 1
        self._misbehave("reset", self._resets)
        self._load(seed)
        self._episode = episode if episode >= 0 else self._episode
        self._seed, self._frame, self._status = seed, 0, "running"
        self._action, self._num_steps = np.zeros(7, np.intc), 0
        self._background = np.random.RandomState(seed).randint(0, 256, self._shape).astype(np.uint8)
        return True

    def step(self, action: Any, num_steps: int = 1) -> float:
        if type(action) is not np.ndarray or type(num_steps) is not int:
            raise TypeError("action must be numpy.ndarray, num_steps int")
        if self._status != "running":
            raise RuntimeError("Environment in wrong status to advance.")
        if action.shape != (7,):
            raise ValueError("action must have shape (7)")
        if action.dtype != np.intc:
            raise ValueError("action must have dtype np.intc")
        for value, (name, low, high) in zip(action, _ACTIONS):  # noqa: B905  # Python 3.7 knows no strict
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, not in [{low}, {high}]")
        self._action, self._num_steps = action.copy(), num_steps
        reward = 0.0
        for _ in range(num_steps):
            self._frame += 1
            self._misbehave("step", self._frame)
            reward += float(action[4]) + 0.25 * float(action[3] == 1)
            if self._frame >= self._hooks.get("frames", 240 * self._fps):
                self._status = "ended"
                break
        return reward

    def is_running(self) -> bool:
        return self._status == "running"

    def observations(self) -> dict[str, Any]:
        if self._status != "running":
            raise RuntimeError("Environment in wrong status for call to observations()")
        picture = np.roll(self._background, self._frame, axis=1)
        numbers = np.zeros((2, 7), "<i4")
        numbers[0] = self._action
        numbers[1, :4] = self._frame, self._seed, self._episode, self._num_steps
        for row in range(2):
            flat = picture[row].reshape(-1)
            flat[:28] = np.frombuffer(numbers[row].tobytes(), np.uint8)
        return {"RGB_INTERLEAVED": picture} if self._observations else {}

    def action_spec(self) -> list[dict[str, Any]]:
        return [{"name": name, "min": low, "max": high} for name, low, high in _ACTIONS]

    def observation_spec(self) -> list[dict[str, Any]]:
        return [{"name": "RGB_INTERLEAVED", "dtype": np.uint8, "shape": self._shape}]

    def num_steps(self) -> int:
        return self._frame

    def fps(self) -> int:
        return self._fps

    def close(self) -> bool:
        closed = self._status != "closed"
        self._status = "closed"
        if closed and self._owned:
            shutil.rmtree(self._folder)
        return closed

    def _load(self, seed: int) -> None:
        """Compiles the level unless the cache has it, as the engine does."""
        key = f"{self._level}/{self._mixer}/{seed}"  # slashes: whoever takes it for a path will see
        path = str(Path(self._folder) / "level.pk3")
        level = (key * 1000).encode()
        if self._cache is not None:
            fetched = self._cache.fetch(key, path)
            if type(fetched) is not bool:
                raise TypeError("fetch must return a bool")
            if fetched:
                if Path(path).read_bytes() != level:
                    raise RuntimeError("the cache gave another level")
                return
        if "compiled" in self._hooks:
            tempfile.mkstemp(dir=self._hooks["compiled"], prefix=f"{seed}-")
        Path(path).write_bytes(level)
        if self._cache is not None:
            self._cache.write(key, path)

    def _misbehave(self, where: str, now: int) -> None:
        hook = self._hooks.get(where)
        if hook is None or hook.get("at", now) != now:
            return
        if "once" in hook:
            try:
                Path(hook["once"]).touch(exist_ok=False)
            except FileExistsError:
                return
        sys.stderr.write(f"stand-in: {hook['do']} in {where}\n")
        sys.stderr.flush()
        if hook["do"] == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif hook["do"] == "exit":
            os._exit(7)
        elif hook["do"] == "hang":
            time.sleep(3600)
        elif hook["do"] == "raise":
            raise ValueError("Failed to advance environment")
        elif hook["do"] == "noise":
            os.write(1, b"\x13\x00\x00 noise " * 20_000)
