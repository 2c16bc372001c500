"""The compiled environments against MiniGrid: the same seeds, the same actions, and nothing may differ by a bit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from leco.envs.minigrid.compiled import CompiledMiniGrid
from leco.envs.minigrid.reference import ReferenceMiniGrid
from support.minigrid_player import DROP, FORWARD, PICKUP, TOGGLE

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from gymnasium.envs.registration import EnvSpec

    from leco.envs.vector import Steps


def duel(spec: EnvSpec, player: Callable[[Any], int], *, environments: int, steps: int, seed: int) -> Counter[str]:
    """Plays both and compares everything that they return.

    Returns:
        What happened, so that a test can insist on having seen it.
    """
    compiled, reference = CompiledMiniGrid(spec, environments, seed), ReferenceMiniGrid(spec, environments, seed)
    assert compiled.observation_shape == reference.observation_shape
    assert compiled.num_actions == reference.num_actions
    same(compiled.reset(), reference.reset())
    envs: list[Any] = [env.unwrapped for env in reference._envs]
    events: Counter[str] = Counter()
    for _ in range(steps):
        action_E = np.array([player(env) for env in envs])
        before = [look(env) for env in envs]
        # An environment's object begins the next episode within its step, so the grid is kept to see what became of it.
        grids = [env.grid for env in envs]
        expected = reference.step(action_E)
        got = compiled.step(action_E)
        for name in expected._fields:
            same(getattr(got, name), getattr(expected, name))
        for e in range(environments):
            events.update(happened(int(action_E[e]), before[e], grids[e], expected, e))
    return events


def same(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected, strict=True)


def look(env: Any) -> dict[str, Any]:
    """What matters of an environment before an action."""
    x, y = (int(v) for v in env.front_pos)
    front = env.grid.get(x, y)
    state = front.encode()[2] if front is not None else None
    return {"at": (x, y), "front": front, "state": state, "carrying": env.carrying, "left": env.steps_remaining}


def happened(action: int, before: dict[str, Any], grid: Any, steps: Steps, e: int) -> list[str]:
    """The events of one action in one environment, by name."""
    front, after = before["front"], grid.get(*before["at"])
    kind = "nothing" if front is None else front.type
    events = []
    if action == PICKUP and front is not None and after is None:
        events.append(f"{kind} picked up")
    if action == PICKUP and front is not None and front.can_pickup() and before["carrying"] is not None:
        events.append("hand was full")
    if action == DROP and front is None and after is not None:
        events.append(f"{after.type} dropped")
    if action == TOGGLE and kind == "box":
        events.append("box opened" if after is not None else "empty box opened")
    if action == TOGGLE and kind == "door":
        was, now = before["state"], front.encode()[2]
        changes = {(0, 1): "door closed", (1, 0): "door opened", (2, 0): "door unlocked"}
        events.append(changes.get((was, now)) or _wrong(front, before["carrying"]))
    if action == FORWARD and kind in {"wall", "floor", "lava", "goal"}:
        events.append(f"walked into {kind}")
    if action == FORWARD and kind == "door":
        events.append("walked through door" if before["state"] == 0 else "walked into door")
    if steps.done_E[e]:
        events.append("solved" if steps.success_E[e] else "lost" if before["left"] > 1 else "out of time")
        if steps.success_E[e] and before["left"] == 1:
            events.append("solved in the last step")
    return events


def _wrong(door: Any, carrying: Any) -> str:
    """Why a locked door stays so."""
    if carrying is None:
        return "no key"
    if carrying.type == "key":
        return "wrong key"
    return "no key but the colour" if carrying.color == door.color else "no key"
