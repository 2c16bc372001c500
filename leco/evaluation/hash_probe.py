"""What a hash sees: how often its code changes when something in view changes, and how often it calls a step a first visit.

It needs MiniGrid's cells, so that a door can be opened in a view and nothing else changed. Where a task shows pictures, what was
changed is drawn (`Family.draw`).
A hash that does not tell an open door from a closed one cannot reward opening it, and one by which nearly every step is a first
visit rewards everything alike.

N     observations
T     steps of an episode
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from leco.envs.registry import make
from leco.evaluation.rollout import playing
from leco.evaluation.scoring import visit_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leco.envs.task import Task
    from leco.envs.vector import Steps, VectorEnv
    from leco.models.hash_function import HashFunction
    from leco.models.policy import Policy

    Views = npt.NDArray[np.uint8]

_EMPTY, _DOOR, _KEY, _BALL, _BOX = 1, 4, 5, 6, 7  # MiniGrid's numbers
_OPEN, _CLOSED = 0, 1
_AGENT = (3, 6)  # its own cell of a view shows what it carries
_LEFT, _RIGHT, _FORWARD = 0, 1, 2
_PIECE = 1024  # views that are hashed at once


class Play(NamedTuple):
    """What was played, each episode from its start.

    episodes  the views of each in cells, uint8 [T + 1, 7, 7, 3]
    actions   of each, integers [T]
    """

    episodes: list[Views]
    actions: list[npt.NDArray[np.int64]]


class Probe(NamedTuple):
    """Shares from 0 to 1; NaN where nothing of the kind was in view.

    door, object, carried   of the views with a door, an object to take, or nothing carried: whose code changes when a door is
                opened or closed, an object is taken away, a key is put into the agent's hand
    turn, step  of the actions that changed the view: whose code changed
    first_visits   of all steps: those to a code that is new in the episode
    codes       different codes
    views       different observations
    """

    door: float
    object: float
    carried: float
    turn: float
    step: float
    first_visits: float
    codes: int
    views: int


def play_episodes(task: Task, episodes: int, max_steps: int, *, policy: Policy | None = None, seed: int = 0) -> Play:
    """The first `max_steps` steps of episodes, with actions of a policy; drawn evenly, without one."""
    steps = min(max_steps, task.max_steps)
    with closing(make(task, episodes, seed)) as env:
        first_EO = env.reset()
        seen, taken = [_cells(env, first_EO)], []
        ends_E = np.full(episodes, steps)
        playing_ = _randomly(env, seed)
        if policy is not None:
            playing_ = playing(policy, env, first_EO, torch.Generator().manual_seed(seed), greedy=False)
        for t, (action_E, found) in enumerate(islice(playing_, steps)):
            taken.append(np.asarray(action_E))
            ends_E[found.done_E & (ends_E == steps)] = t  # without the last action: what follows is another episode
            seen.append(_cells(env, found.observation_EO))
    seen_TEO, action_TE = np.stack(seen), np.stack(taken)
    long = [e for e in range(episodes) if ends_E[e] > 0]
    return Play([seen_TEO[: ends_E[e] + 1, e] for e in long], [action_TE[: ends_E[e], e] for e in long])


def _cells(env: VectorEnv, observation_EO: Views) -> Views:
    """What environments show, in cells."""
    view_EO: Views = getattr(env, "view_EO", observation_EO)
    return view_EO


def _randomly(env: VectorEnv, seed: int) -> Iterator[tuple[npt.NDArray[np.int64], Steps]]:
    random = np.random.default_rng(seed)
    while True:
        action_E = random.integers(0, env.num_actions, env.num_envs)
        yield action_E, env.step(action_E)


def probe(hash_function: HashFunction, play: Play, draw: Callable[[Views], Views] | None = None) -> Probe:
    """What a hash makes of it; `draw`: of views as pictures."""

    def coded(views_NO: Views) -> npt.NDArray[np.uint8]:
        parts = np.array_split(views_NO, -(-len(views_NO) // _PIECE))
        return np.concatenate([hash_function.codes(part if draw is None else draw(part)) for part in parts])

    views_NO = np.unique(np.concatenate(play.episodes), axis=0)
    codes_NW = coded(views_NO)

    def changed(edit: Callable[[Views], Views | None]) -> float:
        """Of the views that can be edited so: whose code is another one then."""
        edited = [(n, other) for n, view in enumerate(views_NO) if (other := edit(view.copy())) is not None]
        if not edited:
            return float("nan")
        before_NW = codes_NW[[n for n, _ in edited]]
        return float((coded(np.stack([other for _, other in edited])) != before_NW).any(1).mean())

    codes = [coded(each) for each in play.episodes]
    first = [visit_counts(each)[1:] == 1 for each in codes]
    return Probe(
        door=changed(_door_moved),
        object=changed(_object_gone),
        carried=changed(_key_in_hand),
        turn=_changes(play, codes, (_LEFT, _RIGHT)),
        step=_changes(play, codes, (_FORWARD,)),
        first_visits=float(np.concatenate(first).mean()),
        codes=len(np.unique(codes_NW, axis=0)),
        views=len(views_NO),
    )


def _changes(play: Play, codes: list[npt.NDArray[np.uint8]], actions: tuple[int, ...]) -> float:
    """Of these actions that changed the view: the share that changed the code."""
    moved, told = 0, 0
    for views_TO, action_T, code_TW in zip(play.episodes, play.actions, codes, strict=True):
        seen_T = (views_TO[1:] != views_TO[:-1]).reshape(len(action_T), -1).any(1) & np.isin(action_T, actions)
        moved += int(seen_T.sum())
        told += int((code_TW[1:] != code_TW[:-1]).any(1)[seen_T].sum())
    return told / moved if moved else float("nan")


def _door_moved(view: Views) -> Views | None:
    """The nearest door opened if it was not, and closed if it was."""
    doors = _nearest(view, (_DOOR,))
    if doors is None:
        return None
    view[doors][2] = _CLOSED if view[doors][2] == _OPEN else _OPEN
    return view


def _object_gone(view: Views) -> Views | None:
    place = _nearest(view, (_KEY, _BALL, _BOX))
    if place is None:
        return None
    view[place] = (_EMPTY, 0, 0)
    return view


def _key_in_hand(view: Views) -> Views | None:
    if view[_AGENT][0] != _EMPTY:
        return None
    view[_AGENT] = (_KEY, 0, 0)
    return view


def _nearest(view: Views, objects: tuple[int, ...]) -> tuple[int, int] | None:
    """The cell of the nearest of these objects, but not what is carried."""
    cells = [(x, y) for x, y in np.argwhere(np.isin(view[..., 0], objects)).tolist() if (x, y) != _AGENT]
    return min(cells, key=lambda cell: abs(cell[0] - _AGENT[0]) + abs(cell[1] - _AGENT[1]), default=None)
