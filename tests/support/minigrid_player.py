"""Players for MiniGrid that get into trouble: a bot that solves most levels, and a restless one. Both see the whole level."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from minigrid.core.world_object import WorldObj

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
VECTORS = ((1, 0), (0, 1), (-1, 0), (0, -1))

Pose = tuple[int, int, int]


class Restless:
    """Walks at random and often uses what it meets: random play alone seldom meets anything, and then walks on."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, env: Any) -> int:
        front = env.grid.get(*env.front_pos)
        chance = self._random.random()
        if chance < 0.4:
            if front is None and env.carrying is not None and chance < 0.08:
                return DROP
            if isinstance(front, Door) or (isinstance(front, Box) and chance < 0.25):
                return TOGGLE
            if front is not None and front.can_pickup():
                return PICKUP
        share_A = (0.15, 0.15, 0.5, 0.06, 0.06, 0.06, 0.02)
        return int(self._random.choice(7, p=share_A))


class Solver:
    """Solves a level by simple rules, as somebody would who sees all of it and plans anew in every step."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._things = list(_things(env))
        self._target = getattr(env, "obj", None)
        self._locked = [(x, y, thing) for x, y, thing in self._things if isinstance(thing, Door) and thing.is_locked]

    def action(self) -> int:
        """The next action."""
        goal = self._use(lambda _x, _y, thing: isinstance(thing, Goal), FORWARD)
        if goal is not None:
            return goal
        return self._with_empty_hand() if self._env.carrying is None else self._with_full_hand(self._env.carrying)

    def _with_empty_hand(self) -> int:
        for wanted, action in (
            (lambda _x, _y, thing: thing is self._target, PICKUP),
            (lambda x, y, thing: isinstance(thing, Ball) and self._in_the_way(x, y), PICKUP),
            (lambda _x, _y, thing: isinstance(thing, Box) and thing is not self._target, TOGGLE),
            (lambda _x, _y, thing: isinstance(thing, Key) and self._fits(thing), PICKUP),
        ):
            move = self._use(wanted, action)
            if move is not None:
                return move
        return LEFT

    def _with_full_hand(self, carrying: WorldObj) -> int:
        """Opens the door that the key is for, if there is a need to, or puts things aside."""
        if isinstance(carrying, Key) and self._use(lambda _x, _y, thing: thing is self._target, PICKUP) is None:
            opened = self._use(lambda x, y, door: (x, y, door) in self._locked and door.color == carrying.color, TOGGLE)
            if opened is not None:
                return opened
        env = self._env
        aside = _first_action(env, lambda pose: _free(env, *_front(pose)) and not self._in_the_way(*_front(pose)))
        if aside is None:  # in small rooms everything is in the way of something
            aside = _first_action(
                env, lambda pose: _free(env, *_front(pose)) and _leaves_a_way(env, pose, self._target)
            )
        return DROP if aside == DONE else FORWARD if aside is None else aside

    def _use(self, wanted: Callable[[int, int, WorldObj], bool], action: int) -> int | None:
        """The way to something wanted, or the action if it is there; None if there is no way."""
        for x, y, thing in self._things:
            if wanted(x, y, thing) and (move := self._face(x, y)) is not None:
                return action if move == DONE else move
        return None

    def _face(self, x: int, y: int) -> int | None:
        return _first_action(self._env, lambda pose: _front(pose) == (x, y))

    def _fits(self, key: WorldObj) -> bool:
        return any(door.color == key.color and self._face(x, y) is not None for x, y, door in self._locked)

    def _in_the_way(self, x: int, y: int) -> bool:
        return any(abs(x - a) + abs(y - b) == 1 for a, b, thing in self._things if isinstance(thing, Door))


def solve(env: Any) -> int:
    """The next action of somebody who wants to solve the task."""
    return Solver(env).action()


def _things(env: Any) -> Iterator[tuple[int, int, WorldObj]]:
    for place, thing in enumerate(env.grid.grid):
        if thing is not None and thing.type != "wall":
            yield place % env.grid.width, place // env.grid.width, thing


def _front(pose: Pose) -> tuple[int, int]:
    x, y, direction = pose
    return x + VECTORS[direction][0], y + VECTORS[direction][1]


def _free(env: Any, x: int, y: int) -> bool:
    return env.grid.get(x, y) is None and (x, y) != tuple(env.agent_pos)


def _leaves_a_way(env: Any, pose: Pose, target: WorldObj | None) -> bool:
    """Whether somebody in this pose who drops something still gets to the target."""
    env.grid.set(*_front(pose), Ball())
    places = {(x, y) for x, y, thing in _things(env) if thing is target}
    way = _first_action(env, lambda other: _front(other) in places, start=pose)
    env.grid.set(*_front(pose), None)
    return way is not None


def _first_action(env: Any, there: Callable[[Pose], bool], start: Pose | None = None) -> int | None:
    """The first action of a shortest way from the agent to a pose; DONE if it is this one, None if there is no way."""
    start = start or (int(env.agent_pos[0]), int(env.agent_pos[1]), int(env.agent_dir))
    queue: deque[tuple[Pose, int]] = deque([(start, DONE)])
    known = {start}
    while queue:
        pose, first = queue.popleft()
        if there(pose):
            return first
        x, y, direction = pose
        steps = [((x, y, (direction + 3) % 4), LEFT), ((x, y, (direction + 1) % 4), RIGHT)]
        cell = env.grid.get(*_front(pose))
        if cell is None or isinstance(cell, Floor) or (isinstance(cell, Door) and not cell.is_locked):
            shut = isinstance(cell, Door) and not cell.is_open
            steps.append(((*_front(pose), direction), TOGGLE if shut else FORWARD))
        for after, action in steps:
            if after not in known:
                known.add(after)
                queue.append((after, action if first == DONE else first))
    return None
