"""ViZDoom behind the interface of all environments, with the real engine. What must be equal is equal to the bit."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import vizdoom
from vizdoom import GameVariable

from leco.envs.vector import episode_seed
from leco.envs.vizdoom.engine import shrink
from leco.envs.vizdoom.environment import VizdoomEnv
from leco.envs.vizdoom.scenarios import SCENARIOS
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME, FIGHT = "my_way_home", "deathmatch"
LEFT, RIGHT, FORWARD = 0, 1, 2  # of my_way_home
TO_THE_ARMOUR = (2, 1, 1, 2, 2, 4, 4, 0, 4, 0)
SHAPE = (72, 96, 3)
SUICIDAL = (9, 14, 9, 11, 9, 14, 13)  # over and over, in deathmatch of seed 13: shoots until its own rocket hits it

BRAWL = f"""
import hashlib
from leco.envs.vizdoom.environment import VizdoomEnv
env = VizdoomEnv("deathmatch", 1, seed=13)
digest = hashlib.sha256(env.reset().tobytes())
for t in range(1050):
    for part in env.step([{SUICIDAL}[t % 7]]):
        digest.update(part.tobytes())
env.close()
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def home() -> Iterator[VizdoomEnv]:
    """Two environments that several tests use; each begins with `reset(seed=...)`."""
    with closing(VizdoomEnv(HOME, 2, seed=0)) as env:
        yield env


def game(env: VizdoomEnv, e: int = 0) -> Any:
    return env._engines[e]._game


def engines(mark: str) -> dict[int, str]:
    """The engines with this mark: process id to instance id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if mark in words and "+viz_instance_id" in words:
            found[int(folder.name)] = words[words.index("+viz_instance_id") + 1]
    return found


def kill_engine(env: VizdoomEnv, e: int) -> None:
    instance = game(env, e).get_instance_id()
    [pid] = [pid for pid, name in engines(env._guard.mark).items() if name == instance]
    os.kill(pid, signal.SIGKILL)


def play(env: VizdoomEnv, action_TE: Any) -> str:
    """A hash of everything that is returned from the first observation on."""
    digest = hashlib.sha256(env.reset().tobytes())
    for action_E in action_TE:
        for part in env.step(action_E):
            digest.update(part.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(("scenario", "actions"), [(HOME, 5), (FIGHT, 15)])
def test_says_what_it_is_and_gives_what_it_promises(scenario: str, actions: int) -> None:
    with closing(VizdoomEnv(scenario, 2, seed=0)) as env:
        assert (env.observation_shape, env.num_actions, env.num_envs) == (SHAPE, actions, 2)
        with pytest.raises(RuntimeError, match=r"reset\(\) must be called before step\(\)"):
            env.step([0, 0])
        first = env.reset()
        steps = env.step([0, actions - 1])
        shapes = [(2, *SHAPE), (2, *SHAPE), (2,), (2,), (2,), (0, *SHAPE)]
        assert [a.shape for a in (first, *steps)] == shapes
        assert [str(a.dtype) for a in (first, *steps)] == ["uint8", "uint8", "float32", "bool", "bool", "uint8"]
    with pytest.raises(RuntimeError):
        env.step([0, 0])
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


def test_refuses_impossible_sizes_seeds_and_scenarios(home: VizdoomEnv) -> None:
    with pytest.raises(ValueError, match="at least 1 environment, not 0"):
        VizdoomEnv(HOME, 0, 0)
    with pytest.raises(ValueError, match="a seed must be an integer of at least 0, not -1"):
        VizdoomEnv(HOME, 1, -1)
    with pytest.raises(ValueError, match="no ViZDoom scenario 'home'; known are my_way_home, deathmatch"):
        VizdoomEnv("home", 1, 0)
    with pytest.raises(ValueError, match="a seed must be"):
        home.reset(seed=1.5)  # type: ignore[arg-type]


def test_the_picture_keeps_what_it_shows() -> None:
    """A screen of flat colours: upright, red first, and means where two pixels meet."""
    screen = np.zeros((120, 160, 4), np.uint8)
    screen[:60, :80, 0], screen[:60, 80:, 1], screen[60:, :80, 2] = 200, 100, 50
    screen[60:, 80:] = 255
    small = np.zeros(SHAPE, np.uint8)
    shrink(screen, small)
    for rows, columns, colour in ((0, 0, [200, 0, 0]), (0, 1, [0, 100, 0]), (1, 0, [0, 0, 50]), (1, 1, [255] * 3)):
        assert (small[36 * rows :][:36, 48 * columns :][:, :48] == colour).all()
    noise = np.random.default_rng(0).integers(0, 256, screen.shape, dtype=np.uint8)
    shrink(noise, small)
    wide = noise[..., :3].astype(int)
    for r, c in np.ndindex(72, 96):
        # Of 5 pixels the first two, the one in the middle, and the last two.
        rows, columns = ((5 * (i // 3) + np.array([[0, 1], [2, 2], [3, 4]])[i % 3]) for i in (r, c))
        down = (wide[rows[0]] + wide[rows[1]]) // 2
        assert small[r, c].tolist() == ((down[columns[0]] + down[columns[1]]) // 2).tolist()


def test_turning_changes_the_view_by_what_the_table_says(home: VizdoomEnv) -> None:
    views = [home.reset(seed=0)[0]]
    angles = [game(home).get_game_variable(GameVariable.ANGLE)]
    for action in (RIGHT, RIGHT, LEFT):
        views.append(home.step([action, action]).observation_EO[0])
        angles.append(game(home).get_game_variable(GameVariable.ANGLE))
    assert (np.diff(angles) + 180) % 360 - 180 == pytest.approx([-15, -15, 15], abs=0.1)
    assert all((a != b).mean() > 0.1 for a, b in pairwise(views))
    assert abs(views[1].astype(int) - views[3]).mean() < 2 < abs(views[1].astype(int) - views[2]).mean()  # back again
    assert views[0].std() > 5  # a picture, not a plain


def test_a_step_is_four_tics_and_time_runs_out_after_the_last(home: VizdoomEnv) -> None:
    home.reset(seed=0)
    for t in range(SCENARIOS[HOME].max_steps - 1):
        steps = home.step([LEFT, RIGHT])
        assert game(home).get_episode_time() == 10 + 4 * (t + 1)
        assert not steps.done_E.any()
        assert steps.reward_E.tolist() == [np.float32(-0.0004)] * 2
    last, steps = steps.observation_EO, home.step([LEFT, RIGHT])
    assert steps.done_E.tolist() == [True, True]
    assert steps.success_E.tolist() == [False, False]
    np.testing.assert_array_equal(steps.terminal_observation_FO, last)  # there is no picture after the end
    assert (steps.observation_EO != last).any(axis=(1, 2, 3)).all()
    assert not home.step([LEFT, RIGHT]).done_E.any()


def test_the_armour_is_the_reward_and_success(home: VizdoomEnv) -> None:
    home.reset(seed=9)
    for action in TO_THE_ARMOUR[:-1]:
        steps = home.step([action, LEFT])
        assert not steps.done_E.any()
    last, steps = steps.observation_EO, home.step([TO_THE_ARMOUR[-1], LEFT])
    assert steps.done_E.tolist() == steps.success_E.tolist() == [True, False]
    assert steps.reward_E.tolist() == pytest.approx([1, 0], abs=0.001)
    np.testing.assert_array_equal(steps.terminal_observation_FO, last[:1])


def test_episodes_depend_on_seed_environment_and_number_alone(home: VizdoomEnv) -> None:
    starts = [home.reset(seed=9)]
    for action in TO_THE_ARMOUR:
        steps = home.step([action, LEFT])
    second = steps.observation_EO[0]  # environment 0 is in episode 1
    after = [home.step([FORWARD, LEFT]).observation_EO[0] for _ in range(20)]
    with closing(VizdoomEnv(HOME, 1, seed=9)) as one:
        np.testing.assert_array_equal(one.reset(), starts[0][:1])
        one._engines[0].begin(episode_seed(9, 0, 1), one._seen_EO[0])
        np.testing.assert_array_equal(one._seen_EO[0], second)
        np.testing.assert_array_equal([one.step([FORWARD]).observation_EO[0] for _ in range(20)], after)
    np.testing.assert_array_equal(home.reset(), starts[0])
    starts += [home.reset(seed=10), home.reset(seed=9 + 2**32)]
    assert len(np.unique(np.concatenate([*starts, second[None]]).reshape(7, -1), axis=0)) == 7


def test_arrays_belong_to_the_caller_and_bad_actions_change_nothing(home: VizdoomEnv) -> None:
    action_TE = np.random.default_rng(0).integers(0, 5, (60, 2))
    home.reset(seed=3)
    expected = play(home, action_TE)
    digest, kept, copies = hashlib.sha256(home.reset().tobytes()), list[Any](), list[Any]()
    for t, action_E in enumerate(action_TE):
        for bad, message in (([0, 5], "action 5 of environment 1"), ([0], "shape"), ([0.0, 1.0], "integers")):
            with pytest.raises(ValueError, match=message):
                home.step(bad)
        steps = home.step(action_E)
        for part in steps:
            digest.update(part.tobytes())
            if t % 2:
                part[...] = 1
        kept += steps
        copies += [part.copy() for part in steps]
    assert digest.hexdigest() == expected
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_two_programs_fight_at_once_without_ports_and_see_the_same() -> None:
    """Death costs a frag if it is one's own doing, and is no end; an episode is over after 1050 steps."""
    with subprocess.Popen([sys.executable, "-c", BRAWL], stdout=subprocess.PIPE, text=True) as other:
        with closing(VizdoomEnv(FIGHT, 1, seed=13)) as env:
            digest, died, reward_T = hashlib.sha256(env.reset().tobytes()), False, []
            for t in range(1050):
                steps = env.step([SUICIDAL[t % 7]])
                for part in steps:
                    digest.update(part.tobytes())
                reward_T.append(float(steps.reward_E[0]))
                assert steps.done_E.tolist() == [t == 1049]
                died |= bool(game(env).is_player_dead())
            assert not steps.success_E.any()
            [pid] = engines(env._guard.mark)
            links = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
            tables = "".join(Path(f"/proc/{pid}/net/{name}").read_text() for name in ("udp", "udp6", "tcp", "tcp6"))
            assert not [link for link in links if link.startswith("socket:") and f" {link[8:-1]} " in tables]
        assert other.stdout is not None
        assert other.stdout.read().strip() == digest.hexdigest()
    assert died
    assert -1 in reward_T


def test_a_fight_depends_on_its_seed_alone_too() -> None:
    action_TE = np.random.default_rng(1).integers(0, 15, (80, 1))
    with closing(VizdoomEnv(FIGHT, 1, seed=1)) as env:
        first = play(env, action_TE)
        assert play(env, action_TE) == first
        env.reset(seed=2)
        assert play(env, action_TE) != first


class SeesLabels(vizdoom.DoomGame):
    """Tells which object is where on the screen, which no agent of ours is told."""

    def init(self) -> None:
        self.set_labels_buffer_enabled(True)
        super().init()


def aim(fight: Any, random: np.random.Generator) -> int:
    """Shoots at whom it sees, and else runs about."""
    x, y = (fight.get_game_variable(v) for v in (GameVariable.POSITION_X, GameVariable.POSITION_Y))
    players = [label for label in fight.get_state().labels if label.object_name == "DoomPlayer"]
    others = [p for p in players if np.hypot(p.object_position_x - x, p.object_position_y - y) > 1]
    if not others:
        return int(random.choice([0, 0, 0, 0, 11, 10, 12, 13]))
    target = max(others, key=lambda label: label.width * label.height)
    offset = target.x + target.width / 2 - 80
    return 14 if abs(offset) < max(4, target.width / 2) else 5 if offset > 0 else 4


def test_three_bots_are_there_and_a_frag_is_a_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vizdoom, "DoomGame", SeesLabels)
    with closing(VizdoomEnv(FIGHT, 1, seed=7)) as env:
        env.reset()
        random, total = np.random.default_rng(7), 0.0
        for _ in range(400):
            total += env.step([aim(game(env), random)]).reward_E[0]
            server = game(env).get_server_state()
            assert sum(server.players_in_game) == server.player_count == 4
            assert total == server.players_frags[0]
        assert total >= 2


def test_a_crashed_engine_costs_its_episode_only(caplog: pytest.LogCaptureFixture) -> None:
    with closing(VizdoomEnv(HOME, 2, seed=0)) as env, closing(VizdoomEnv(HOME, 2, seed=0)) as twin:
        env.reset()
        twin.reset()
        before, expected = env.step([RIGHT, FORWARD]), twin.step([RIGHT, FORWARD])
        kill_engine(env, 0)
        steps, expected = env.step([RIGHT, FORWARD]), twin.step([RIGHT, FORWARD])
        assert (steps.done_E.tolist(), steps.success_E.tolist(), steps.reward_E[0]) == ([True, False], [False] * 2, 0)
        assert env.dropped_E.tolist() == [True, False]
        np.testing.assert_array_equal(steps.terminal_observation_FO, before.observation_EO[:1])
        np.testing.assert_array_equal(steps.observation_EO[1], expected.observation_EO[1])
        twin._episode_E[0] = 0
        twin._begin(0)
        np.testing.assert_array_equal(steps.observation_EO[0], twin._seen_EO[0])  # the first of episode 1
        for _ in range(5):
            steps, expected = env.step([FORWARD, LEFT]), twin.step([FORWARD, LEFT])
            np.testing.assert_array_equal(steps.observation_EO, expected.observation_EO)
            assert not env.dropped_E.any()
        assert (env.dropped_episodes, twin.dropped_episodes) == (1, 0)
        assert "ViZDoom crashed in episode 0 of environment 0 and is started again" in caplog.text
        for _ in range(3):  # with a completed step in between, it may crash as often as it likes
            kill_engine(env, 1)
            assert env.step([LEFT, LEFT]).done_E.tolist() == [False, True]
            assert not env.step([LEFT, LEFT]).done_E.any()
        assert env.dropped_episodes == 4


def test_an_engine_that_always_crashes_is_an_error() -> None:
    with closing(VizdoomEnv(HOME, 1, seed=0)) as env:
        env.reset()
        for _ in range(2):
            kill_engine(env, 0)
            env.step([0])
        kill_engine(env, 0)
        with pytest.raises(RuntimeError, match="crashed 3 times in a row in environment 0 without one completed step"):
            env.step([0])


def test_leaves_no_file_and_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = VizdoomEnv(HOME, 2, seed=0)
    env.reset()
    found = engines(env._guard.mark)
    assert len(found) == 2
    env.close()
    env.close()
    assert not engines(env._guard.mark)
    assert env._guard.closed
    assert not [file for name in found.values() for file in Path("/dev/shm").glob(f"*{name}")]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "_vizdoom").mkdir()  # as if another program were starting an engine here
    with closing(VizdoomEnv(HOME, 1, seed=0)) as env:
        env.reset()
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "_vizdoom").mkdir()
        (tmp_path / "_vizdoom" / "somebody's").touch()
        kill_engine(env, 0)
        env.step([0])  # starts an engine again
    assert (tmp_path / "_vizdoom" / "somebody's").exists()


def test_no_engine_survives_a_program_that_is_killed() -> None:
    code = """
import sys
from leco.envs.vizdoom.environment import VizdoomEnv
env = VizdoomEnv("my_way_home", 2, seed=0)
env.reset()
print(env._guard.mark, flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None
        mark = program.stdout.readline().strip()
        found = engines(mark)
        assert len(found) == 2
        program.kill()
    until(lambda: not engines(mark))
    until(lambda: not [file for name in found.values() for file in Path("/dev/shm").glob(f"*{name}")])


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("raise ModuleNotFoundError", "ViZDoom is not installed: pip install 'leco[vizdoom]'"),
        ("raise ImportError('no libX.so')", "ViZDoom is installed but cannot be loaded: no libX.so"),
    ],
)
def test_without_the_package_one_sentence_says_what_to_do(tmp_path: Path, module: str, sentence: str) -> None:
    """tests/integration/test_pixels.py shows that it is all that `leco actor` prints."""
    (tmp_path / "vizdoom.py").write_text(module)
    code = "from leco.envs.registry import make; make('vizdoom-my-way-home', 1, 0)"
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.stderr.splitlines()[-1] == f"ValueError: {sentence}"


def test_the_ends_of_a_deathmatch_are_spread_by_a_first_episode_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENARIOS, FIGHT, replace(SCENARIOS[FIGHT], max_steps=12))
    with closing(VizdoomEnv(FIGHT, 2, seed=0)) as env:
        env.reset(first_lengths=[6, 12])
        ends = []
        for t in range(24):
            steps = env.step([8, 8])
            ends += [(t, e, bool(env.dropped_E[e])) for e in np.flatnonzero(steps.done_E).tolist()]
        assert ends == [(5, 0, True), (11, 1, False), (17, 0, False), (23, 1, False)]
        assert env.dropped_episodes == 0
        env.reset()
        assert [env.step([8, 8]).done_E.tolist() for _ in range(12)] == [[False] * 2] * 11 + [[True] * 2]
