"""`leco train`: what its flags mean, what it does with children that end, and what it shows; `leco tasks`, `leco methods`."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leco.checkpoint.folder_lock import locked
from leco.cli import progress, tables, train, training
from leco.cli.child import GIVE_UP_AFTER, MINUTE, Child
from leco.cli.store import use_store
from leco.config.experiment import ConfigError
from leco.config.toml import parse, to_toml
from leco.envs.registry import TASKS
from leco.methods.table import METHODS
from leco.telemetry.provenance import CLOCK_ZERO, clock_zero, process_start
from services.learner.metrics_logger import COLUMNS
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leco.config.experiment import Experiment

EXPERIMENT = parse('task = "Empty-5x5"\nframes = 2000')


class Started:
    """What `leco train` would have run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Experiment, Path, dict[str, object]]] = []
        monkeypatch.setattr(train, "train", self._train)

    def _train(self, experiment: Experiment, folder: Path, **rest: object) -> int:
        self.calls.append((experiment, folder, rest))
        return 0

    def __call__(self, *arguments: str) -> tuple[Experiment, Path, dict[str, object]]:
        with pytest.raises(SystemExit) as ended:
            train.main(arguments)
        assert ended.value.code == 0
        return self.calls[-1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    return Started(monkeypatch)


def test_flags_describe_the_experiment(started: Started) -> None:
    experiment, folder, rest = started(
        *(
            "--task=DoorKey-5x5",
            "--method=dsc",
            "--frames=5e5",
            "--seed=3",
            "--num-envs=8",
            "--actors=2",
            "--threads=1",
        ),
        *("--set", "training.alpha=0.25", "--set=training.inner_loss=full", "--set=learner.keep_checkpoints=1e1"),
        "--set=training.policy_betas=[0.5, 0.75]",
    )
    assert (experiment.task, experiment.method, experiment.frames, experiment.seed) == ("DoorKey-5x5", "dsc", 500000, 3)
    assert (experiment.actors.num_envs, experiment.learner.keep_checkpoints) == (8, 10)
    assert (experiment.training.alpha, experiment.training.inner_loss) == (0.25, "full")
    assert experiment.training.policy_betas == (0.5, 0.75)
    assert folder == Path("runs") / "DoorKey-5x5-dsc-3"
    how = {"actors": 2, "store": "memory", "threads": 1, "device": "cpu", "ranks": 1}
    assert rest == how | {"began": rest["began"], "listeners": []}


@pytest.mark.parametrize("typed", ["95%", "95 %", "0.95", ".95", " 95.0% "])
def test_the_success_rate_at_which_training_ends_is_typed_as_people_do(started: Started, typed: str) -> None:
    assert started("--task=Empty-5x5", f"--until={typed}")[0].until == 0.95
    assert started("--task=Empty-5x5", "--until", "100%")[0].until == 1
    assert started("--task=Empty-5x5")[0].until is None


def test_the_seconds_of_a_command_are_those_of_its_process(started: Started) -> None:
    began = started("--task=Empty-5x5")[2]["began"]
    assert isinstance(began, float)
    assert began == pytest.approx(process_start(), abs=1)
    code = (
        "import sys, time; time.sleep(0.5); from leco.telemetry.provenance import process_start; print(process_start())"
    )
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert before - 1 <= float(done.stdout) <= time.monotonic() - 0.5  # the system counts in hundredths


def test_flags_win_over_the_file_and_the_folder_is_enough_to_go_on(started: Started, tmp_path: Path) -> None:
    wanted = parse("", {"task": "DoorKey-5x5", "seed": 7, "learner.deterministic": True})
    (tmp_path / "config.toml").write_text(to_toml(wanted))
    assert started(f"--run-dir={tmp_path}")[:2] == (wanted, tmp_path)
    assert started(f"--config={tmp_path / 'config.toml'}", "--seed=8")[0].seed == 8
    assert started(f"--run-dir={tmp_path}", "--task=Empty-5x5")[0] == parse(
        "", {"task": "Empty-5x5", "preset": "laptop"}
    )
    assert started(f"--run-dir={tmp_path}", "--set=learner.deterministic=false")[0].learner.deterministic is False


def test_the_preset_is_for_laptops_unless_a_file_or_a_flag_says_otherwise(started: Started, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('task = "Empty-5x5"\n')
    paper, laptop = parse(file.read_text()), parse(file.read_text(), {"preset": "laptop"})
    assert paper.training != laptop.training
    assert started("--task=Empty-5x5")[0] == laptop
    assert started("--task=Empty-5x5", "--preset=paper")[0] == paper
    assert started(f"--config={file}")[0] == paper
    assert started(f"--config={file}", "--preset=laptop")[0] == laptop
    file.write_text('preset = "laptop"\ntask = "Empty-5x5"\n')
    assert started(f"--config={file}")[0] == laptop
    assert started(f"--config={file}", "--preset=paper")[0] == paper
    file.write_text("")
    assert started(f"--config={file}", "--task=Empty-5x5")[0] == paper


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "say what to solve: --task NAME (`leco tasks` lists them), or --config FILE"),
        (["--task=Emty-5x5"], "there is no task 'Emty-5x5'; did you mean 'Empty-5x5'?"),
        (["--task=Empty-5x5", "--method=leko"], "there is no method 'leko'; did you mean 'leco'?"),
        (["--task=Empty-5x5", "--frames=0"], "frames is 0, expected more than 0"),
        (["--task=Empty-5x5", "--frames=0.5"], "frames is 0.5, expected a whole number"),
        (["--task=Empty-5x5", "--frames=nan"], "frames is nan, expected a whole number"),
        (["--task=Empty-5x5", "--frames=inf"], "frames is inf, expected a whole number"),
        (["--task=Empty-5x5", "--frames=many"], "argument --frames: must be a number, and not 'many'"),
        (
            ["--task=Empty-5x5", "--until=0"],
            "argument --until: '0' is no success rate: type one above 0 and up to 100%",
        ),
        (["--task=Empty-5x5", "--until=0%"], "argument --until: '0%' is no success rate"),
        (["--task=Empty-5x5", "--until=100.1%"], "argument --until: '100.1%' is no success rate"),
        (
            ["--task=Empty-5x5", "--until=95"],
            "'95' is no success rate: type one above 0 and up to 100%, as 95% or 0.95",
        ),
        (["--task=Empty-5x5", "--until=-5%"], "argument --until: '-5%' is no success rate"),
        (["--task=Empty-5x5", "--until=nan"], "argument --until: 'nan' is no success rate"),
        (["--task=Empty-5x5", "--until=most"], "argument --until: 'most' is no success rate"),
        (["--task=Empty-5x5", "--set=until=2"], "until is 2.0, expected more than 0 and at most 1"),
        (["--task=vizdoom-deathmatch", "--until=95%"], "but vizdoom-deathmatch calls no episode solved"),
        (["--task=Empty-5x5", "--set=alpha"], "--set alpha: expected KEY=VALUE, for example training.alpha=0.02"),
        (["--task=Empty-5x5", "--set=training.alfa=1"], "there is no key training.alfa; did you mean training.alpha?"),
        (["--task=Empty-5x5", "--set=learner.batch_size=x"], "learner.batch_size is 'x', expected a whole number"),
        (["--task=Empty-5x5", "--config=missing.toml"], "missing.toml"),
        (
            ["--task=Empty-5x5", "--num-envs=0"],
            "argument --num-envs: must be a whole number of at least 1, and not '0'",
        ),
        (
            ["--task=Empty-5x5", "--store=redis://:secr/e@t@host:1"],
            "--store has a password on the command line, where every process can read it: put the address into",
        ),
        (["--task=Empty-5x5", "--actors=0"], "argument --actors: must be a whole number of at least 1"),
        (["--task=Empty-5x5", "--threads=0"], "argument --threads: must be a whole number of at least 1"),
        (["--task=Empty-5x5", "--actors=2", "--set=learner.deterministic=true"], "--actors is 2, expected 1 because"),
        (["--task=Empty-5x5", "--num-envs=8", "--set=learner.deterministic=true"], "actors.num_envs is 8, expected a"),
    ],
)
def test_a_mistake_ends_with_code_2_and_a_sentence_that_helps(
    arguments: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str], started: Started
) -> None:
    with pytest.raises(SystemExit) as ended:
        train.main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert started.calls == []


def test_a_method_of_ones_own_has_no_colon_in_its_folder() -> None:
    own = dataclasses.replace(EXPERIMENT, method="my_novelty:INVERSE")
    assert train.default_folder(own) == Path("runs/Empty-5x5-my_novelty_INVERSE-1")


class Children:
    """Small programs in place of the services. Each notes its starts in a file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.out = folder, io.StringIO()
        self.programs: dict[str, str] = {}
        monkeypatch.setattr(training, "_children", self._children)
        monkeypatch.setattr(training, "POLL_SECONDS", 0.01)

    def _children(self, *_: object, **__: object) -> tuple[Child, list[Child]]:
        made = [
            Child(
                name, ["/bin/sh", "-c", f"echo {name} >> {self.folder}/starts; {program}"], self.folder / f"{name}.log"
            )
            for name, program in self.programs.items()
        ]
        return made[0], made[1:]

    def train(self, experiment: Experiment = EXPERIMENT, **rest: Any) -> int:
        how: dict[str, Any] = {"actors": 1, "store": "memory", "threads": 1, "out": self.out} | rest
        return training.train(experiment, self.folder / "run", **how)

    def starts(self, name: str) -> int:
        path = self.folder / "starts"
        return path.read_text().split("\n").count(name) if path.exists() else 0


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Children:
    return Children(tmp_path, monkeypatch)


FOR_EVER = "exec sleep 10000"
WAITS = "while :; do sleep 0.01; done"


def test_it_ends_with_the_learner_and_stops_the_others_in_order(children: Children) -> None:
    said = (
        f"trap 'echo NAME >> {children.folder}/ends; exit 0' TERM; touch {children.folder}/NAME.ready; "
        "while :; do sleep 0.01; done"
    )
    ready = " && ".join(f"[ -e {children.folder}/{name}.ready ]" for name in ("hashcount", "actor-0"))
    children.programs = {
        "learner": f"until {ready}; do sleep 0.01; done",
        "hashcount": said.replace("NAME", "hashcount"),
        "actor-0": said.replace("NAME", "actor-0"),
    }
    assert children.train() == 0
    assert (children.folder / "ends").read_text().split() == ["actor-0", "hashcount"]
    assert children.out.getvalue().startswith("Empty-5x5, leco, seed 1: ")
    assert [children.starts(name) for name in children.programs] == [1, 1, 1]


def test_it_ends_with_when_90_percent_was_reached_and_what_to_type_next(children: Children) -> None:
    run = children.folder / "run"
    run.mkdir()
    written(children.folder / "made.csv", LEARNED)
    children.programs = {"learner": f"cp {children.folder}/made.csv {run}/metrics.csv"}
    assert children.train() == 0
    assert children.out.getvalue().splitlines()[-4:] == [
        "90 % of the last 100 episodes after 1,500 frames, 47 s",
        f"done: {run}",
        f"  leco eval {run} --video episode.mp4",
        f"  leco report {run}",
    ]


def test_a_run_that_failed_has_no_verdict(children: Children) -> None:
    run = children.folder / "run"
    run.mkdir()
    written(run / "metrics.csv", LEARNED)
    children.programs = {"learner": "exit 1"}
    assert children.train() == 1
    assert "of the last 100 episodes" not in children.out.getvalue()


def test_the_learners_clock_counts_from_the_first_command_also_if_it_dies(children: Children) -> None:
    noted = children.folder / "clock"
    children.programs = {
        "learner": f"echo ${CLOCK_ZERO} >> {noted}; [ $(wc -l < {noted}) != 1 ]",
        "actor-0": f"echo actor ${CLOCK_ZERO} > {children.folder}/actor; {FOR_EVER}",
    }
    began = time.monotonic() - 100
    assert children.train(began=began) == 0
    assert [float(each) for each in noted.read_text().split()] == [began, began], "it died once"
    written(children.folder / "run" / "metrics.csv", LEARNED, LEARNED | {"seconds": 50.5})
    assert children.train(began=began) == 0
    assert float(noted.read_text().split()[-1]) == pytest.approx(began - 50.5)
    before = time.monotonic()
    assert children.train() == 0
    assert before <= float(noted.read_text().split()[-1]) + 50.5 <= time.monotonic()
    assert CLOCK_ZERO not in os.environ, "it is of one learner"


def test_the_clock_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLOCK_ZERO, raising=False)
    assert clock_zero() is None
    monkeypatch.setenv(CLOCK_ZERO, "-12.25")
    assert clock_zero() == -12.25
    monkeypatch.setenv(CLOCK_ZERO, "noon")
    assert clock_zero() is None


def test_a_child_that_dies_is_started_again(children: Children) -> None:
    once = f"[ -e {children.folder}/died ] && {FOR_EVER}; touch {children.folder}/died; exit 3"
    enough = f"while [ $(grep -c actor-0 {children.folder}/starts) != 2 ]; do sleep 0.01; done"
    children.programs = {"learner": enough, "actor-0": once}
    assert children.train() == 0
    assert children.starts("actor-0") == 2


def test_a_child_that_ends_all_the_time_is_given_up_with_its_last_words(children: Children) -> None:
    children.programs = {"learner": FOR_EVER, "hashcount": "echo the port is taken; exit 1"}
    assert children.train() == 1
    assert children.starts("hashcount") == 1 + GIVE_UP_AFTER
    assert children.starts("learner") == 1
    said = [line for line in children.out.getvalue().splitlines() if "the port is taken" in line]
    log = children.folder / "hashcount.log"
    assert said == [
        f"hashcount has ended and is started again: the port is taken (its log: {log})",
        f"hashcount has ended and ends again and again: the port is taken (its log: {log})",
    ]


def test_the_first_end_of_a_child_is_said_at_once_with_the_last_line_of_its_error(children: Children) -> None:
    crash = f"[ -e {children.folder}/died ] && {FOR_EVER}; touch {children.folder}/died; echo File x.py; echo KeyError: y; exit 1"
    seen = children.folder / "seen"
    children.programs = {
        "learner": f"until [ -e {seen} ]; do sleep 0.01; done",
        "actor-0": crash,
        "hashcount": "kill -9 $$",
    }

    def see() -> None:
        until(lambda: "actor-0 has ended and is started again: KeyError: y (its log: " in children.out.getvalue())
        until(lambda: "hashcount has ended and is started again: killed by SIGKILL (" in children.out.getvalue())
        seen.touch()

    thread = threading.Thread(target=see)
    thread.start()
    children.train()
    thread.join()


def test_what_a_service_warns_of_is_said_at_once_and_not_again_and_again(children: Children) -> None:
    away = '{"level": "error", "event": "the store cannot be reached", "error": "refused\\u001b[2J"}'
    back = '{"level": "warning", "event": "the store is back"}'
    children.programs = {
        "learner": 'echo \'{"level": "info", "event": "serving"}\'; echo no JSON',
        "hashcount": f"echo '{away}'; echo '{back}'; echo '{away}'; printf '%s' '{back}'; {FOR_EVER}",
        "actor 0": f"echo '{away}'; {FOR_EVER}",
    }
    earlier = children.folder / "hashcount.log"
    earlier.write_text('{"level": "error", "event": "of an earlier run"}\n')
    until_said = (
        f"until grep -q back {earlier} && grep -q reached {children.folder}/'actor 0.log'; do sleep 0.01; done; "
    )
    children.programs["learner"] = until_said + children.programs["learner"]
    assert children.train() == 0
    said = [line for line in children.out.getvalue().splitlines() if "log:" in line]
    assert said == [
        f"hashcount: the store cannot be reached (refused\\x1b[2J); its log: {earlier}",
        f"hashcount: the store is back; its log: {earlier}",
    ]


def test_a_child_whose_configuration_is_wrong_is_not_started_again(children: Children) -> None:
    children.programs = {"learner": "echo earlier; echo leco learner: there is no GPU; exit 2", "actor-0": FOR_EVER}
    (children.folder / "learner.log").write_text("of another day\n")
    assert children.train() == 1
    assert children.starts("learner") == 1
    assert "learner has ended and cannot run: leco learner: there is no GPU (its log: " in children.out.getvalue()


def test_a_child_that_says_nothing_is_not_given_the_words_of_its_start_before(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of another day\n")
    child = Child("actor", ["/bin/sh", "-c", "exit 7"], tmp_path / "log")
    child.start()
    until(lambda: child.ended() is not None)
    assert child.last_words() == "exit code 7"


def test_ends_after_a_long_life_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    child = Child("actor", ["true"], tmp_path / "log")
    child.start()
    lives = [*[MINUTE] * 10, *[MINUTE / 2] * GIVE_UP_AFTER]  # also if it takes long to start
    again = []
    for life in lives:
        assert child.process is not None
        child.process.wait()
        now += life
        again.append(child.again())
    assert again == [True] * 14 + [False]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_children_and_gives_the_handlers_back(children: Children, number: signal.Signals) -> None:
    children.programs = {"learner": FOR_EVER, "actor-0": FOR_EVER}
    before = signal.getsignal(number)

    def interrupt() -> None:
        until(lambda: children.starts("actor-0") == 1)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert children.train() == 130
    thread.join()
    assert signal.getsignal(number) == before
    assert "stopping: the learner saves, the same command goes on from here" in children.out.getvalue()


def test_a_learner_in_a_long_update_is_waited_for_and_actors_that_do_not_listen_hold_nothing_up(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saves after what is its time of three deaf actors; the hash-count service is there until then."""
    monkeypatch.setattr(training, "SAYS_AFTER_SECONDS", 0.05)
    folder = children.folder
    saves = f"trap 'sleep 0.5; [ ! -e {folder}/hashcount.ended ] && touch {folder}/saved; exit 0' TERM"
    children.programs = {
        "learner": f"{saves}; touch {folder}/ready; while :; do sleep 0.01; done",
        "hashcount": f"trap 'touch {folder}/hashcount.ended; exit 0' TERM; while :; do sleep 0.01; done",
        **{f"actor-{n}": f"trap '[ -e {folder}/saved ] && exit 0' TERM; {WAITS}" for n in range(3)},
    }

    def interrupt() -> None:
        until(lambda: (folder / "ready").exists() and children.starts("actor-2") == 1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert children.train() == 130
    thread.join()
    assert (folder / "saved").exists()
    assert "waiting for the learner: it ends its update, and saves\n" in children.out.getvalue()


def test_a_folder_in_which_another_trains_is_refused_at_once(children: Children) -> None:
    children.programs = {"learner": "exit 0"}
    with locked(children.folder / "run"), pytest.raises(ConfigError, match="is being trained in by another process"):
        children.train()
    assert children.starts("learner") == 0
    assert not (children.folder / "run" / "requested.toml").exists()


def test_a_folder_of_another_experiment_is_refused_before_anything_is_written(
    children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    run = children.folder / "run"
    run.mkdir()
    (run / "config.toml").write_text(to_toml(parse('task = "Empty-5x5"\nframes = 2000\nseed = 7')))
    with pytest.raises(SystemExit) as ended:
        train.main(["--task=Empty-5x5", "--frames=2000", "--preset=paper", f"--run-dir={run}"])
    assert ended.value.code == 2
    assert not (run / "requested.toml").exists()
    said = capsys.readouterr()
    assert said.err.startswith(f"leco train: {run} holds a run of another experiment (seed is 1, was 7)")
    assert said.out == ""


def test_a_child_that_does_not_listen_is_ended(tmp_path: Path) -> None:
    child = Child(
        "deaf",
        [sys.executable, "-c", "import signal; signal.signal(15, 1); print(1, flush=True); signal.pause()"],
        tmp_path / "log",
    )
    child.start()
    until(lambda: (tmp_path / "log").read_text() == "1\n")
    child.stop(0.1)
    assert child.ended() == -signal.SIGKILL


def test_the_services_get_each_others_addresses_and_the_store_stays_off_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LECO_HASHCOUNT_STORE", "memory")
    config = tmp_path / "c.toml"
    with pytest.raises(ConfigError, match=r"the store redis://127.0.0.1:1/0 does not answer"):
        use_store("redis://:secret@127.0.0.1:1")

    def commands(method: str) -> dict[str, str]:
        experiment = parse("", {"task": "Empty-5x5", "method": method})
        how = {"actors": 2, "threads": 3, "ranks": 2}
        first, rest = training._children(experiment, tmp_path, config, tmp_path, device="cuda:1", **how)
        return {child.name: " ".join(child.command) for child in (first, *rest)}

    found = commands("leco")
    assert list(found) == ["learner", "hashcount", "actor 0", "actor 1"]
    for name in ("learner", "hashcount"):
        address = found[name].split("--listen=")[1].split()[0]
        assert f"--{name}={address}" in found["actor 0"]
        assert f"--{name}={address}" in found["actor 1"]
    assert "--index=1" in found["actor 1"]
    assert "--threads=3 --device=cuda:1 --ranks=2" in found["learner"]
    assert not any("secret" in command for command in found.values())
    assert os.environ["LECO_HASHCOUNT_STORE"] == "redis://:secret@127.0.0.1:1"
    assert list(commands("no-int")) == ["learner", "actor 0", "actor 1"]


def written(path: Path, *lines: Mapping[str, object]) -> None:
    rows = [",".join(str(line.get(column, "")) for column in COLUMNS) for line in lines]
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")


def test_ports_are_none_that_an_outgoing_connection_may_have_before_the_service_does() -> None:
    found = [training._free_ports(2) for _ in range(100)]
    assert all(one != other for one, other in found)
    assert max(map(max, found)) < 32_768, "from there on Linux gives them to connections"


class Screen(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


FIRST = {"frames": 500, "updates": 5, "frames_per_second": 50, "policy_lag": 1.25}
SECOND = FIRST | {"frames": 1500, "return": 0.5, "success": 0.625, "r_ep": 0.25, "r_ta": -0.125}


def test_progress_shows_the_last_line_and_how_long_it_will_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    path, out = tmp_path / "metrics.csv", Screen(terminal=False)
    shown = progress.Progress(path, EXPERIMENT, out)
    shown.show()
    assert out.getvalue() == ""  # there is nothing to show yet
    written(path, FIRST)
    shown.show()
    shown.show()
    written(path, FIRST, SECOND)
    with path.open("a") as file:
        file.write("2000,20,")  # half a line
    shown.show()
    shown.show(last=True)
    head, *lines = out.getvalue().splitlines()
    assert head.split() == ["frames", "done", "frames/s", "return", "success", "r_ep", "r_ta", "lag", "left"]
    assert [line.split() for line in lines] == [
        ["500", "25%", "50", "-", "-", "-", "-", "1.2", "0:00:30"],
        ["1,500", "75%", "50", "0.500", "62", "%", "0.250", "-0.125", "1.2", "0:00:10"],
    ]


def test_on_a_terminal_the_line_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    path, out = tmp_path / "metrics.csv", Screen(terminal=True)
    shown = progress.Progress(path, EXPERIMENT, out)
    for line in (FIRST, SECOND):
        written(path, line)
        shown.show()
    shown.show(last=True)
    _, text = out.getvalue().split("\n", 1)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text.count("\r") == 3


def test_it_is_shown_every_few_seconds_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    path, out = tmp_path / "metrics.csv", Screen(terminal=False)
    shown = progress.Progress(path, EXPERIMENT, out)
    written(path, FIRST)
    now = progress.SECONDS - 0.1
    shown.show()
    assert out.getvalue() == ""
    now = progress.SECONDS
    shown.show()
    assert out.getvalue().count("\n") == 2
    written(path, SECOND)
    shown.show(last=True)
    assert out.getvalue().count("\n") == 3


LEARNED = SECOND | {"seconds": 46.6, "episodes": 100, "success": 0.9}


def verdict(folder: Path, *lines: Mapping[str, object], done: bool = True, **changes: object) -> str:
    written(folder / "metrics.csv", *lines)
    return progress.verdict(
        folder / "metrics.csv", parse("", {"task": "Empty-5x5", "frames": 2e6} | changes), done=done
    )


def test_the_verdict_says_when_90_percent_was_reached_or_how_near_it_came(tmp_path: Path) -> None:
    late = LEARNED | {"frames": 412_000, "success": 1.0, "seconds": 3725.4}
    assert verdict(tmp_path, SECOND, LEARNED, late) == "90 % of the last 100 episodes after 1,500 frames, 47 s\n"
    assert verdict(tmp_path, SECOND, late) == "90 % of the last 100 episodes after 412,000 frames, 1:02:05\n"
    best, worse = late | {"frames": 1_228_800, "success": 0.43}, late | {"success": 0.1}
    near = "90 % not reached: at best 43 % of the last 100 episodes, after 1.23 M frames\n"
    assert verdict(tmp_path, best, worse) == near
    few = LEARNED | {"episodes": 99}
    assert verdict(tmp_path, few) == "90 % not reached: fewer than 100 episodes have ended\n"
    assert verdict(tmp_path) == ""
    assert progress.verdict(tmp_path / "missing.csv", EXPERIMENT, done=True) == ""
    assert verdict(tmp_path, worse, task="vizdoom-deathmatch") == "", "no episode of it is ever solved"


def test_the_verdict_says_that_training_ended_by_its_success_rate(tmp_path: Path) -> None:
    reached = LEARNED | {"frames": 430_080, "success": 0.96}
    lines = verdict(tmp_path, LEARNED, reached, until=0.95).splitlines()
    assert lines == [
        "ended by --until 95 %: 96 % of the last 100 episodes, after 430,080 of 2 M frames",
        "90 % of the last 100 episodes after 1,500 frames, 47 s",
    ]
    told = lines[1] + "\n"
    assert verdict(tmp_path, LEARNED, reached, until=0.95, done=False) == told, "it was stopped"
    assert verdict(tmp_path, LEARNED, reached, until=0.97) == told
    assert verdict(tmp_path, LEARNED, reached) == told
    assert verdict(tmp_path, LEARNED, reached, until=0.95, frames=430_080) == told, "it had all its frames anyway"


@pytest.mark.parametrize(("command", "rows"), [("tasks", TASKS), ("methods", METHODS)])
def test_tables_have_a_line_for_each(command: str, rows: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    getattr(tables, command)([])
    head, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(rows)]] == list(rows)
    column = head.index(head.split()[1])
    assert all(line[column - 1] == " " != line[column] for line in lines[: len(rows)])


def test_the_command_lists_what_there_is() -> None:
    done = subprocess.run([sys.executable, "-P", "-m", "leco", "tasks"], capture_output=True, text=True, check=True)
    assert re.search("^MultiRoom-N2-S4 +40 +0.99 +pass a door", done.stdout, re.MULTILINE)
    wrong = subprocess.run([sys.executable, "-P", "-m", "leco", "trian"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "leco: there is no command 'trian'; did you mean 'train'?\n")
