"""Tests of the DeepMind Lab adapter, in real child processes, against the strict stand-in of tests/support/dmlab_stand_in."""

from __future__ import annotations

import ast
import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from prometheus_client import CollectorRegistry

from leco.checkpoint.snapshot import make_snapshot
from leco.cli import evaluate
from leco.config.experiment import method_of, task_of
from leco.config.toml import parse
from leco.envs.dmlab import engine
from leco.envs.dmlab.environment import ACTIONS, DmlabEnv, Machine
from leco.envs.dmlab.level_cache import LevelCache
from leco.envs.registry import find_task
from leco.envs.vector import episode_seed
from leco.evaluation.recording import read_recording
from leco.learning.state import init
from leco.models.build import build
from leco.report.statistics import human_normalised
from services.actor.loop import Actor
from services.actor.metrics import ActorMetrics
from services.learner.specification import make_specification
from support import needs
from support.paths import DMLAB_STAND_IN, ROOT
from support.waiting import PATIENCE, until
from support.zoo_case import saved_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leco.envs.vector import VectorEnv

pytestmark = needs.zip_program.mark
LEVEL = "contributed/dmlab30/lasertag_three_opponents_small"
SOURCES = Path(engine.__file__).parent
STAND_IN = DMLAB_STAND_IN / "deepmind_lab" / "__init__.py"
FORWARD, BACKWARD, FIRE = 0, 1, 14


class Lab:
    """Makes environments on the stand-in, and closes them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch, self._made = patch, list[DmlabEnv]()

    def misbehave(self, **hooks: Any) -> None:
        self._patch.setenv("DMLAB_STAND_IN", json.dumps(hooks))

    def set(self, **settings: object) -> None:
        for name, value in settings.items():
            self._patch.setenv(f"LECO_DMLAB_{name}", str(value))

    def make(self, environments: int, seed: int = 0, level: str = LEVEL) -> DmlabEnv:
        self._made.append(DmlabEnv(level, environments, seed))
        return self._made[-1]

    def close(self) -> None:
        for env in self._made:
            env.close()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    for name in [each for each in os.environ if each.startswith("LECO_DMLAB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(DMLAB_STAND_IN))
    lab = Lab(monkeypatch)
    lab.set(CACHE="off", STEP_SECONDS=PATIENCE, RESET_SECONDS=PATIENCE)
    yield lab
    lab.close()
    assert engines() == []


def engines(parent: int | None = None) -> list[int]:
    """The process ids of the engines that this process, or another, has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat, command = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == (parent or os.getpid()) and b"dmlab/engine.py" in command:
                found.append(int(entry.name))
    return sorted(found)


def spelled(picture: Any, row: int) -> list[int]:
    """The numbers that the stand-in wrote into a picture: the action, or frame, seed, episode and num_steps."""
    return [int(each) for each in np.frombuffer(picture[row].tobytes()[:28], "<i4")]


def told(picture_E: Any) -> list[list[int]]:
    """All the numbers of pictures. The rest of a picture is not determined by the seed."""
    return [spelled(picture, 0) + spelled(picture, 1) for picture in picture_E]


def maps(picture_E: Any) -> Any:
    """What pictures show, from wherever it is seen: it follows the seed."""
    return np.sort(np.asarray(picture_E)[:, 2:], axis=2)


def agree(steps: Any, truth: Any) -> None:
    """That the same happened, as far as engines can agree."""
    assert told(steps.observation_EO) == told(truth.observation_EO)
    assert told(steps.terminal_observation_FO) == told(truth.terminal_observation_FO)
    for part, expected in zip(steps[1:4], truth[1:4], strict=True):
        np.testing.assert_array_equal(part, expected)


# --- what every environment does: the assertions of tests/contract/test_environments.py ---


def test_says_what_it_is_and_gives_the_shapes_and_types_that_it_promises(lab: Lab) -> None:
    env: VectorEnv = lab.make(3)
    assert (env.observation_shape, env.num_actions, env.num_envs) == ((72, 96, 3), 15, 3)
    first = env.reset()
    assert [(str(a.dtype), a.shape) for a in (first, *env.step([0, 1, 2]))] == [
        ("uint8", (3, 72, 96, 3)),
        ("uint8", (3, 72, 96, 3)),
        ("float32", (3,)),
        ("bool", (3,)),
        ("bool", (3,)),
        ("uint8", (0, 72, 96, 3)),
    ]


def test_an_episode_ends_by_itself_with_the_last_picture_there_was(lab: Lab) -> None:
    lab.misbehave(frames=10)
    env = lab.make(2)
    env.reset()
    for _ in range(2):
        before = env.step([FIRE, FORWARD])
        assert not before.done_E.any()
        assert before.reward_E.tolist() == [4, 1]  # of four frames
    steps = env.step([FIRE, FORWARD])
    assert steps.done_E.tolist() == [True, True]
    assert not env.dropped_E.any()
    assert steps.success_E.tolist() == [False, False]
    assert steps.reward_E.tolist() == [2, 0.5]  # of the two frames that were left
    np.testing.assert_array_equal(steps.terminal_observation_FO, before.observation_EO)
    assert [spelled(picture, 1)[0] for picture in steps.observation_EO] == [0, 0]
    assert [spelled(picture, 1)[2] for picture in steps.observation_EO] == [1, 1]
    assert env.dropped_episodes == 0


def test_maps_depend_on_seed_environment_and_number_alone_and_starts_do_not(lab: Lab) -> None:
    lab.misbehave(frames=8)
    many, one = lab.make(3, seed=3), lab.make(1, seed=3)
    many_KE, one_KE = [many.reset()], [one.reset()]
    for t in range(6):
        steps, other = many.step([t % 2, 3, 4]), one.step([FIRE])
        if t % 2:
            assert steps.done_E.all()
            many_KE.append(steps.observation_EO)
            one_KE.append(other.observation_EO)
    np.testing.assert_array_equal(maps(np.array(many_KE)[:, 0]), maps(np.array(one_KE)[:, 0]))
    assert (np.array(many_KE)[:, 0] != np.array(one_KE)[:, 0]).any()  # of four, some start elsewhere
    for k, picture_E in enumerate(many_KE):
        for e, picture in enumerate(picture_E):
            assert spelled(picture, 1)[:3] == [0, episode_seed(3, e, k) >> 33, k]


def test_reset_starts_again_and_takes_a_new_seed_and_keeps_it(lab: Lab) -> None:
    lab.misbehave(frames=8)
    env, other = lab.make(2, seed=1), lab.make(2, seed=2)
    first, expected = env.reset(), other.reset()
    for _ in range(3):
        later = env.step([1, 2]).observation_EO
    assert (later != first).any()
    assert told(env.reset()) == told(first)
    assert not env.step([0, 0]).done_E.any()
    assert env.step([0, 0]).done_E.all()
    assert told(env.reset(seed=2)) == told(expected)
    np.testing.assert_array_equal(maps(env.reset()), maps(expected))
    assert told(first) != told(expected)


def test_arrays_belong_to_the_caller(lab: Lab) -> None:
    lab.misbehave(frames=12)
    env, twin = lab.make(2), lab.make(2)
    kept: list[Any] = [env.reset()]
    twin.reset()
    copies = [kept[0].copy()]
    for t in range(10):
        steps, expected = env.step([2, 14]), twin.step([2, 14])
        agree(steps, expected)
        if t % 2:
            for part in steps:
                part[...] = 1
        kept += steps
        copies += [part.copy() for part in steps]
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize(
    ("action_E", "message"),
    [
        ([0], r"shape \[1\], expected \[2\]"),
        ([0.0, 1.0], "must be integers, not float64"),
        ([0, 15], "action 15 of environment 1 is not one of 0 to 14"),
        ([-1, 0], "action -1 of environment 0 is not one of 0 to 14"),
    ],
)
def test_bad_actions_are_refused_and_change_nothing(lab: Lab, action_E: Any, message: str) -> None:
    env = lab.make(2)
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(action_E)
    steps = env.step(np.array([1, 2], np.uint64))
    assert [spelled(picture, 1)[0] for picture in steps.observation_EO] == [4, 4]


def test_cannot_be_stepped_before_reset_or_used_after_close(lab: Lab) -> None:
    env = lab.make(1)
    with pytest.raises(RuntimeError, match=r"reset\(\) must be called before step\(\)"):
        env.step([0])
    env.reset()
    assert len(engines()) == 1
    env.close()
    assert engines() == []
    env.close()
    with pytest.raises(RuntimeError):
        env.step([0])
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


def test_refuses_impossible_sizes_and_seeds(lab: Lab) -> None:
    with pytest.raises(ValueError, match="at least 1 environment, not 0"):
        lab.make(0)
    with pytest.raises(ValueError, match="a seed must be an integer of at least 0, not -1"):
        lab.make(1, seed=-1)
    with pytest.raises(ValueError, match="a seed must be"):
        lab.make(1).reset(seed=1.5)  # type: ignore[arg-type]


# --- DeepMind Lab's own ---


def test_actions_are_the_published_vectors_for_four_frames(lab: Lab) -> None:
    env = lab.make(15)
    env.reset()
    steps = env.step(range(15))
    sent = [spelled(picture, 0) for picture in steps.observation_EO]
    assert sent == [list(each) for each in ACTIONS]
    assert sent[0] == [0, 0, 0, 1, 0, 0, 0]
    assert sent[1] == [0, 0, 0, -1, 0, 0, 0]
    assert sent[2] == [0, 0, -1, 0, 0, 0, 0]
    assert sent[5] == [10, 0, 0, 0, 0, 0, 0]
    assert sent[6] == [-60, 0, 0, 0, 0, 0, 0]
    assert sent[9] == [0, -10, 0, 0, 0, 0, 0]
    assert sent[13] == [60, 0, 0, 1, 0, 0, 0]
    assert sent[14] == [0, 0, 0, 0, 1, 0, 0]
    assert len(set(ACTIONS)) == 15
    assert [spelled(picture, 1)[3] for picture in steps.observation_EO] == [4] * 15
    assert steps.reward_E.tolist() == [1, *[0] * 9, 1, 1, 1, 1, 4]


def test_an_episode_is_cut_after_3600_actions(lab: Lab) -> None:
    lab.misbehave(frames=20_000)
    env = lab.make(1)
    env.reset()
    for _ in range(3599):
        assert not env.step([BACKWARD]).done_E[0]
    steps = env.step([FIRE])
    assert steps.done_E.tolist() == [True]
    assert steps.reward_E.tolist() == [4]
    assert spelled(steps.terminal_observation_FO[0], 1)[0] == 14_400
    assert spelled(steps.observation_EO[0], 1)[0::2][:2] == [0, 1]


def test_ends_are_spread_by_first_episodes_that_are_cut_and_called_dropped(lab: Lab) -> None:
    lab._patch.setattr("leco.envs.dmlab.environment.MAX_STEPS", 12)
    lab.misbehave(frames=48)
    env = lab.make(4)
    first = env.reset(first_lengths=[3, 6, 9, 12])
    assert [spelled(picture, 1)[1] for picture in first] == [episode_seed(0, e, 0) >> 33 for e in range(4)]
    done, dropped = [], []
    for _ in range(24):
        steps = env.step([FIRE] * 4)
        done.append(np.flatnonzero(steps.done_E).tolist())
        dropped.append(np.flatnonzero(env.dropped_E).tolist())
        if len(done) == 3:  # unlike the level's own end, a cut shows the true last picture
            assert spelled(steps.terminal_observation_FO[0], 1)[0] == 12
    every_third = [[e] if t % 3 == 2 else [] for e in (0, 1, 2, 3) for t in range(3)]
    assert done == every_third * 2
    assert dropped == [*every_third[:9], *[[]] * 15]  # the last environment's first episode is whole
    assert env.dropped_episodes == 0
    env.reset()
    assert [env.step([FIRE] * 4).done_E.tolist() for _ in range(12)] == [[False] * 4] * 11 + [[True] * 4]


@pytest.mark.parametrize(("index", "cut"), [(0, [6]), (1, [3, 9])])
def test_an_actor_spreads_the_ends_and_tells_no_result_of_what_it_cut(lab: Lab, index: int, cut: list[int]) -> None:
    lab._patch.setattr("leco.envs.dmlab.environment.MAX_STEPS", 12)
    lab._patch.setattr("services.actor.loop.task_of", lambda of: replace(task_of(of), max_steps=12))
    lab.misbehave(frames=48)
    experiment = parse('task = "lasertag_three_opponents_small"\nmethod = "no-int"\n[actors]\nnum_envs = 2')
    networks = build(method_of(experiment), (72, 96, 3), 15, experiment.hash, experiment.network)
    metrics = ActorMetrics(CollectorRegistry())
    actor: Any = Actor(
        None,  # type: ignore[arg-type]  # nothing is sent
        make_specification(experiment, networks, "run", find_task(experiment.task)),
        None,
        index=index,
        metrics=metrics,
    )
    try:
        actor._load_parameters(make_snapshot(init(networks), 1))
        unroll = actor._worker.play(24)
        actor._note(unroll)
    finally:
        actor._env.close()
    ends = [[(each.step, each.summary.length, each.summary.dropped) for each in of_one] for of_one in unroll.endings]
    whole = [12] if index == 0 else []
    assert [of_one[0] for of_one in ends] == [(n - 1, n, True) for n in cut] + [(n - 1, n, False) for n in whole]
    assert all(length == 12 and not dropped for of_one in ends for _, length, dropped in of_one[1:])
    assert metrics.episodes._value.get() == len([each for of_one in ends for each in of_one]) - len(cut)
    assert metrics.dropped._value.get() == 0


def test_engines_step_at_the_same_time(lab: Lab, tmp_path: Path) -> None:
    """Each engine waits for the others: in turns, none of them would ever answer."""
    (tmp_path / "deepmind_lab.py").write_text(
        "import importlib.util, os, pathlib, time\n"
        f"spec = importlib.util.spec_from_file_location('stand_in', {str(STAND_IN)!r})\n"
        "stand_in = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(stand_in)\n"
        "class Lab(stand_in.Lab):\n"
        "    def step(self, action, num_steps=1):\n"
        f"        here = pathlib.Path({str(tmp_path)!r})\n"
        "        (here / f'{os.getpid()}.here').touch()\n"
        "        while len(list(here.glob('*.here'))) < 4:\n"
        "            time.sleep(0.01)\n"
        "        return super().step(action, num_steps)\n"
    )
    lab._patch.setenv("PYTHONPATH", f"{tmp_path}:{DMLAB_STAND_IN}")
    env = lab.make(4)
    env.reset()
    assert not env.step([0] * 4).done_E.any()
    assert env.dropped_episodes == 0


def test_what_the_module_prints_is_harmless(lab: Lab) -> None:
    quiet = lab.make(2)
    lab.misbehave(step={"do": "noise"}, reset={"do": "noise"})
    noisy = lab.make(2)
    assert told(quiet.reset()) == told(noisy.reset())
    for _ in range(5):
        agree(noisy.step([3, 14]), quiet.step([3, 14]))
    assert noisy.dropped_episodes == 0


# --- engines that fail ---


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("crash", "was ended by SIGKILL"),
        ("exit", "ended with exit code 7"),
        ("raise", "its engine raised ValueError: Failed to advance environment"),
        ("hang", "gave no answer in 10 seconds"),
    ],
)
def test_an_engine_that_fails_is_replaced_and_its_episode_dropped(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, reason: str
) -> None:
    good = lab.make(3, seed=5)
    if how == "hang":
        lab.set(STEP_SECONDS=10)  # in which the others answer
    lab.misbehave(step={"do": how, "at": 9, "once": str(tmp_path / "once")})
    env = lab.make(3, seed=5)
    assert told(env.reset()) == told(good.reset())
    before = set(engines())
    for t in range(5):
        with caplog.at_level(logging.WARNING, "leco.envs.dmlab.environment"):
            steps, truth = env.step([FIRE] * 3), good.step([FIRE] * 3)
        if t == 1:
            last = steps.observation_EO
        if t == 2:  # frame 9 is in the third action
            assert steps.done_E.sum() == 1
            e = int(np.flatnonzero(steps.done_E)[0])
            assert steps.reward_E[e] == 0
            assert not steps.success_E.any()
            np.testing.assert_array_equal(steps.terminal_observation_FO, last[[e]])
            assert spelled(steps.observation_EO[e], 1)[:3] == [0, episode_seed(5, e, 1) >> 33, 1]
        assert env.dropped_E.tolist() == (steps.done_E.tolist() if t == 2 else [False] * 3)
        if t >= 2:
            others = np.arange(3) != e
            assert told(steps.observation_EO[others]) == told(truth.observation_EO[others])
            np.testing.assert_array_equal(steps.reward_E[others], truth.reward_E[others])
    assert spelled(steps.observation_EO[e], 1)[0] == 8  # two actions later it is well
    assert env.dropped_episodes == 1
    after = set(engines())
    assert (len(after), len(before & after)) == (6, 5)
    [message] = [record.getMessage() for record in caplog.records]
    assert f"dropped episode 0 of environment {e}" in message
    assert reason in message
    assert f"stand-in: {how} in step" in message


@pytest.mark.parametrize("where", ["reset", "constructor"])
def test_an_engine_that_cannot_start_an_episode_starts_the_next_one(lab: Lab, tmp_path: Path, where: str) -> None:
    env = lab.make(3)
    lab.misbehave(**{where: {"do": "crash", "once": str(tmp_path / "once")}})  # of the two engines that are started now
    numbers = [spelled(picture, 1) for picture in env.reset()]
    assert sorted(number[2] for number in numbers) == [0, 0, 1]
    assert [number[1] for number in numbers] == [episode_seed(0, e, n[2]) >> 33 for e, n in enumerate(numbers)]
    assert env.dropped_episodes == 1
    assert not env.step([0] * 3).done_E.any()


def test_an_engine_that_fails_in_every_step_is_an_error(lab: Lab) -> None:
    lab.misbehave(step={"do": "exit", "at": 1})
    env = lab.make(1)
    env.reset()
    for _ in range(4):
        assert env.step([0]).done_E.all()
    with pytest.raises(RuntimeError, match=r"environment 0 failed 5 times .* exit code 7; it printed: stand-in: exit"):
        env.step([0])
    assert engines() == []


def test_an_engine_that_fails_in_every_reset_is_an_error(lab: Lab) -> None:
    lab.misbehave(reset={"do": "raise"})
    env = lab.make(2)
    with pytest.raises(
        RuntimeError, match="failed 5 times without a step between; the last one raised ValueError: Failed"
    ):
        env.reset()
    assert engines() == []


def test_a_failure_now_and_then_is_no_error(lab: Lab) -> None:
    lab.misbehave(step={"do": "exit", "at": 5})
    env = lab.make(1)
    env.reset()
    assert [bool(env.step([0]).done_E[0]) for _ in range(12)] == [False, True] * 6
    assert env.dropped_episodes == 6


def test_nothing_is_left_on_disk(lab: Lab, tmp_path: Path) -> None:
    lab._patch.setattr("tempfile.tempdir", str(tmp_path))
    lab.misbehave(step={"do": "crash", "at": 5, "once": str(tmp_path / "once")})
    env = lab.make(2)
    env.reset()
    assert len(list(tmp_path.glob("leco-dmlab-*/dmlab_temp_folder_*"))) == 2
    env.step([0, 0])
    env.step([0, 0])
    assert env.dropped_episodes == 1
    assert len(list(tmp_path.glob("leco-dmlab-*/dmlab_temp_folder_*"))) == 2
    env.close()
    assert [each.name for each in tmp_path.iterdir()] == ["once"]


def test_engines_end_when_their_parent_is_killed(lab: Lab, tmp_path: Path) -> None:
    once = tmp_path / "once"
    lab.misbehave(step={"do": "hang", "at": 1, "once": str(once)})
    lab._patch.setenv("TMPDIR", str(tmp_path))  # what a killed parent leaves
    program = (
        "from leco.envs.dmlab.environment import DmlabEnv\n"
        f"env = DmlabEnv({LEVEL!r}, 2, 0)\n"
        "env.reset()\n"
        "print('ready', flush=True)\n"
        "env.step([0, 0])\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        children = engines(parent.pid)
        assert len(children) == 2
        until(once.exists)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{each}").exists() for each in children))


# --- machines that cannot play, and settings ---


def test_without_the_module_says_what_to_install(lab: Lab) -> None:
    lab._patch.delenv("PYTHONPATH")
    with pytest.raises(ValueError, match=r"docs/dmlab.md tells what to install there; LECO_DMLAB_PYTHON") as error:
        lab.make(3)
    assert str(error.value).startswith(
        f"DeepMind Lab cannot be used with {sys.executable}, which raised ModuleNotFoundError: No module named 'deepmind_lab'"
    )
    assert "\n" not in str(error.value)
    assert engines() == []


@pytest.mark.parametrize("missing", ["dm_env", "pkg_resources"])
def test_without_what_the_module_imports_says_what_it_is(lab: Lab, tmp_path: Path, missing: str) -> None:
    for each in DMLAB_STAND_IN.iterdir():
        if each.stem != missing:
            (tmp_path / each.name).symlink_to(each)
    lab._patch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=f"No module named '{missing}': docs/dmlab.md tells what to install there"):
        lab.make(1)


def test_without_zip_says_so_before_an_engine_compiles_for_a_minute(lab: Lab, tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    compiled.mkdir()
    lab.misbehave(compiled=str(compiled))
    lab._patch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="the program zip, with which it packs compiled levels, is not in PATH"):
        lab.make(2).reset()
    assert list(compiled.iterdir()) == []


def test_what_an_engine_printed_is_told_from_its_beginning_and_its_end(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.misbehave(reset={"do": "compile"})
    env = lab.make(1)
    with pytest.raises(RuntimeError, match=r"(?s)line 125: zip: command not found.* \[\.\.\.\] .*the end$") as error:
        env.reset()
    assert len(str(error.value)) < 2000
    assert caplog.text.count("zip: command not found") == 5


def test_a_module_for_another_python_says_so(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "deepmind_lab.py").write_text("raise ImportError('undefined symbol: _PyGen_Send')")
    lab._patch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"ImportError: undefined symbol: _PyGen_Send.* LECO_DMLAB_PYTHON"):
        lab.make(1)


def test_without_the_interpreter_says_which_setting_names_it(lab: Lab, tmp_path: Path) -> None:
    lab.set(PYTHON=tmp_path / "python3.8")
    with pytest.raises(ValueError, match=r"python3\.8 \(No such file or directory\): LECO_DMLAB_PYTHON names"):
        lab.make(1)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "#!/bin/sh\necho 'SyntaxError: future feature annotations' >&2\nexit 1\n",
            "exit code 1; it printed: SyntaxError.* Python 3.7",
        ),
        (
            (
                f"#!{sys.executable}\nimport os, struct, sys\n"
                "os.write(int(sys.argv[2]), struct.pack('<BIHHH', 16, 6, 99, 3, 6))\n"
            ),
            "speaks version 99 of the protocol in Python 3.6, not 1",
        ),
        (
            f"#!{sys.executable}\nimport os, sys\nos.write(int(sys.argv[2]), b'Python 3 ' * 9)\n",
            "sent a message of kind 80",
        ),
    ],
)
def test_an_interpreter_that_is_no_use_says_why(lab: Lab, tmp_path: Path, program: str, message: str) -> None:
    python = tmp_path / "python"
    python.write_text(program)
    python.chmod(0o755)
    lab.set(PYTHON=python)
    with pytest.raises(ValueError, match=rf"(?s){message}.*LECO_DMLAB_PYTHON"):
        lab.make(1)


def test_what_the_module_refuses_is_an_error_at_once(lab: Lab) -> None:
    with pytest.raises(ValueError, match=r"cannot play lasertag_tiny: .*Level not found: Failed to open file"):
        lab.make(2, level="lasertag_tiny")


def test_an_engine_that_hangs_at_the_start_is_an_error(lab: Lab) -> None:
    lab.set(RESET_SECONDS=1)
    lab.misbehave(constructor={"do": "hang"})
    with pytest.raises(ValueError, match="gave no answer in 1 seconds"):
        lab.make(1)
    assert engines() == []


def test_settings_have_defaults() -> None:
    machine = Machine.from_environment({"HOME": "home"})
    assert machine == Machine(
        sys.executable, Path("home/.cache/leco/dmlab").absolute(), 10_000_000_000, "software", 60.0, 300.0
    )
    assert Machine.from_environment({"LECO_DMLAB_CACHE": "off"}).cache is None
    assert Machine.from_environment({"LECO_DMLAB_CACHE_GB": "0.5"}).cache_bytes == 500_000_000
    assert Machine.from_environment({"LECO_DMLAB_LEVELS": "1000"}).levels == 1000


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("RENDERER", "opengl", "software or hardware"),
        ("STEP_SECONDS", "0", "a number above 0"),
        ("RESET_SECONDS", "soon", "a number above 0"),
        ("CACHE_GB", "nan", "a number above 0"),
        ("CACHE_GB", "inf", "a number above 0"),
        ("LEVELS", "0", "a whole number from 1 to 2147483648"),
        ("LEVELS", "1e3", "a whole number from 1 to 2147483648"),
    ],
)
def test_settings_that_cannot_be_are_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"LECO_DMLAB_{name} is '{value}', expected {expected}"):
        Machine.from_environment({f"LECO_DMLAB_{name}": value})


def test_the_renderer_reaches_the_module(lab: Lab) -> None:
    lab.misbehave(renderer="hardware")
    with pytest.raises(ValueError, match="the renderer is software"):
        lab.make(1)
    lab.set(RENDERER="hardware")
    lab.make(1).reset()


# --- the stand-in: where it was found to differ from the real module, it is as that one ---

AS_THE_REAL_ONE = f"""
import deepmind_lab, numpy as np

def raised(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"

Lab, level = deepmind_lab.Lab, {LEVEL!r}
settings = {{"width": "96", "height": "72", "logLevel": "WARN"}}
assert raised(Lab, level, [], config=None).startswith("TypeError")
assert "Invalid setting" in raised(Lab, level, [], config={{"wide": "96"}})
assert raised(Lab, "tiny", []).startswith('RuntimeError: Failed to init environment - "Level not found: Failed to open file')
keys, there = [], []

class Cache:
    def fetch(self, key, path):
        there.append(__import__("os").path.exists(path))
        return 0
    def write(self, key, path):
        keys.append(key)

lab = Lab(level, ["RGB_INTERLEAVED"], config=settings, level_cache=Cache())
assert not hasattr(lab, "fps")
assert lab.num_steps() == 0
for seed in (None, 2**31, -5, 7, 7):
    assert lab.reset(seed=seed)
assert raised(lab.reset, seed=7.0).startswith("ValueError")
assert raised(lab.reset, episode=2**31).startswith("OverflowError")
assert all(key.startswith("lt_procedural_aas_") and len(key) == 50 for key in keys)
assert keys[-2] == keys[-1] != keys[0]
assert there == [False, True, True, True, True]
lab.step(np.array([9999, 0, 5, 7, 3, 2, 9], np.intc), num_steps=20_000)
assert (lab.num_steps(), lab.is_running()) == (20_000, False)
assert "wrong status" in raised(lab.observations)
lab.close()
print("closed", flush=True)
lab.{{after}}
"""


@pytest.mark.parametrize("after", ["reset()", "action_spec()"])
def test_the_stand_in_is_as_strict_and_as_lax_as_the_module(lab: Lab, after: str) -> None:
    assert lab
    program = [sys.executable, "-W", "ignore", "-c", AS_THE_REAL_ONE.replace("{after}", after)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.returncode) == ("closed\n", -signal.SIGSEGV), done.stderr


# --- the level cache ---


def test_levels_are_compiled_once_by_processes_that_share_a_cache(lab: Lab, tmp_path: Path) -> None:
    cache, compiled = tmp_path / "a" / "cache", tmp_path / "compiled"
    compiled.mkdir()
    lab.set(CACHE=cache)
    lab.misbehave(frames=4, compiled=str(compiled))
    program = (
        "from leco.envs.dmlab.environment import DmlabEnv\n"
        f"env = DmlabEnv({LEVEL!r}, 2, 0)\n"
        "env.reset()\n"
        "[env.step([0, 0]) for _ in range(9)]\n"
        "env.close()\n"
        "assert env.dropped_episodes == 0\n"
    )
    together = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [each.wait(PATIENCE) for each in together] == [0, 0]
    levels = list(cache.iterdir())
    assert len(levels) == 20
    assert {each.suffix for each in levels} == {".level"}
    seeds = {each.name.split("-")[0] for each in compiled.iterdir()}
    assert len(seeds) == 20
    for each in compiled.iterdir():
        each.unlink()
    env = lab.make(2)
    env.reset()
    for _ in range(9):
        env.step([0, 0])
    assert list(compiled.iterdir()) == []


def test_a_cache_that_cannot_be_used_is_no_reason_to_stop(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    lab.set(CACHE=tmp_path / "file" / "cache")
    lab.misbehave(frames=4)
    env = lab.make(1)
    env.reset()
    assert env.step([0]).done_E.all()
    assert env.dropped_episodes == 0
    assert "compiled levels are not kept" in caplog.text


def test_a_level_comes_back_as_it_was_under_any_key(tmp_path: Path) -> None:
    cache, level, copy = LevelCache(str(tmp_path / "cache"), 10**6), tmp_path / "level", tmp_path / "copy"
    for number, key in enumerate(["../../outside", "/etc/passwd", "a/b", "", "x" * 5000, "\udc80"]):
        level.write_bytes(bytes([number]) * 100)
        assert cache.fetch(key, str(copy)) is False
        assert not copy.exists()
        cache.write(key, str(level))
        assert cache.fetch(key, str(copy)) is True
        assert copy.read_bytes() == level.read_bytes()
        copy.unlink()
    assert {each.name for each in tmp_path.iterdir()} == {"cache", "level"}
    assert len(list((tmp_path / "cache").iterdir())) == 6


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_level_is_never_used(tmp_path: Path, damage: bytes | None) -> None:
    cache, level, copy = LevelCache(str(tmp_path / "cache"), 10**6), tmp_path / "level", tmp_path / "copy"
    level.write_bytes(bytes(range(200)))
    cache.write("key", str(level))
    [kept] = (tmp_path / "cache").iterdir()
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.write_bytes(content if damage is None else damage)
    assert cache.fetch("key", str(copy)) is False
    assert not copy.exists()
    cache.write("key", str(level))
    assert cache.fetch("key", str(copy)) is True
    assert copy.read_bytes() == level.read_bytes()


def test_the_cache_stays_within_its_size_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    folder, level, copy = tmp_path / "cache", tmp_path / "level", tmp_path / "copy"
    cache = LevelCache(str(folder), 10_000)
    level.write_bytes(bytes(968))  # with its hash 1,000 bytes
    for key in range(10):
        cache.write(str(key), str(level))
        [newest] = [each for each in folder.iterdir() if each.stat().st_mtime > 1.5e9]
        os.utime(newest, (1e9 + key, 1e9 + key))
    abandoned = folder / "abandoned.tmp"
    abandoned.write_bytes(bytes(10))
    os.utime(abandoned, (1e9, 1e9))
    fresh = folder / "fresh.tmp"
    fresh.touch()
    assert cache.fetch("0", str(copy))  # the oldest, but used now
    cache.write("10", str(level))
    there = [key for key in range(11) if cache.fetch(str(key), str(copy))]
    assert there == [0, 3, 4, 5, 6, 7, 8, 9, 10]
    assert sum(each.stat().st_size for each in folder.glob("*.level")) == 9_000
    assert not abandoned.exists()
    assert fresh.exists()


def test_a_level_is_whole_or_not_there_while_processes_write_and_remove(tmp_path: Path) -> None:
    program = (
        "import random, sys\n"
        "from pathlib import Path\n"
        "from leco.envs.dmlab.level_cache import LevelCache\n"
        "folder, own = sys.argv[1], Path(sys.argv[2])\n"
        "own.mkdir()\n"
        "cache = LevelCache(folder, 400_000)\n"
        "hits = 0\n"
        "for _ in range(400):\n"
        "    key = random.randrange(12)\n"
        "    level = bytes([key]) * 50_000\n"
        "    if cache.fetch(str(key), str(own / 'copy')):\n"
        "        hits += 1\n"
        "        assert (own / 'copy').read_bytes() == level\n"
        "    else:\n"
        "        (own / 'level').write_bytes(level)\n"
        "        cache.write(str(key), str(own / 'level'))\n"
        "print(hits)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cache")]
    together = [
        subprocess.Popen([*command, str(tmp_path / str(each))], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for each in range(3)
    ]
    for each in together:
        out, complaints = each.communicate(timeout=PATIENCE)
        assert each.returncode == 0, complaints
        assert int(out) > 50
        assert complaints == b""
    assert sum(each.stat().st_size for each in (tmp_path / "cache").glob("*.level")) <= 400_000 + 3 * 50_032
    assert list((tmp_path / "cache").glob("*.tmp")) == []


# --- the files themselves, and scores ---


@pytest.mark.parametrize("name", ["environment.py", "process.py", "engine.py", "level_cache.py"])
def test_nothing_is_pickled(name: str) -> None:
    nodes = list(ast.walk(ast.parse((SOURCES / name).read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {each.split(".")[0] for each in imported} & {"pickle", "marshal", "shelve", "multiprocessing", "dill"}


@pytest.mark.parametrize("name", ["engine.py", "level_cache.py"])
def test_what_runs_in_the_other_interpreter_is_old_python_without_leco(name: str) -> None:
    tree = ast.parse((SOURCES / name).read_text(), feature_version=(3, 7))
    nodes = list(ast.walk(tree))
    assert not [node for node in nodes if isinstance(node, ast.NamedExpr | ast.Match)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {each.split(".")[0] for each in imported} <= set(sys.stdlib_module_names)


def test_scores_are_per_cent_of_the_way_from_random_play_to_people() -> None:
    assert human_normalised(-0.214, -0.214, 18.55) == 0
    assert human_normalised(18.55, -0.214, 18.55) == 100
    assert human_normalised(9.168, -0.214, 18.55) == pytest.approx(50)
    assert human_normalised(31.5 + 31.602, -0.102, 31.5) == pytest.approx(200)
    assert human_normalised(-1.0, 0.0, 2.0) == -50
    with pytest.raises(ValueError, match="both score 3"):
        human_normalised(1.0, 3.0, 3.0)


def test_leco_eval_plays_lasertag_to_the_end_with_an_engine_that_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the real adapter, with the stand-in for DeepMind Lab: episodes of 18 frames, which are five actions."""
    run = saved_run(tmp_path / "run", updates=7, task="lasertag_three_opponents_small", method="no-int")
    crash = {"do": "crash", "at": 9, "once": str(tmp_path / "once")}
    for name, value in (("PYTHONPATH", DMLAB_STAND_IN), ("LECO_DMLAB_CACHE", "off"), ("LECO_DMLAB_PYTHON", "")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("DMLAB_STAND_IN", json.dumps({"frames": 18, "step": crash}))
    picture, written = tmp_path / "film.gif", tmp_path / "numbers.json"
    evaluate.main([str(run), "--episodes=10", f"--video={picture}", f"--json={written}"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "lasertag_three_opponents_small, no-int, after 7 updates: 10 fresh episodes"
    assert [line.split()[0] for line in lines[1:4]] == ["success", "mean", "normalised"]
    assert lines[4:] == [
        "mean length   5.0 actions",
        "dropped       1, because their engine failed; others were played in their place",
        f"recorded: {run / 'recordings' / '000000007-seed0.npz'}",
        f"an episode of 5 actions: {picture}",
    ]
    found = json.loads(written.read_text())
    assert (found["episodes"], found["dropped"], found["length"]) == (10, 1, 5.0)
    assert found["human_normalised"] == pytest.approx(100 * (found["return"] + 0.214) / 18.764)
    # An observation is 20 KB, so only two episodes are kept, each whole although one engine failed.
    recording = read_recording(run / "recordings" / "000000007-seed0.npz")
    assert [len(each.action_T) for each in recording.episodes] == [5, 5]
    assert recording.episodes[0].observation_TO.shape == (6, 72, 96, 3)
    assert recording.episodes[0].grid(0) is None
    with Image.open(picture) as opened:
        assert (opened.format, opened.size) == ("GIF", (960, 480))


def test_sigterm_to_leco_eval_leaves_no_engine_and_no_folder(lab: Lab, tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", updates=7, task="lasertag_three_opponents_small", method="no-int")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    lab._patch.setenv("TMPDIR", str(temporary))
    lab._patch.setenv("PYTHONPATH", f"{DMLAB_STAND_IN}:{ROOT}")
    with subprocess.Popen([sys.executable, "-P", "-m", "leco", "eval", str(run), "--episodes=2"]) as player:
        until(lambda: len(list(temporary.glob("leco-dmlab-*/dmlab_temp_folder_*"))) == 2)
        children = engines(player.pid)
        player.terminate()
        assert player.wait(PATIENCE) == 128 + signal.SIGTERM
    assert list(temporary.iterdir()) == []
    until(lambda: not any(Path(f"/proc/{each}").exists() for each in children))
