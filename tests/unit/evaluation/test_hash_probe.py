"""The probe of hashes: what it edits in a view, and what it says of hashes that see everything, nothing, or one thing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from leco.algo.hashes import digest
from leco.cli import probe as command
from leco.envs.registry import family_of, find_task
from leco.evaluation import hash_probe
from leco.evaluation.hash_probe import Play, play_episodes, probe
from leco.models.hash_function import HashFunction
from leco.models.kinds.minigrid import OBJECT_CODE_WIDTH, MiniGridPolicy, objects_code
from support.uncompiled import make_uncompiled

EXACT = HashFunction(16, digest)
BLIND = HashFunction(1, lambda observation_NO: torch.zeros(len(observation_NO), 1, dtype=torch.uint8))
OBJECTS = HashFunction(OBJECT_CODE_WIDTH, objects_code)
AGENT = (3, 6)
EMPTY, WALL, DOOR, KEY, BALL = (1, 0, 0), (2, 5, 0), (4, 1, 1), (5, 2, 0), (6, 3, 0)


def view(*things: tuple[tuple[int, int], tuple[int, int, int]]) -> np.ndarray:
    """An empty room of 7 x 7 cells, with these in it."""
    made = np.tile(np.array(EMPTY, np.uint8), (7, 7, 1))
    for place, cell in things:
        made[place] = cell
    return made


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_probe, "make", make_uncompiled)


def test_only_the_nearest_door_is_moved_and_only_its_state() -> None:
    before = view(((3, 4), DOOR), ((0, 0), DOOR))
    after = hash_probe._door_moved(before.copy())
    assert after is not None
    assert np.argwhere(after != before).tolist() == [[3, 4, 2]]
    assert after[3, 4].tolist() == [4, 1, 0]
    again = hash_probe._door_moved(after.copy())
    assert again is not None
    assert again[3, 4].tolist() == [4, 1, 1]
    assert hash_probe._door_moved(view()) is None


def test_what_is_carried_is_not_taken_away_and_a_full_hand_takes_nothing() -> None:
    assert hash_probe._object_gone(view((AGENT, KEY))) is None
    gone = hash_probe._object_gone(view((AGENT, KEY), ((2, 2), BALL)))
    assert gone is not None
    assert (gone[2, 2].tolist(), gone[AGENT].tolist()) == (list(EMPTY), list(KEY))
    taken = hash_probe._key_in_hand(view())
    assert taken is not None
    assert taken[AGENT].tolist() == [5, 0, 0]
    assert hash_probe._key_in_hand(view((AGENT, BALL))) is None


def test_an_episode_by_hand() -> None:
    # Turn, step, step back to the start (which no action of MiniGrid does), turn without any change in view.
    a, b, c = view(((1, 1), DOOR)), view(((2, 1), DOOR)), view(((2, 2), WALL))
    play = Play([np.stack([a, b, c, a, a])], [np.array([0, 2, 2, 1])])
    found = probe(OBJECTS, play)
    # a and b are one code: a door is in view. c is another: nothing is.
    assert (found.codes, found.views) == (2, 3)
    assert found.first_visits == 1 / 4, "only c is new"
    assert (found.turn, found.step) == (0.0, 1.0)
    assert (found.door, found.carried) == (1.0, 1.0)
    assert math.isnan(found.object)


@pytest.mark.parametrize(("hash_function", "share"), [(EXACT, 1.0), (BLIND, 0.0)])
def test_a_hash_that_sees_everything_and_one_that_sees_nothing(hash_function: HashFunction, share: float) -> None:
    play = play_episodes(find_task("KeyCorridorS3R3"), 6, 60)
    found = probe(hash_function, play)
    assert found[:5] == (share,) * 5
    assert found.codes == (found.views if share else 1)
    assert (found.first_visits > 0) == bool(share)


def test_episodes_end_before_another_begins() -> None:
    """In Empty-5x5 an episode takes 100 actions at most, and random play solves some."""
    play = play_episodes(find_task("Empty-5x5"), 20, 1000)
    lengths = [len(each) for each in play.actions]
    assert max(lengths) == 99
    assert min(lengths) < 99
    assert [len(each) - 1 for each in play.episodes] == lengths


def test_a_policy_may_play() -> None:
    policy = MiniGridPolicy(7, 8)
    with torch.no_grad():
        policy.policy_head.bias.copy_(torch.tensor([50.0, 0, 0, 0, 0, 0, 0]))  # it turns left, and nothing else
    play = play_episodes(find_task("Empty-5x5"), 2, 12, policy=policy)
    assert np.concatenate(play.actions).tolist() == [0] * 24
    assert len(np.unique(np.concatenate(play.episodes), axis=0)) == 4


def test_pictures_are_probed_by_changing_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a hash that looks at the agent's own tile alone: it sees what is carried, and no door."""
    task, bottom = find_task("KeyCorridorS3R3-RGB"), 48
    hand = HashFunction(192, lambda seen: seen[:, bottom:, 24:32].flatten(1).contiguous())
    monkeypatch.setattr(hash_probe, "make", make_uncompiled)
    play = play_episodes(task, 8, 100)
    assert play.episodes[0].shape == (101, 7, 7, 3)
    found = probe(hand, play, family_of(task).draw)
    assert (found.door, found.carried) == (0.0, 1.0)
    assert probe(EXACT, play, family_of(task).draw)[:3] == (1.0, 1.0, 1.0)
    cells = play_episodes(find_task("KeyCorridorS3R3"), 8, 100)
    assert all((a == b).all() for a, b in zip(play.episodes, cells.episodes, strict=True))


def test_the_command_says_it_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--task", "MultiRoom-N2-S4", "--hash", "exact", "--hash", "dsc", "--episodes", "4", "--steps", "30"])
    head, _, names, exact, dsc = capsys.readouterr().out.splitlines()
    assert head.startswith("MultiRoom-N2-S4, ")
    assert names.split()[:3] == ["hash", "door", "object"]
    assert exact.split()[:3] == ["exact", "100", "%"]
    assert dsc.startswith("dsc ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "vizdoom-my-way-home"], "shows pixels: a probe needs views whose cells are known"),
        (["--task", "Nowhere"], "there is no task 'Nowhere'"),
        (["no/such/run"], "is neither a run nor an entry of the zoo"),
    ],
)
def test_what_cannot_be_probed_is_a_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err
