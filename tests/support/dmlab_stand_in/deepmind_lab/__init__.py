"""A stand-in for the package `deepmind_lab`, which no registry has: its interface, as strict and as lax, without a game.

It refuses what the real one refuses (google-deepmind/lab, b1db91a) with its words, and dies where that one dies. Row 0 of a
picture spells the action of the last frame, row 1 the frame, the seed, the episode and num_steps. The rest is the map, which
follows the seed, seen from a start that does not: the real engine draws it with rand(). Each frame gives 1 for FIRE and 0.25
for moving forward.

The variable DMLAB_STAND_IN is JSON that makes it misbehave:

    frames        the episode ends after so many frames; 14,400 if not given
    step, reset, constructor   {"do": crash | exit | hang | raise | noise | compile, "at": frame or number of the reset,
                  "once": file}; once: only in the one process that succeeds in making this file; compile: fails as the real
                  engine does without the program zip, the cause first and a long traceback behind it
    renderer      the only one that it takes
    compiled      a folder that gets a file for each level that was compiled and not taken from the cache
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import operator
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

for _needed in ("imp", "dm_env", "pkg_resources"):  # the real one imports them, so it wants Python 3.11 or older
    importlib.import_module(_needed)

_LEVELS = ("small", "large")
_SETTINGS = {"width": "320", "height": "240", "fps": "60", "mixerSeed": "0", "logLevel": "INFO"}
_NOT_GIVEN: Any = {}
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
    if not isinstance(value, str):
        raise TypeError(f"{what} must be str, not {type(value).__name__}")
    return value


def _die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


class Lab:
    """One engine."""

    def __init__(  # noqa: PLR0917  # as the real one
        self,
        level: str,
        observations: list[str],
        config: dict[str, str] = _NOT_GIVEN,
        renderer: str = "software",
        level_cache: Any = None,
        temp_folder: str = "",
    ) -> None:
        self._hooks = json.loads(os.environ.get("DMLAB_STAND_IN", "{}"))
        self._status = "closed"
        self._misbehave("constructor", 0)
        if not isinstance(observations, list) or not isinstance(config, dict):
            raise TypeError(f"observations must be list, config must be dict, not {type(config).__name__}")
        if _text(renderer, "renderer") not in ("software", "hardware"):
            raise RuntimeError(f'Failed to set renderer must be "hardware" or "software" actual "{renderer}"!')
        if renderer != self._hooks.get("renderer", renderer):
            raise RuntimeError(f"the renderer is {renderer}")
        settings = dict(_SETTINGS)
        settings.update({_text(key, "key"): _text(value, "value") for key, value in config.items()})
        if _text(level, "level") not in [f"contributed/dmlab30/lasertag_three_opponents_{each}" for each in _LEVELS]:
            raise RuntimeError(f'Failed to init environment - "Level not found: Failed to open file {level}.lua"')
        for key, value in settings.items():
            if key not in _SETTINGS:
                raise RuntimeError(f'Failed to init environment - "Invalid setting: "{key}" = "{value}""')
        for name in observations:
            if _text(name, "observation") != "RGB_INTERLEAVED":
                raise ValueError(f"Unknown observation '{name}'.")
        self._observations = observations
        self._level, self._cache, self._mixer = level, level_cache, settings["mixerSeed"]
        self._shape = (int(settings["height"]), int(settings["width"]), 3)
        self._fps = int(settings["fps"])
        self._folder = temp_folder or tempfile.mkdtemp(prefix="dmlab_temp_folder_")
        self._owned = not temp_folder
        self._status, self._episode, self._frame, self._resets, self._asked = "uninitialized", 0, 0, 0, 0

    def reset(self, episode: int = -1, seed: int | None = None) -> bool:
        if self._status == "closed":
            _die()
        episode = operator.index(episode)
        if not -(2**31) <= episode < 2**31:
            raise OverflowError("signed integer is greater than maximum")
        if seed is None:
            seed = random.SystemRandom().randrange(2**31)
        if not isinstance(seed, int):
            raise ValueError(  # noqa: TRY004  # as the real one
                f"'seed' must be int or None, was '{type(seed).__name__}'."
            )
        seed = ctypes.c_int(seed).value  # cut to 32 bits without a word
        self._resets += 1
        self._misbehave("reset", self._resets)
        self._load(seed)
        self._episode = episode if episode >= 0 else self._episode
        self._seed, self._frame, self._status, self._asked = seed, 0, "running", 0
        self._action, self._num_steps = np.zeros(7, np.intc), 0
        self._map = np.random.RandomState(seed % 2**32).randint(0, 256, self._shape).astype(np.uint8)
        self._start = random.SystemRandom().randrange(self._shape[1])
        return True

    def step(self, action: Any, num_steps: int = 1) -> float:
        if not isinstance(action, np.ndarray):
            raise TypeError(f"action must be numpy.ndarray, not {type(action).__name__}")
        num_steps = operator.index(num_steps)
        if self._status != "running":
            raise RuntimeError("Environment in wrong status to advance.")
        if action.shape != (7,):
            raise ValueError("action must have shape (7)")
        if action.dtype != np.intc:
            raise ValueError("action must have dtype np.intc")
        self._action, self._num_steps = action.copy(), num_steps
        self._asked += num_steps  # also of those after the end
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
        picture = np.roll(self._map, self._start + self._frame, axis=1)
        numbers = np.zeros((2, 7), "<i4")
        numbers[0] = self._action
        numbers[1, :4] = self._frame, self._seed, self._episode, self._num_steps
        for row in range(2):
            flat = picture[row].reshape(-1)
            flat[:28] = np.frombuffer(numbers[row].tobytes(), np.uint8)
        return {"RGB_INTERLEAVED": picture} if self._observations else {}

    def action_spec(self) -> list[dict[str, Any]]:
        if self._status == "closed":
            _die()
        return [{"name": name, "min": low, "max": high} for name, low, high in _ACTIONS]

    def observation_spec(self) -> list[dict[str, Any]]:
        return [{"name": "RGB_INTERLEAVED", "dtype": np.uint8, "shape": self._shape}]

    def num_steps(self) -> int:
        return self._asked

    def close(self) -> bool:
        closed = self._status != "closed"
        self._status = "closed"
        if closed and self._owned:
            shutil.rmtree(self._folder)
        return closed

    def _load(self, seed: int) -> None:
        """Compiles the level unless the cache has it, as the engine does."""
        source = f"{self._level}/{self._mixer}/{seed}".encode()
        key = "lt_procedural_aas_" + hashlib.md5(source).hexdigest()
        # The same for every episode, so that it is there already from the second one on
        path = str(Path(self._folder) / "lt_procedural.pk3")
        level = source * 1000
        if self._cache is not None and self._cache.fetch(key, path):
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
        elif hook["do"] == "compile":
            lines = "".join(f"[C]: in function <{line}>\n" for line in range(500))
            sys.stderr.write(f"compile_map.sh: line 125: zip: command not found\nstack traceback:\n{lines}the end\n")
            raise RuntimeError('Failed to start environment - "stack traceback: ..."')
        elif hook["do"] == "raise":
            raise ValueError("Failed to advance environment")
        elif hook["do"] == "noise":
            os.write(1, b"\x13\x00\x00 noise " * 20_000)
