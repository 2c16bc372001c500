"""`leco sweep`: what its flags mean, what it trains again and what not, what it refuses, what it shows, and its numbers."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import statistics
import threading
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from leco.cli.sweep import command, jobs, results, view
from leco.cli.sweep.folder import Asked, check_folder, evaluation, needs
from leco.cli.sweep.jobs import Job, Sweep, seconds_left, training_command
from leco.cli.sweep.plan import Run, read_seeds
from leco.cli.sweep.results import gather, grouped, write_csv, write_markdown
from leco.cli.sweep.view import View, sentence, table
from leco.config.experiment import ConfigError
from leco.config.toml import parse, to_toml
from leco.evaluation.rollout import Result
from leco.evaluation.summary import numbers
from leco.report import curves
from leco.report.statistics import over_seeds, wilson
from services.learner.metrics_logger import COLUMNS
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FRAMES, UPDATE = 2000, 100  # an update has 100 frames
SMALL = {
    "task": "Empty-5x5",
    "method": "no-int",
    "frames": FRAMES,
    "learner.batch_size": 10,
    "actors.unroll_length": 10,
}
EVALUATED = {"updates": 20, "frames": 2000, "seconds": 12.5, "seed": 0, "greedy": False, "episodes": 100, "length": 9.0}
EVALUATED |= {"success": 0.75, "success_low": 0.657, "success_high": 0.825}
EVALUATED |= {"return": 0.5, "return_low": 0.4, "return_high": 0.6}


def run(name: str = "one", **changes: Any) -> Run:
    return Run(name, parse("", SMALL | {key.replace("__", "."): value for key, value in changes.items()}))


def trained(folder: Path, updates: int, of: Run | None = None, **evaluated: Any) -> Path:
    """A run's folder as training leaves it, and evaluation if something is said of it."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints" / f"{updates:09d}.safetensors").touch()
    (folder / "checkpoints" / "best.safetensors").touch()
    (folder / "config.toml").write_text(to_toml((of or run()).experiment))
    (folder / "versions.json").write_text('[{"leco": "0.1.0"}, {"leco": "0.1.0"}, {"leco": "0.2.0"}]')
    if evaluated:
        (folder / "evaluation.json").write_text(json.dumps(EVALUATED | {"updates": updates} | evaluated))
    return folder


def metrics(folder: Path, *lines: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [",".join(str(line.get(column, "")) for column in COLUMNS) for line in lines]
    (folder / "metrics.csv").write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")


class Planned:
    """What `leco sweep` would have worked on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.out = folder / "out"
        self.calls: list[tuple[Sequence[Run], Any]] = []
        monkeypatch.setattr(command, "sweep", self._sweep)

    def _sweep(self, runs: Sequence[Run], _asked: Asked, given: Any, _out: object) -> int:
        self.calls.append((runs, given))
        return 0

    def __call__(self, *arguments: str) -> list[Run]:
        with pytest.raises(SystemExit) as ended:
            command.main([*arguments, f"--out={self.out}"])
        assert ended.value.code == 0
        return list(self.calls[-1][0])


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Planned:
    return Planned(monkeypatch, tmp_path)


def test_every_combination_is_a_run_with_a_name_of_its_own(planned: Planned) -> None:
    runs = planned(
        *("--tasks=Empty-5x5, DoorKey-5x5", "--methods=leco,no-int", "--seeds=3,1-2", "--frames=1e6"),
        *("--set=learner.keep_checkpoints=2", "--grid=training.lambda=0,2.5e-1"),
    )
    assert len({one.name for one in runs}) == len(runs) == 2 * 2 * 3 * 2
    assert [one.name for one in runs[:4]] == [
        "Empty-5x5-leco-lambda=0-3",
        "Empty-5x5-leco-lambda=0-1",
        "Empty-5x5-leco-lambda=0-2",
        "Empty-5x5-leco-lambda=0.25-3",
    ]
    for one in runs:
        task, method, value, seed = re.fullmatch(r"(.*5x5)-(.*)-lambda=(.*)-(.)", one.name).groups()  # type: ignore[union-attr]
        e = one.experiment
        assert (e.task, e.method, e.training.lambda_, e.seed) == (task, method, float(value), int(seed))
        assert (e.frames, e.learner.keep_checkpoints) == (1_000_000, 2)
        assert e.training.epochs == 4  # as `leco train`: the laptop preset
        assert one.varied == {"training.lambda": value}


def test_a_file_gives_what_flags_do_not(planned: Planned, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('task = "DoorKey-5x5"\nmethod = "dsc"\nframes = 5000\n')
    [one] = planned(f"--config={file}")
    assert one.name == "DoorKey-5x5-dsc-1"
    assert one.experiment == parse(file.read_text())
    [other] = planned(f"--config={file}", "--methods=leco", "--preset=laptop", "--frames=7000")
    assert other.experiment == parse(file.read_text(), {"method": "leco", "preset": "laptop", "frames": 7000})


def test_values_are_named_as_they_were_understood(planned: Planned) -> None:
    def names(each: str) -> list[str]:
        return [
            one.name.removeprefix("Empty-5x5-leco-").removesuffix("-1") for one in planned("--tasks=Empty-5x5", each)
        ]

    assert names("--grid=training.alpha=1e-3,0.02,1") == ["alpha=0.001", "alpha=0.02", "alpha=1"]
    assert names("--grid=learner.batch_size=1e1,12") == ["batch_size=10", "batch_size=12"]
    assert names("--grid=training.inner_loss=full,policy-gradient") == [
        "inner_loss=full",
        "inner_loss=policy-gradient",
    ]
    assert names("--grid=training.policy_betas=[0.0, 0.99],[0.9,0.999]") == [
        "policy_betas=0+0.99",
        "policy_betas=0.9+0.999",
    ]
    assert names("--grid=training.bootstrap_on_truncation=true,false") == [
        "bootstrap_on_truncation=true",
        "bootstrap_on_truncation=false",
    ]
    assert names("--grid=preset=laptop,paper") == ["preset=laptop", "preset=paper"]


def test_every_run_ends_at_the_success_rate(planned: Planned) -> None:
    runs = planned("--tasks=Empty-5x5", "--seeds=1,2", "--until=95%")
    assert [one.experiment.until for one in runs] == [0.95, 0.95]
    assert [one.name for one in runs] == ["Empty-5x5-leco-1", "Empty-5x5-leco-2"]
    assert [one.experiment.until for one in planned("--tasks=Empty-5x5")] == [None]


def test_seeds_as_people_type_them() -> None:
    assert read_seeds("1") == [1]
    assert read_seeds("1-3") == [1, 2, 3]
    assert read_seeds(" 7, 1-2 ,0") == [7, 1, 2, 0]
    assert read_seeds("4-4") == [4]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "say what to solve: --tasks NAME,NAME (`leco tasks` lists them), or --config FILE"),
        (["--tasks=Emty-5x5"], "there is no task 'Emty-5x5'; did you mean 'Empty-5x5'?"),
        (["--tasks=Empty-5x5", "--methods=no-int,leko"], "there is no method 'leko'; did you mean 'leco'?"),
        (["--tasks=Empty-5x5", "--seeds=1,b"], "'b' is no seed; type whole numbers or ranges, such as 1,2,3 or 1-3"),
        (["--tasks=Empty-5x5", "--seeds=-1"], "'-1' is no seed"),
        (["--tasks=Empty-5x5", "--seeds=3-1"], "the range 3-1 ends before it begins; type 1-3"),
        (["--tasks=Empty-5x5", "--seeds=1-3,2"], "--seeds 1-3,2: a seed is there twice; name each once"),
        (["--tasks=Empty-5x5", "--seeds="], "--seeds '': something is missing"),
        (["--tasks="], "--tasks '': something is missing; type names or values with commas between, as in A,B"),
        (["--tasks=Empty-5x5,"], "--tasks 'Empty-5x5,': something is missing"),
        (["--tasks=Empty-5x5", "--methods=,"], "--methods ',': something is missing"),
        (["--tasks=Empty-5x5,Empty-5x5"], "--tasks Empty-5x5,Empty-5x5: something is there twice; name each once"),
        (["--tasks=Empty-5x5,MiniGrid-Empty-5x5-v0"], "two of the runs are the same (Empty-5x5-leco-1)"),
        (["--tasks=Empty-5x5", "--frames=0"], "frames is 0, expected more than 0"),
        (["--tasks=Empty-5x5", "--frames=-1e6"], "expected more than 0"),
        (["--tasks=Empty-5x5", "--episodes=0"], "argument --episodes: must be a whole number of at least 1"),
        (["--tasks=Empty-5x5", "--parallel=0"], "argument --parallel: must be a whole number of at least 1"),
        (["--tasks=Empty-5x5", "--actors=0"], "argument --actors: must be a whole number of at least 1"),
        (["--tasks=Empty-5x5", "--threads=0"], "argument --threads: must be a whole number of at least 1"),
        (["--tasks=Empty-5x5", "--device=cuda:99"], "there is no GPU for --device cuda:99"),
        (["--tasks=Empty-5x5", "--config=missing.toml"], "missing.toml"),
        (["--tasks=Empty-5x5", "--set=training.alfa=1"], "there is no key training.alfa; did you mean training.alpha?"),
        (["--tasks=Empty-5x5", "--set=seed=2"], "--set seed=...: a sweep has the flag --seeds for it"),
        (["--tasks=Empty-5x5", "--grid=training.alfa=1,2"], "there is no key training.alfa"),
        (["--tasks=Empty-5x5", "--grid=training.alpha"], "expected KEY=VALUE,VALUE, for example training.lambda="),
        (["--tasks=Empty-5x5", "--grid=training.alpha="], "something is missing"),
        (["--tasks=Empty-5x5", "--grid=training.alpha=1,1.0"], "two of the runs are the same"),
        (["--tasks=Empty-5x5", "--grid=training.lambda=0,2"], "training.lambda is 2.0, expected 0 to 1"),
        (["--tasks=Empty-5x5", "--grid=method=leco,dsc"], "--grid method=leco,dsc: use --methods"),
        (["--tasks=Empty-5x5", "--grid=frames=1,2"], "use --frames; it cannot differ within a sweep"),
        (
            ["--tasks=Empty-5x5", "--until=95"],
            "argument --until: '95' is no success rate: type one above 0 and up to 100%",
        ),
        (["--tasks=Empty-5x5,vizdoom-deathmatch", "--until=95%"], "vizdoom-deathmatch calls no episode solved"),
        (["--tasks=Empty-5x5", "--set=until=0.9"], "--set until=...: a sweep has the flag --until for it"),
        (["--tasks=Empty-5x5", "--grid=until=0.8,0.9"], "use --until; it cannot differ within a sweep"),
        (
            ["--tasks=Empty-5x5", "--set=learner.keep_checkpoints=1", "--grid=learner.keep_checkpoints=2,3"],
            "learner.keep_checkpoints is set twice",
        ),
    ],
)
def test_a_mistake_ends_with_code_2_and_a_sentence_that_helps_before_anything_starts(
    arguments: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str], planned: Planned
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([*arguments, f"--out={planned.out}"])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert planned.calls == []
    assert not planned.out.exists()


def test_what_is_left_to_do(tmp_path: Path) -> None:
    one, folder = run(), tmp_path / "one"
    assert needs(one, folder, 100) == "train"
    trained(folder, 19)
    assert needs(one, folder, 100) == "train"
    (folder / "evaluation.json").write_text(json.dumps(EVALUATED | {"updates": 19}))
    assert needs(one, folder, 100) == "train"
    trained(folder, 20)
    assert needs(one, folder, 100) == "evaluate", "the evaluation is of an older checkpoint"
    trained(folder, 20, success=0.5)
    assert needs(one, folder, 100) == ""
    assert needs(one, folder, 50) == "evaluate", "other episodes"
    assert needs(run(frames=2001), folder, 100) == "train"
    assert needs(run(frames=1901), folder, 100) == ""
    (folder / "evaluation.json").write_text('{"updates": 2')
    assert needs(one, folder, 100) == "evaluate"


SOLVED = {"frames": 500, "updates": 5, "seconds": 20, "frames_per_second": 30.4, "success": 0.96, "episodes": 100}


def test_a_run_that_has_its_success_rate_needs_no_more_frames(tmp_path: Path) -> None:
    def left(until: float | None, updates: int = 5, **changes: object) -> str:
        trained(tmp_path / "one", updates, success=0.5)
        metrics(tmp_path / "one", SOLVED | {"success": 0.99}, SOLVED | changes)
        needed = needs(run(until=until), tmp_path / "one", 100)
        (tmp_path / "one" / "checkpoints" / f"{updates:09d}.safetensors").unlink()
        return needed

    assert left(0.95) == ""
    assert left(0.96) == ""
    assert left(0.95, updates=7) == "", "the rest of a deterministic run"
    assert left(None) == "train"
    assert left(0.97) == "train", "it had more before"
    assert left(0.95, episodes=99) == "train"
    assert left(0.95, updates=4) == "train", "it was killed before it could save"
    (tmp_path / "one" / "metrics.csv").unlink()
    assert needs(run(until=0.95), tmp_path / "one", 100) == "train"


def test_another_success_rate_is_the_same_run(tmp_path: Path) -> None:
    trained(tmp_path / "one", 5, run(until=0.95))
    for rate in (None, 0.9, 0.99):
        check_folder([run(until=rate)], tmp_path)


def test_other_settings_for_the_same_run_are_refused_by_name(tmp_path: Path) -> None:
    trained(tmp_path / "one", 5)
    check_folder([run(), run("other", training__alpha=0.5)], tmp_path)
    with pytest.raises(ConfigError) as caught:
        check_folder([run(training__alpha=0.5, training__decoder_samples=7, learner__keep_checkpoints=4)], tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path} has other settings for the same run. one: ")
    assert (
        "learner.keep_checkpoints is 4, was 3; training.alpha is 0.5, was 0.01; training.decoder_samples is 7, was 'off'."
        in text
    )
    assert "--out" in text


def test_more_frames_extend_a_run_and_fewer_are_refused_once_it_has_them(tmp_path: Path) -> None:
    trained(tmp_path / "one", 20)
    for frames in (FRAMES + 1, 10 * FRAMES, FRAMES, FRAMES - UPDATE + 1):
        check_folder([run(frames=frames)], tmp_path)
    with pytest.raises(ConfigError, match=r"one: frames is 1,900, but 2,000 are trained already: give more\."):
        check_folder([run(frames=FRAMES - UPDATE)], tmp_path)
    trained(tmp_path / "two", 3, run(frames=10**9))
    check_folder([run("two")], tmp_path)  # by mistake too many were asked for, and it is not there yet


def test_refused_by_the_command_itself(planned: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    [one] = planned("--tasks=Empty-5x5")
    trained(planned.out / one.name, 5, one)
    planned("--tasks=Empty-5x5", "--seeds=1,2")
    with pytest.raises(SystemExit) as ended:
        command.main(["--tasks=Empty-5x5", "--set=training.gamma=0.5", f"--out={planned.out}"])
    assert ended.value.code == 2
    assert "Empty-5x5-leco-1: training.gamma is 0.5, was 0.97" in capsys.readouterr().err


def test_only_one_sweep_works_in_a_folder(planned: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    planned.out.mkdir()
    with command._alone(planned.out), pytest.raises(SystemExit) as ended:
        command.main(["--tasks=Empty-5x5", f"--out={planned.out}"])
    assert ended.value.code == 2
    assert f"another `leco sweep` works in {planned.out}" in capsys.readouterr().err
    planned("--tasks=Empty-5x5")


def test_sweep_toml_keeps_every_run_that_was_asked_for(tmp_path: Path) -> None:
    varied = Run("é-\U0001f600", run(training__alpha=0.25).experiment, {"training.alpha": "0.25"})
    first = Asked(tmp_path, "leco sweep --seeds 'one, \"two\"'", [run(), varied])
    first.write()
    first.note_commit("one", "abc")
    first.note_commit("one", "abc")
    first.note_commit("one", "")
    second = Asked(tmp_path, "leco sweep again", [run(frames=5000), run("two", seed=2)])
    second.note_commit("one", "def")
    found = tomllib.loads((tmp_path / "sweep.toml").read_text())
    assert found["command"] == "leco sweep again"
    assert [each["name"] for each in found["runs"]] == ["one", "é-\U0001f600", "two"]
    assert found["runs"][0]["frames"] == 5000
    assert found["runs"][0]["commits"] == ["abc", "def"]
    assert found["runs"][1]["varied"] == {"training.alpha": "0.25"}
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.toml"]
    (tmp_path / "sweep.toml").write_text("runs = 1")
    with pytest.raises(ConfigError, match="is damaged"):
        Asked(tmp_path, "", [])


class Work:
    """A sweep with small programs in place of `leco train` and `leco eval`. Each notes its start in a file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.out = folder, io.StringIO()
        self.seen: list[str] = []
        self.train: dict[str, str] = {}
        self.evaluate: dict[str, str] = {}
        monkeypatch.setattr(jobs, "POLL_SECONDS", 0.01)
        monkeypatch.setattr(command, "draw_task", lambda *_: None)  # takes longer than all else here
        monkeypatch.setattr(jobs, "training_command", lambda job, **_: self._command(job, "train", self.train))
        monkeypatch.setattr(jobs, "evaluation_command", lambda job, _: self._command(job, "eval", self.evaluate))

    def _command(self, job: Job, what: str, programs: Mapping[str, str]) -> list[str]:
        works = {"train": self.trains(), "eval": f"echo '{json.dumps(EVALUATED)}' > $RUN/evaluation.json"}[what]
        program = programs.get(job.run.name, works)
        note = f"echo {what} {job.run.name} >> {self.folder}/starts"
        return ["/bin/sh", "-c", f"RUN={job.folder}; {note}; {program}"]

    @staticmethod
    def trains(updates: int = 20) -> str:
        folder = "mkdir -p $RUN/checkpoints; cp $RUN/requested.toml $RUN/config.toml"
        return f"{folder}; touch $RUN/checkpoints/{updates:09d}.safetensors"

    def __call__(self, *runs: Run, parallel: int = 1) -> int:
        given = type("Given", (), {"out": self.folder, "parallel": parallel, "episodes": 100, "plain": True})
        given.actors, given.threads, given.device = 1, 1, "cpu"  # type: ignore[attr-defined]
        self.out = io.StringIO()
        return command.sweep(runs, Asked(self.folder, "", runs), given, self.out)  # type: ignore[arg-type]

    @property
    def starts(self) -> list[str]:
        path = self.folder / "starts"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def statuses(self) -> dict[str, str]:
        with (self.folder / "results.csv").open(newline="") as file:
            return {row["run"]: row["status"] for row in csv.DictReader(file)}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(tmp_path, monkeypatch)


def test_runs_are_trained_and_evaluated_in_order_and_never_again(work: Work) -> None:
    assert work(run("a"), run("b", seed=2)) == 0
    assert work.starts == ["train a", "eval a", "train b", "eval b"]
    assert work(run("a"), run("b", seed=2)) == 0
    assert len(work.starts) == 4
    assert work(run("b", seed=2), run("c", seed=3)) == 0
    assert work.starts[4:] == ["train c", "eval c"]
    assert work.statuses == {"a": "done", "b": "done", "c": "done"}, "what was asked for before is still there"
    (work.folder / "b" / "evaluation.json").unlink()
    assert work(run("a"), run("b", seed=2), run("c", seed=3)) == 0
    assert work.starts[6:] == ["eval b"]
    assert work.out.getvalue().splitlines()[-2:] == [
        "3 of 3 runs done",
        f"results: {work.folder / 'results.md'}, {work.folder / 'results.csv'}",
    ]


def test_a_run_that_ends_by_its_success_rate_is_evaluated_and_done(work: Work) -> None:
    metrics(work.folder, SOLVED)
    (work.folder / "metrics.csv").rename(work.folder / "made.csv")
    work.train = {"a": f"cp {work.folder}/made.csv $RUN/metrics.csv; {work.trains(5)}"}
    work.evaluate = {"a": f"echo '{json.dumps(EVALUATED | {'updates': 5})}' > $RUN/evaluation.json"}
    assert work(run("a", until=0.95)) == 0
    assert work(run("a", until=0.95)) == 0
    assert work.starts == ["train a", "eval a"]
    assert work(run("b", until=0.95)) == 0
    assert work.statuses == {"a": "done", "b": "done"}, "also when the command is about another one"
    assert tomllib.loads((work.folder / "sweep.toml").read_text())["runs"][0]["until"] == 0.95


def test_a_run_that_fails_is_told_with_its_last_words_and_the_others_go_on(work: Work) -> None:
    work.train = {"a": "echo; for i in 1 2 3 4 5 6 7 8 9; do echo word $i; done; exit 1", "c": "exit 0"}
    work.evaluate = {"b": "echo no such checkpoint; exit 1"}
    assert work(*(run(name) for name in "abcd")) == 1
    assert work.statuses == {"a": "failed", "b": "failed", "c": "failed", "d": "done"}
    text = work.out.getvalue()
    assert "a: failed; its last words:\n  word 2\n" in text
    assert "  word 9\n" in text
    assert "b: failed; its last words:\n  no such checkpoint\n" in text
    assert text.endswith("3 of 4 runs failed; the same command tries again\n")
    work.train, work.evaluate = {}, {}
    assert work(*(run(name) for name in "abcd")) == 0
    assert work.starts.count("train a") == 2
    assert work.starts.count("train b") == 1, "only its evaluation had failed"


def test_a_run_that_is_killed_goes_on_unless_that_happens_all_the_time(work: Work) -> None:
    once = f"[ -e {work.folder}/died ] || {{ touch {work.folder}/died; kill -9 $$; }}; {work.trains()}"
    work.train = {"a": once, "b": "kill -9 $$"}
    assert work(run("a"), run("b")) == 1
    assert work.starts.count("train a") == 2
    assert work.starts.count("train b") == 1 + 5
    assert work.statuses == {"a": "done", "b": "failed"}


def test_as_many_at_a_time_as_was_asked_for(work: Work) -> None:
    together = f"while [ $(grep -c train {work.folder}/starts) -lt 2 ]; do sleep 0.01; done; {work.trains()}"
    work.train = {"a": together, "b": together}
    assert work(run("a"), run("b"), run("c"), parallel=2) == 0
    assert set(work.starts[:2]) == {"train a", "train b"}
    assert work.statuses == dict.fromkeys("abc", "done")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_what_runs_and_says_how_to_go_on(work: Work, number: signal.Signals) -> None:
    save = (
        f"trap 'echo saved >> {work.folder}/ends; exit 130' TERM; touch {work.folder}/$$.ready; "
        "while :; do sleep 0.01; done"
    )
    work.train = {"a": save, "b": save}
    before = signal.getsignal(number)

    def interrupt() -> None:
        until(lambda: len(list(work.folder.glob("*.ready"))) == 2)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert work(run("a"), run("b"), run("c"), parallel=2) == 130
    thread.join()
    assert signal.getsignal(number) == before
    assert (work.folder / "ends").read_text().split() == ["saved", "saved"]
    assert work.statuses == dict.fromkeys("abc", "waiting")
    text = work.out.getvalue()
    assert "stopping: what is being trained is saved\n" in text
    assert text.endswith("stopped: what was trained is saved, the same command goes on from here\n")


def test_training_is_leco_train_with_all_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leco.cli import train

    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(train, "train", lambda *given, **rest: calls.append((*given, rest)))
    monkeypatch.setattr(train, "find_device", lambda name: name)  # as if it were there
    one = run(learner__queue_capacity=10, training__decoder_samples=7)  # less than two actors would get
    job = Job(one, tmp_path / "a-lambda=0.5-1")
    job.folder.mkdir()
    (job.folder / "requested.toml").write_text(to_toml(one.experiment))
    _, _, _, _, name, *flags = training_command(job, actors=2, threads=3, device="cuda:1")
    assert name == "train"
    with pytest.raises(SystemExit):
        train.main(flags)
    [(experiment, folder, rest)] = calls
    assert (experiment, folder) == (one.experiment, job.folder)
    assert {"actors": 2, "store": "memory", "threads": 3, "device": "cuda:1"}.items() <= rest.items()  # type: ignore[attr-defined]


def job(folder: Path, name: str = "one", state: str = "waiting", **changes: Any) -> Job:
    made = Job(run(name, **changes), folder / name, state)
    made.look()
    return made


LINE = {"frames": 500, "updates": 5, "seconds": 20, "frames_per_second": 30.4, "success": 0.625}


def test_the_table_has_a_line_a_run_and_fits_80_columns(tmp_path: Path) -> None:
    trained(tmp_path / "done", 20, success=0.93)
    long = "ObstructedMaze-1Dlhb-leco-ae-lsh-intrinsic_learning_rate=0.0001-3"
    metrics(tmp_path / long, LINE)
    jobs = [
        job(tmp_path, "done", "done"),
        job(tmp_path, long, "running", frames=123_456_789),
        job(tmp_path, "waiting"),
        job(tmp_path, "failed", "failed", frames=600_000),
    ]
    lines = table(jobs, 79, 20)
    assert max(map(len, lines)) <= 79
    assert lines[0].split() == ["run", "state", "frames", "frames/s", "success", "left"]
    assert lines[1:] == [
        "done                         done           2000/2000        -    93 %        -",
        "ObstructedMaze~rate=0.0001-3 running      500/123.46M       30    62 %  57 days",
        "waiting                      waiting           0/2000        -       -        -",
        "failed                       failed            0/600k        -       -        -",
    ]
    wide = table(jobs, 200, 20)
    assert long in wide[2]
    assert {line[len(long) + 1 :].split()[0] for line in wide[1:]} == {"done", "running", "waiting", "failed"}


def test_of_too_many_runs_those_are_shown_that_matter(tmp_path: Path) -> None:
    states = ["done"] * 20 + ["failed"] + ["done"] * 5 + ["running"] * 2 + ["waiting"] * 30
    jobs = [job(tmp_path, f"run-{index}", state) for index, state in enumerate(states)]
    lines = table(jobs, 79, 10)
    assert len(lines) == 10
    assert [line.split()[0] for line in lines[1:-1]] == ["run-20", *(f"run-{n}" for n in range(26, 33))]
    assert lines[-1] == "and 50 more: 25 waiting, 25 done"
    assert len(table(jobs, 79, 59)) == 59
    assert len(table(jobs, 79, 60)) == 59


class Screen(io.StringIO):
    """A terminal that knows what the view uses: back to the beginning of a line above, and two ways to clear."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        rows, row = [""], 0
        for part in re.split(r"(\x1b\[\d*[A-Z]|\n)", self.getvalue()):
            if part == "\n":
                row += 1
                rows += [""] if row == len(rows) else []
                column = 0
            elif back := re.fullmatch(r"\x1b\[(\d+)F", part):
                row, column = row - int(back[1]), 0
                assert row >= 0
            elif part == "\x1b[K":
                rows[row] = rows[row][:column]
            elif part == "\x1b[J":
                rows[row:] = [rows[row][:0]]
            elif part:
                column = len(part)
                rows[row] = part + rows[row][column:]
        return rows


def test_on_a_terminal_the_table_is_redrawn_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "REDRAW_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    jobs, out = [job(tmp_path, "a", "running"), job(tmp_path, "b")], Screen()
    out.write("before\n")
    shown = View(jobs, 1, out, plain=False)
    shown.show()
    metrics(tmp_path / "a", LINE)
    shown.show()
    assert out.lines()[0] == "before"
    assert [line.split() for line in out.lines()[2:]] == [
        ["a", "running", "500/2000", "30", "62", "%", "0:01:00"],
        ["b", "waiting", "0/2000", "-", "-", "-"],
        ["0", "of", "2", "runs", "done;", "about", "0:02:20", "left"],
        [],
    ]
    shown.say("stopping: a line that is longer than the others, which the next table removes")
    jobs[0].state = "failed"
    shown.changed(jobs[0])
    assert [line.split()[:2] for line in out.lines()] == [
        ["before"],
        ["run", "state"],
        ["a", "failed"],
        ["b", "waiting"],
        ["0", "of"],
        [],
    ]
    assert all(len(line) < 80 for line in out.lines())


def test_elsewhere_lines_tell_of_changes_and_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    jobs = [job(tmp_path, "a", "running"), job(tmp_path, "b")]
    out = Screen()
    view = View(jobs, 1, out, plain=True)
    view.changed(jobs[0])
    metrics(tmp_path / "a", LINE)
    now = 59.9
    view.show()
    assert out.getvalue() == "a: running, 0 of 2,000 frames\n"
    now = 60.0
    view.show()
    view.show()
    trained(tmp_path / "a", 20, success=0.9)
    jobs[0].state = "done"
    jobs[0].look()
    view.changed(jobs[0])
    now = 120.0
    view.show()
    assert out.getvalue().splitlines()[1:] == [
        "a: running, 500 of 2,000 frames, 30 frames/s, success 62 %, 0:01:00 left",
        "0 of 2 runs done; about 0:02:20 left",
        "a: done, 2,000 frames; 100 fresh episodes: success 90.0 % (95 %: 65.7 to 82.5), return 0.500",
        "1 of 2 runs done; about 0:01:20 left",
    ]
    assert "\x1b" not in out.getvalue()


def test_the_time_left_is_that_of_each_method(tmp_path: Path) -> None:
    def at(state: str, method: str, frames: int, pace: float | None) -> Job:
        return Job(run("x", method=method), tmp_path / "x", state, frames=frames, pace=pace)

    assert seconds_left([at("waiting", "leco", 0, None)], 1) is None
    assert seconds_left([at("done", "leco", 2000, 10)], 1) == 0
    mixed = [
        at("done", "leco", 2000, 10),
        at("running", "leco", 1000, 30),  # 33.3 s
        at("waiting", "leco", 0, None),  # 2000 / 20 = 100 s
        at("waiting", "no-int", 500, 100),  # 15 s
        at("waiting", "dsc", 0, None),  # 2000 / (140 / 3) = 42.9 s
        at("failed", "dsc", 0, None),
        at("evaluating", "dsc", 2000, None),
    ]
    assert seconds_left(mixed, 1) == pytest.approx(1000 / 30 + 100 + 15 + 2000 * 3 / 140)
    assert seconds_left(mixed, 2) == pytest.approx(100)  # no run is faster than alone
    assert seconds_left([at("waiting", "dsc", 0, 10)] * 6, 2) == pytest.approx(600)


def filled(folder: Path) -> tuple[list[Run], dict[int, dict[str, float]]]:
    """Two methods with three seeds each; the last of all is not done."""
    random = np.random.default_rng(0)
    runs: list[Run] = []
    numbers: dict[int, dict[str, float]] = {}
    for method in ("leco", "no-int"):
        for seed in (10, 2, 1):
            one = run(f"{method}-{seed}", method=method, seed=seed)
            metrics(folder / one.name, LINE | {"seconds": 7.25})
            if len(runs) < 5:
                numbers[len(runs)] = {"success": float(random.random()), "return": float(random.random())}
                trained(folder / one.name, 20 + len(runs), one, **numbers[len(runs)])
            runs.append(one)
    return runs, numbers


def test_results_csv_has_a_line_a_run(tmp_path: Path) -> None:
    runs, numbers = filled(tmp_path)
    runs[0] = Run(runs[0].name, runs[0].experiment, {"training.alpha": "0.01"})
    asked = Asked(tmp_path, "", runs)
    asked.note_commit(runs[0].name, "abc1234")
    asked.note_commit(runs[0].name, "def5678-dirty")
    write_csv(tmp_path / "results.csv", gather(tmp_path, asked.runs.values(), {runs[4].name: "failed"}))
    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("run", "task", "method", "training.alpha", "seed", "frames", "updates", "wall_seconds"),
        *("frames_to_90", "seconds_to_90"),
        *("success", "success_low", "success_high", "return", "return_low", "return_high", "episodes"),
        *("version", "commit", "status"),
    ]
    assert [row["seed"] for row in rows] == ["10", "2", "1"] * 2
    assert [row["updates"] for row in rows] == ["20", "21", "22", "23", "24", "0"]
    assert [row["frames"] for row in rows] == ["2000", "2100", "2200", "2300", "2400", "0"]
    assert [row["status"] for row in rows] == ["done"] * 4 + ["failed", "waiting"]
    assert [row["training.alpha"] for row in rows] == ["0.01", "", "", "", "", ""]
    for index in range(4):
        assert float(rows[index]["success"]) == pytest.approx(numbers[index]["success"], rel=1e-5)
        assert float(rows[index]["return"]) == pytest.approx(numbers[index]["return"], rel=1e-5)
    assert (rows[0]["success_low"], rows[0]["return_high"], rows[0]["episodes"]) == ("0.657", "0.6", "100")
    assert [row["wall_seconds"] for row in rows] == ["12.5"] * 4 + ["7.25"] * 2
    assert [row["success"] for row in rows[4:]] == ["", ""]
    assert (rows[0]["version"], rows[0]["commit"]) == ("0.1.0 0.2.0", "abc1234 def5678-dirty")


def test_means_are_over_the_seeds_that_are_done(tmp_path: Path) -> None:
    runs, numbers = filled(tmp_path)
    groups = grouped(gather(tmp_path, Asked(tmp_path, "", runs).runs.values(), {}))
    write_markdown(tmp_path / "results.md", groups)
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (tmp_path / "results.md").read_text().splitlines()
        if line.startswith("|")
    ]
    assert lines[0][:3] == ["method", "seeds", "frames"]
    for cells, method, indices, seeds in (
        (lines[2], "leco", (2, 1, 0), "1, 2, 10"),
        (lines[3], "no-int", (4, 3), "2, 10 (1 not done)"),
    ):
        success = [100 * numbers[index]["success"] for index in indices]
        returns = [numbers[index]["return"] for index in indices]
        assert cells[:2] == [method, seeds]
        assert cells[2] == ("2,000 to 2,200" if method == "leco" else "2,300 to 2,400")
        assert cells[3] == f"{statistics.mean(success):.1f} %"
        assert cells[4] == ", ".join(f"{each:.1f}" for each in success)
        assert cells[5] == f"{statistics.mean(returns):.3f}"
        assert cells[6] == ", ".join(f"{each:.3f}" for each in returns)
    assert "## Empty-5x5" in (tmp_path / "results.md").read_text()


def reaching(folder: Path, whens: Sequence[tuple[int, float] | None]) -> list[Run]:
    """A run for each, which had 90 % after so many frames and seconds, or never."""
    runs = [run(f"leco-{seed}", method="leco", seed=seed) for seed in range(1, len(whens) + 1)]
    for one, when in zip(runs, whens, strict=True):
        trained(folder / one.name, 20, one, success=1.0)
        begin = SOLVED | {"success": 0.5}
        frames, seconds = when or (1000, 33.0)
        end = SOLVED | {"frames": frames, "seconds": seconds, "success": 0.5 if when is None else 0.9}
        metrics(folder / one.name, begin, end, end | {"frames": 2000, "seconds": 99, "success": 0.1})
    return runs


@pytest.mark.parametrize(
    ("whens", "cells"),
    [
        ([(1500, 40.0), (700, 30.4), (900, 20)], ["900", "1,500; 700; 900", "30", "40; 30; 20"]),
        ([None, (700, 30.4), (900, 20)], ["900", "-; 700; 900", "30", "-; 30; 20"]),
        ([(1500, 40.0), None], ["-", "1,500; -", "-", "40; -"]),
        ([None], ["-", "-", "-", "-"]),
    ],
)
def test_frames_and_seconds_to_90_percent(
    tmp_path: Path, whens: Sequence[tuple[int, float] | None], cells: Sequence[str]
) -> None:
    runs = reaching(tmp_path, whens)
    rows = gather(tmp_path, Asked(tmp_path, "", runs).runs.values(), {})
    write_csv(tmp_path / "results.csv", rows)
    found = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    told = [(each["frames_to_90"], each["seconds_to_90"]) for each in found]
    assert told == [("", "") if when is None else (f"{when[0]}", f"{when[1]:g}") for when in whens]
    write_markdown(tmp_path / "results.md", grouped(rows))
    lines = (tmp_path / "results.md").read_text().splitlines()
    head, _, line = [each.strip("| ").split(" | ") for each in lines if each.startswith("|")]
    assert head[-4:] == ["frames to 90 %, median", "of each seed", "seconds to 90 %, median", "of each seed"]
    assert line[-4:] == cells


def test_runs_of_other_settings_are_not_averaged(tmp_path: Path) -> None:
    runs: list[Run] = []
    for value in ("0", "0.5"):
        for seed in (1, 2):
            one = run(f"{value}-{seed}", seed=seed)
            trained(tmp_path / one.name, 20, one, success=float(value))
            runs.append(Run(one.name, one.experiment, {"training.lambda": value}))
    groups = grouped(gather(tmp_path, Asked(tmp_path, "", runs).runs.values(), {}))
    assert [(group.varied, group.successes) for group in groups] == [
        ((("training.lambda", "0"),), [0.0, 0.0]),
        ((("training.lambda", "0.5"),), [0.5, 0.5]),
    ]
    write_markdown(tmp_path / "results.md", groups)
    assert "| no-int | 0.5 | 1, 2 | 2,000 | 50.0 % | 50.0, 50.0 |" in (tmp_path / "results.md").read_text()


def test_a_task_that_calls_no_episode_solved_has_only_returns(tmp_path: Path) -> None:
    one = run("one")
    nothing = {"success": None, "success_low": None, "success_high": None}
    trained(tmp_path / one.name, 20, one, **nothing)
    rows = gather(tmp_path, Asked(tmp_path, "", [one]).runs.values(), {})
    write_csv(tmp_path / "results.csv", rows)
    [found] = csv.DictReader((tmp_path / "results.csv").read_text().splitlines())
    assert (found["success"], found["return"], found["status"]) == ("", "0.5", "done")
    write_markdown(tmp_path / "results.md", grouped(rows))
    assert "| no-int | 1 | 2,000 | - | - | 0.500 | 0.500 |" in (tmp_path / "results.md").read_text()
    done = Job(one, tmp_path / one.name, "done")
    done.look()
    assert sentence(done) == "one: done, 2,000 frames; 100 fresh episodes: return 0.500"


def test_the_numbers_of_an_evaluation_are_those_that_leco_eval_shows() -> None:
    result = Result(np.array([0.0, 1.0, 0.5, 0.5]), np.array([10, 20, 30, 40]), np.array([False, True, True, True]))
    found = numbers(result)
    assert (found["success_low"], found["success_high"]) == wilson(3, 4)
    half = 1.959964 * statistics.stdev([0, 1, 0.5, 0.5]) / math.sqrt(4)
    assert found["return_low"] == pytest.approx(0.5 - half)
    assert found["return_high"] == pytest.approx(0.5 + half)
    assert (found["episodes"], found["success"], found["return"], found["length"]) == (4, 0.75, 0.5, 25.0)


def naive(series: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[tuple[float, float, float]]:
    """At every point of any curve that lies within all: mean and deviation of straight lines between points."""

    def at(frames: Sequence[float], values: Sequence[float], where: float) -> float:
        for left, right, low, high in zip(frames, frames[1:], values, values[1:], strict=False):
            if left <= where <= right:
                return low + (high - low) * (where - left) / (right - left)
        raise AssertionError(where)

    points = sorted({x for frames, _ in series for x in frames})
    inside = [x for x in points if all(frames[0] <= x <= frames[-1] for frames, _ in series)]
    rows = []
    for x in inside:
        values = [at(*each, x) for each in series]
        rows.append((x, statistics.mean(values), statistics.stdev(values)))
    return rows


def test_the_mean_over_seeds_against_a_naive_one() -> None:
    random = np.random.default_rng(1)
    series = []
    for count in (5, 9, 30):
        frames = np.sort(random.choice(10_000, count, replace=False)).astype(float)
        series.append((frames, random.random(count)))
    found = over_seeds(series)
    expected = naive([(list(x), list(y)) for x, y in series])
    assert len(expected) > 10
    np.testing.assert_allclose(np.stack(found, 1), expected)
    assert all(len(part) == 0 for part in over_seeds([]))


def test_pictures_are_there_whole_with_a_line_for_what_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, _ = filled(tmp_path)
    for index, one in enumerate(runs[:4]):  # one has a single point, one has no metrics
        lines = [LINE | {"frames": n * 100 * (index + 1), "success": n / 20, "return": n / 30} for n in range(1, 20)]
        metrics(tmp_path / one.name, *lines)
    (tmp_path / runs[5].name / "metrics.csv").unlink()
    groups = grouped(gather(tmp_path, Asked(tmp_path, "", runs).runs.values(), {}))
    results.draw_task(tmp_path, "Empty-5x5", groups)
    with Image.open(tmp_path / "Empty-5x5.png") as picture:
        assert picture.format == "PNG"
        colours = {colour for _, colour in picture.convert("RGB").getcolors(2**24) or ()}
    assert {(0, 114, 178), (213, 94, 0)} <= colours  # the first two of the palette
    assert (0, 158, 115) not in colours
    assert not list(tmp_path.glob(".*partial"))

    drawn: list[tuple[list[tuple[str, str]], str]] = []

    def comparison(runs: Sequence[Any], title: str) -> Any:
        drawn.append(([(each.label, each.name) for each in runs], title))
        return draw(runs, title)

    draw = curves.comparison
    monkeypatch.setattr(curves, "comparison", comparison)
    results.draw_task(tmp_path, "Empty-5x5", groups)
    [(lines_drawn, title)] = drawn
    assert (list(dict(lines_drawn)), title) == (["leco", "no-int"], "Empty-5x5")
    assert [name for label, name in lines_drawn if label == "leco"] == ["leco-1", "leco-2", "leco-10"]
    varied = [
        group._replace(method="leco", varied=(("training.alpha", str(index)),)) for index, group in enumerate(groups)
    ]
    results.draw_task(tmp_path, "Empty-5x5", varied)
    assert (list(dict(drawn[-1][0])), drawn[-1][1]) == (["alpha 0", "alpha 1"], "leco on Empty-5x5")


def test_what_trained_is_a_commit_of_this_checkout() -> None:
    if not (Path(__file__).parents[3] / ".git").exists():
        pytest.skip("no checkout")
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?|.+-g[0-9a-f]{7,}(-dirty)?", jobs.present_commit())


def test_an_evaluation_is_only_of_its_checkpoint(tmp_path: Path) -> None:
    folder = trained(tmp_path / "one", 20, success=0.5)
    assert evaluation(folder) == EVALUATED | {"success": 0.5}
    assert evaluation(folder, 99) is None
    trained(folder, 21)
    assert evaluation(folder) is None
    assert "done" in sentence(Job(run(), folder, "done"))


def test_a_sweep_looks_first_at_what_is_there(tmp_path: Path) -> None:
    trained(tmp_path / "a", 20, success=0.5)
    trained(tmp_path / "b", 7)
    jobs = [Job(run(name), tmp_path / name) for name in "abc"]
    Sweep(
        jobs,
        episodes=100,
        parallel=1,
        actors=1,
        threads=1,
        device="cpu",
        on_change=lambda _job: None,
        on_look=lambda: None,
    )
    assert [(each.state, each.frames) for each in jobs] == [("done", 2000), ("waiting", 700), ("waiting", 0)]
