"""One ViZDoom engine: a child process that plays one game, and the picture that the agent sees."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from leco.envs.vizdoom.scenarios import TICS

# Errors that whoever asked for environments prints as one line.
try:
    import vizdoom
except ModuleNotFoundError as missing:
    raise ValueError("ViZDoom is not installed: pip install 'leco[vizdoom]'") from missing
except ImportError as broken:
    raise ValueError(f"ViZDoom is installed but cannot be loaded: {broken}") from broken

if TYPE_CHECKING:
    import numpy.typing as npt

    from leco.envs.vizdoom.scenarios import Action, Scenario

OBSERVATION_SHAPE: Final = (72, 96, 3)

# What the library raises when its engine is gone. They have no common ancestor.
CRASHES = (
    vizdoom.MessageQueueException,
    vizdoom.SharedMemoryException,
    vizdoom.ViZDoomErrorException,
    vizdoom.ViZDoomIsNotRunningException,
    vizdoom.ViZDoomUnexpectedExitException,
)

_BUTTONS = [
    vizdoom.Button.MOVE_FORWARD,
    vizdoom.Button.MOVE_BACKWARD,
    vizdoom.Button.MOVE_LEFT,
    vizdoom.Button.MOVE_RIGHT,
    vizdoom.Button.TURN_LEFT_RIGHT_DELTA,  # degrees in a tic, to the right: always as many, while the plain buttons accelerate
    vizdoom.Button.ATTACK,
]
# A host with room for one player opens no port. Whoever dies comes back at once, far from the others and safe for a moment.
_DEATHMATCH = (
    "-host 1 -deathmatch +viz_respawn_delay 0 +sv_nocrouch 1 "
    "+sv_forcerespawn 1 +sv_respawnprotect 1 +sv_spawnfarthest 1"
)
_LITTER = Path("_vizdoom")  # the engine makes this empty folder wherever it is started


class Engine:
    """One game after another. No engine runs before the first.

    Args:
        scenario: what is played.
        mark: stands in the engine's command line, so that it can be found; see `Guard`.
    """

    def __init__(self, scenario: Scenario, mark: str) -> None:
        self._scenario = scenario
        self._mark = mark
        self._buttons = [_buttons(action) for action in scenario.actions]
        self._game: vizdoom.DoomGame | None = None
        self._frags = 0.0

    def begin(self, seed: int, out_O: npt.NDArray[np.uint8]) -> None:
        """Starts an episode and writes its first observation to `out_O`; any crash can be raised, and then be tried again."""
        seed %= 2**32  # the library takes no more
        if self._game is None or not self._game.is_running() or self._scenario.bots:
            self.close()
            self._game = _start(self._scenario, self._mark, seed)
        else:
            self._game.set_seed(seed)
            self._game.new_episode()
        for _ in range(self._scenario.bots):
            self._game.send_game_command("addbot")
        self._frags = 0.0
        self._look(self._game, out_O)

    def act(self, action: int, out_O: npt.NDArray[np.uint8]) -> tuple[float, bool]:
        """Plays one step.

        Args:
            action: its number in the scenario.
            out_O: gets the next observation. There is none after the end of an episode, and then it stays as it is.

        Returns:
            The reward, and whether the episode is over.
        """
        if self._game is None:
            raise vizdoom.ViZDoomIsNotRunningException("the engine has not been started")
        reward = self._game.make_action(self._buttons[action], TICS)
        if self._scenario.bots:
            before, self._frags = self._frags, self._game.get_game_variable(vizdoom.GameVariable.FRAGCOUNT)
            reward = self._frags - before
        ended = self._game.is_episode_finished()
        if not ended:
            self._look(self._game, out_O)
        return reward, ended

    def close(self) -> None:
        """Ends the engine, if there is one."""
        if self._game is not None:
            self._game.close()
            self._game = None

    @staticmethod
    def _look(game: vizdoom.DoomGame, out_O: npt.NDArray[np.uint8]) -> None:
        state = game.get_state()
        if state is None or state.screen_buffer is None:
            raise vizdoom.ViZDoomErrorException("the engine shows no picture")
        shrink(state.screen_buffer, out_O)


def shrink(screen: npt.NDArray[np.uint8], out_O: npt.NDArray[np.uint8]) -> None:
    """Makes the screen, uint8 [120, 160, 4], the observation, uint8 [72, 96, 3]: of five pixels three, in both directions.

    The first of the three is the mean of two pixels, the second is one, the third the mean of two again. Four bytes are one
    number here, which makes it faster than to pick single pixels.
    """
    rows = screen.view(np.uint32).reshape(24, 5, 160)
    short = np.empty((24, 3, 160), np.uint32)
    short[:, 0] = _mean(rows[:, 0], rows[:, 1])
    short[:, 1] = rows[:, 2]
    short[:, 2] = _mean(rows[:, 3], rows[:, 4])
    columns = short.reshape(72, 32, 5)
    small = np.empty((72, 32, 3), np.uint32)
    small[..., 0] = _mean(columns[..., 0], columns[..., 1])
    small[..., 1] = columns[..., 2]
    small[..., 2] = _mean(columns[..., 3], columns[..., 4])
    out_O[...] = small.view(np.uint8).reshape(72, 96, 4)[..., :3]


def _mean(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The means, rounded down, of the four bytes in each number: what both have, and half of what one has."""
    return (a & b) + (((a ^ b) & np.uint32(0xFEFEFEFE)) >> np.uint32(1))


def _buttons(action: Action) -> list[float]:
    """An action as values of _BUTTONS."""
    forward, strafe = action.forward, action.strafe
    return [forward > 0, forward < 0, strafe < 0, strafe > 0, action.turn / TICS, action.attack]


def _start(scenario: Scenario, mark: str, seed: int) -> vizdoom.DoomGame:
    """A running engine: no window, no sound, no status bar, no files."""
    game = vizdoom.DoomGame()
    game.set_doom_scenario_path(str(Path(vizdoom.scenarios_path) / scenario.wad))
    game.set_doom_map(scenario.map)
    game.set_doom_skill(scenario.skill)
    game.set_doom_config_path("/dev/null")  # settings are read from here at the start and saved here in the end
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_mode(vizdoom.Mode.PLAYER)  # the engine waits for each action
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.RGBA32)
    game.set_render_hud(False)
    game.set_available_buttons(_BUTTONS)
    game.set_episode_start_time(scenario.start)
    game.set_episode_timeout(scenario.max_steps * TICS)
    game.set_living_reward(scenario.living_reward)
    game.add_game_args(f"-leco {mark}")
    if scenario.bots:
        game.add_game_args(_DEATHMATCH)
    game.set_seed(seed)
    try:
        game.init()
    finally:
        # Even if it was there before: it may be another program's that starts just now. One that is not empty stays.
        with contextlib.suppress(OSError):
            _LITTER.rmdir()
    return game
