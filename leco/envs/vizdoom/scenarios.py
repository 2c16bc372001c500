"""The ViZDoom scenarios that leco plays, as data: maps, rewards, and what each action does."""

from __future__ import annotations

from dataclasses import dataclass

TICS = 4  # game tics in a step, during which the action is held


@dataclass(frozen=True, slots=True)
class Action:
    """What is held for a step.

    turn      degrees in the whole step, to the right
    forward   1, or -1 for backward
    strafe    1 for right, -1 for left
    attack    fires
    """

    turn: float = 0.0
    forward: int = 0
    strafe: int = 0
    attack: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A game.

    wad, map       which of the files that ViZDoom ships, and where in it
    skill          from 1 to 5
    start          the tic in which an episode begins; earlier ones are skipped
    max_steps      an episode ends after so many steps, if not before
    living_reward  for each tic
    actions        what action 0, 1, 2, ... does
    bots           opponents. With any, it is a deathmatch: frags are the reward, death is no end, and only an engine that has
                   just been started obeys a seed
    can_be_solved  an episode that ends with a reward is solved
    """

    wad: str
    map: str
    skill: int
    start: int
    max_steps: int
    living_reward: float
    actions: tuple[Action, ...]
    bots: int = 0
    can_be_solved: bool = False


SCENARIOS: dict[str, Scenario] = {
    # Map, skill, times and rewards are those of ViZDoom's my_way_home.cfg.
    "my_way_home": Scenario(
        wad="my_way_home.wad",
        map="map01",
        skill=5,
        start=10,
        max_steps=525,
        living_reward=-0.0001,
        actions=(
            Action(turn=-15),
            Action(turn=15),
            Action(forward=1),
            Action(forward=1, turn=-15),
            Action(forward=1, turn=15),
        ),
        can_be_solved=True,
    ),
    # A map of the Visual Doom AI Competition. The actions are DMLab's 15, but with no action and with attack on the run in place
    # of looking up and down, since Doom aims up and down by itself.
    "deathmatch": Scenario(
        wad="cig.wad",
        map="map02",
        skill=3,
        start=10,
        max_steps=1050,
        living_reward=0,
        actions=(
            Action(forward=1),
            Action(forward=-1),
            Action(strafe=-1),
            Action(strafe=1),
            Action(turn=-10),
            Action(turn=10),
            Action(turn=-40),
            Action(turn=40),
            Action(),
            Action(forward=1, attack=True),
            Action(forward=1, turn=-10),
            Action(forward=1, turn=10),
            Action(forward=1, turn=-40),
            Action(forward=1, turn=40),
            Action(attack=True),
        ),
        bots=3,
    ),
}
