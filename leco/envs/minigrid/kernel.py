"""MiniGrid's `step` and `gen_obs` on arrays, compiled by numba: what MiniGrid 3.2.0 does, bit for bit.

    E  environments
    H  height of the level, W its width
    V  width of the view, 7 in all registered tasks
    S  steps that an episode may take, plus one
    D  drops that change the colour of a ball: all that an episode has time for, or 0 where `drop` drops

A cell is an integer of 32 bits. Its low ten bits are the object: type (4 bits), colour (3) and state (2), all as MiniGrid encodes
them, and whether it is the target (1). The bits above them are what a box contains, in the same form, so that opening a box is a
shift. An empty cell, an empty hand and the inside of an empty box are EMPTY.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from minigrid.core.actions import Actions
from minigrid.core.constants import OBJECT_TO_IDX, STATE_TO_IDX
from numba import njit

COLOUR_SHIFT = 4
STATE_SHIFT = 7
TARGET = 1 << 9
OBJECT_BITS = 10
DEEPEST = 2  # boxes in boxes: three objects fill the 30 bits that are sure to be positive

AGENT = np.dtype([(name, np.int32) for name in ("x", "y", "direction", "carrying", "steps", "recoloured")])
"""Where the agent of one environment is, where it looks (0 to 3: right, down, left, up), what it carries, how long it plays,
and how often it has changed the colour of a ball."""

EMPTY = OBJECT_TO_IDX["empty"]
_WALL = OBJECT_TO_IDX["wall"]
_OUTSIDE = _WALL | 5 << COLOUR_SHIFT  # MiniGrid draws a grey wall where the level ends
_FLOOR = OBJECT_TO_IDX["floor"]
_DOOR = OBJECT_TO_IDX["door"]
_KEY = OBJECT_TO_IDX["key"]
_BALL = OBJECT_TO_IDX["ball"]
_BOX = OBJECT_TO_IDX["box"]
_GOAL = OBJECT_TO_IDX["goal"]
_LAVA = OBJECT_TO_IDX["lava"]
_OPEN = STATE_TO_IDX["open"]
_CLOSED = STATE_TO_IDX["closed"]
_LOCKED = STATE_TO_IDX["locked"]
_LEFT, _RIGHT, _FORWARD = int(Actions.left), int(Actions.right), int(Actions.forward)
_PICKUP, _DROP, _TOGGLE = int(Actions.pickup), int(Actions.drop), int(Actions.toggle)

_GOES_ON, _LOST, _SOLVED = 0, 1, 2

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles a function when it is first called, once per process; all of this file takes two to three seconds.

    Nothing is kept on disk (numba's `cache=True`): numba would write beside the installed sources or else into the home
    directory, and an image in which it may do neither would not even import this file.
    """
    return cast("Function", njit(function))


@compiled
def step(  # noqa: PLR0917  # numba has no keyword-only arguments
    action_E: npt.NDArray[np.int64],
    cell_EHW: npt.NDArray[np.int32],
    agent_E: npt.NDArray[np.void],
    colour_ED: npt.NDArray[np.int32],
    reward_S: npt.NDArray[np.float32],
    see_through: bool,
    observation_EVVC: npt.NDArray[np.uint8],
    reward_E: npt.NDArray[np.float32],
    done_E: npt.NDArray[np.bool_],
) -> None:
    """One action in each environment, and what its agent then sees.

    Levels and agents change in place; the last three arrays are results.

    colour_ED  the colours that the ball takes on one after the other
    reward_S   the reward for solving the task with the s-th action; the S-1-th action is the last one of every episode
    """
    row_V = np.empty(observation_EVVC.shape[1], np.int32)
    for e in range(len(action_E)):
        agent = agent_E[e]
        agent.steps += 1
        outcome = _act(action_E[e], cell_EHW[e], agent, colour_ED[e])
        reward_E[e] = reward_S[agent.steps] if outcome == _SOLVED else np.float32(0)
        done_E[e] = outcome != _GOES_ON or agent.steps >= len(reward_S) - 1
        _draw(cell_EHW[e], agent, see_through, row_V, observation_EVVC[e])


@compiled
def draw(
    which_N: npt.NDArray[np.int64],
    cell_EHW: npt.NDArray[np.int32],
    agent_E: npt.NDArray[np.void],
    see_through: bool,
    observation_EVVC: npt.NDArray[np.uint8],
) -> None:
    """What the agents of the environments `which_N` see, drawn over their rows of `observation_EVVC`."""
    row_V = np.empty(observation_EVVC.shape[1], np.int32)
    for e in which_N:
        _draw(cell_EHW[e], agent_E[e], see_through, row_V, observation_EVVC[e])


@compiled
def _ahead(direction: int) -> tuple[int, int]:
    """The step (x, y) to the cell in front."""
    if direction == 0:
        return 1, 0
    if direction == 1:
        return 0, 1
    if direction == 2:
        return -1, 0
    return 0, -1


@compiled
def _at(cell_HW: npt.NDArray[np.int32], x: int, y: int) -> int:
    """The cell at (x, y), or a wall outside of the level."""
    if 0 <= y < cell_HW.shape[0] and 0 <= x < cell_HW.shape[1]:
        return int(cell_HW[y, x])
    return _OUTSIDE


@compiled
def _act(action: int, cell_HW: npt.NDArray[np.int32], agent: Any, colour_D: npt.NDArray[np.int32]) -> int:
    """What an action does to one environment: whether its episode goes on, is lost or solved."""
    dx, dy = _ahead(agent.direction)
    x, y = agent.x + dx, agent.y + dy
    if action == _LEFT:
        agent.direction = (agent.direction + 3) % 4
    elif action == _RIGHT:
        agent.direction = (agent.direction + 1) % 4
    elif action == _FORWARD:
        return _walk(cell_HW, x, y, agent)
    elif action == _PICKUP:
        return _pick_up(cell_HW, x, y, agent)
    elif action == _DROP:
        if len(colour_D) > 0:
            _recolour(cell_HW, agent, colour_D[agent.recoloured])
        elif _at(cell_HW, x, y) == EMPTY:
            cell_HW[y, x] = agent.carrying
            agent.carrying = EMPTY
    elif action == _TOGGLE:
        return _toggle(cell_HW, x, y, agent)
    return _GOES_ON


@compiled
def _walk(cell_HW: npt.NDArray[np.int32], x: int, y: int, agent: Any) -> int:
    """Goes to (x, y) if that can be walked on."""
    front = _at(cell_HW, x, y)
    kind = front & 15
    opened = kind == _DOOR and _state(front) == _OPEN
    if opened or kind in (EMPTY, _FLOOR, _GOAL, _LAVA):
        agent.x, agent.y = x, y
    if kind == _GOAL:
        return _SOLVED
    return _LOST if kind == _LAVA else _GOES_ON


@compiled
def _pick_up(cell_HW: npt.NDArray[np.int32], x: int, y: int, agent: Any) -> int:
    """Takes what lies at (x, y) if the hand is empty."""
    front = _at(cell_HW, x, y)
    if agent.carrying != EMPTY or front & 15 not in (_KEY, _BALL, _BOX):
        return _GOES_ON
    agent.carrying = front
    cell_HW[y, x] = EMPTY
    return _SOLVED if front & TARGET else _GOES_ON


@compiled
def _recolour(cell_HW: npt.NDArray[np.int32], agent: Any, colour: int) -> None:
    """Changes the colour of the only ball, which lies in the level or is carried."""
    agent.recoloured += 1
    agent.carrying = _painted(agent.carrying, colour)
    for y in range(cell_HW.shape[0]):
        for x in range(cell_HW.shape[1]):
            cell_HW[y, x] = _painted(cell_HW[y, x], colour)


@compiled
def _painted(cell: int, colour: int) -> int:
    """The cell with its ball in this colour; any other cell as it is."""
    return cell & ~(7 << COLOUR_SHIFT) | colour << COLOUR_SHIFT if cell & 15 == _BALL else cell


@compiled
def _toggle(cell_HW: npt.NDArray[np.int32], x: int, y: int, agent: Any) -> int:
    """Opens the box at (x, y), which leaves its contents, or tries the door there."""
    front = _at(cell_HW, x, y)
    if front & 15 == _BOX:
        cell_HW[y, x] = front >> OBJECT_BITS
    elif front & 15 == _DOOR:
        door = _toggled(front, agent.carrying)
        cell_HW[y, x] = door
        if door & TARGET and _state(door) == _OPEN:
            return _SOLVED
    return _GOES_ON


@compiled
def _state(cell: int) -> int:
    """Whether the door in this cell is open, closed or locked."""
    return (cell >> STATE_SHIFT) & 3


@compiled
def _toggled(door: int, carrying: int) -> int:
    """The door after somebody who carries this has tried it; a locked one yields to a key of its colour, and stays unlocked."""
    state = _state(door)
    shut = door & ~(3 << STATE_SHIFT)
    if state == _OPEN:
        return shut | _CLOSED << STATE_SHIFT
    same_colour = (door >> COLOUR_SHIFT) & 7 == (carrying >> COLOUR_SHIFT) & 7
    if state == _LOCKED and not (carrying & 15 == _KEY and same_colour):
        return door
    return shut | _OPEN << STATE_SHIFT


@compiled
def _draw(
    cell_HW: npt.NDArray[np.int32],
    agent: Any,
    see_through: bool,
    row_V: npt.NDArray[np.int32],
    observation_VVC: npt.NDArray[np.uint8],
) -> None:
    """The agent's view: [i, j] is column i from the left, row j from the far end; the agent is in the middle of the last row.

    Light spreads as in MiniGrid: row by row from the agent, in each row first to the right and then to the left, from a cell
    that is seen and not opaque to its neighbour and to the cells of both in the next row. `seen` and `next_seen` have one bit
    for each column.
    """
    size = len(row_V)
    half = size // 2
    dx, dy = _ahead(agent.direction)
    next_seen = 1 << half
    for j in range(size - 1, -1, -1):
        far = size - 1 - j
        clear = 0
        for i in range(size):
            # To the right of (dx, dy) is (-dy, dx), since y points down.
            cell = _at(cell_HW, agent.x + dx * far - dy * (i - half), agent.y + dy * far + dx * (i - half))
            row_V[i] = cell
            if cell & 15 != _WALL and (cell & 15 != _DOOR or _state(cell) == _OPEN):
                clear |= 1 << i
        seen, next_seen = next_seen, 0
        for i in range(size - 1):
            if seen & clear & 1 << i:
                seen |= 1 << (i + 1)
                next_seen |= 3 << i
        for i in range(size - 1, 0, -1):
            if seen & clear & 1 << i:
                seen |= 1 << (i - 1)
                next_seen |= 3 << (i - 1)
        for i in range(size):
            shown = row_V[i] if see_through or seen & 1 << i else 0
            if far == 0 and i == half:
                shown = agent.carrying  # the agent's own cell shows what it carries
            observation_VVC[i, j, 0] = shown & 15
            observation_VVC[i, j, 1] = (shown >> COLOUR_SHIFT) & 7
            observation_VVC[i, j, 2] = (shown >> STATE_SHIFT) & 3
