"""The zoo: an entry plays as the run that it was made of, holds nothing that cannot act, and errors say what to do."""

from __future__ import annotations

import contextlib
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from leco.checkpoint.state_file import SavedStateError
from leco.cli import evaluate, zoo
from leco.cli.watch import command
from leco.cli.watch.replays import document
from leco.cli.watch.standing import Standing
from leco.envs.registry import find_task
from leco.evaluation import rollout
from leco.evaluation.record import make_recording
from leco.evaluation.rollout import Keeper
from leco.evaluation.trained import read_experiment, trained_state
from leco.evaluation.video import film
from leco.evaluation.zoo import MOST_LINES, ZooError, absent, find_entries, is_entry, new_entry, read_entry, thinned
from leco.methods.table import METHODS, Modulation, find_method
from leco.report.metrics import read_metrics
from support.uncompiled import make_uncompiled
from support.zoo_case import COMMAND, LEARNED_LINE, STANDS, TASK, WALKS, saved_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leco.evaluation.recording import Recording

FILES = ["config.toml", "evaluation.json", "metrics.csv", "policy.safetensors", "provenance.json"]


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longer than all that is played here."""

    monkeypatch.setattr(rollout, "make", make_uncompiled)


def added(folder: Path, *flags: str, **settings: Any) -> tuple[Path, Path]:
    """A run, and the entry that the command makes of it."""
    run = saved_run(folder / "run", **{"bias": WALKS, "solved": 97, **settings})
    zoo.main([f"--zoo={folder / 'zoo'}", "add", str(run), *flags])
    [entry] = find_entries(folder / "zoo")
    return run, entry


def played(folder: Path) -> Recording:
    trained, keeper = trained_state(folder, "newest"), Keeper(3)
    rollout.evaluate(trained.policy, find_task(TASK), episodes=3, seed=1, greedy=False, keeper=keeper)
    return make_recording(trained, keeper.episodes, run="r", checkpoint="newest", seed=1, greedy=False)


def error(command: Any, arguments: Sequence[str]) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as said, pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    return said.getvalue().strip()


@pytest.mark.parametrize(("method", "kind"), [*((name, None) for name in METHODS), ("leco", "exact"), ("lirpg", "dsc")])
def test_an_entry_plays_codes_and_counts_as_its_run_and_says_what_it_cannot_know(
    tmp_path: Path, method: str, kind: str | None
) -> None:
    run, entry = added(tmp_path, method=method, **{"hash.kind": kind})
    row = find_method(method)
    whole, kept = played(run), played(entry)
    assert kept.metadata == whole.metadata
    for one, other in zip(whole.episodes, kept.episodes, strict=True):
        for name in ("action_T", "r_e_T", "observation_TO", "code_TW", "count_T", "x_T"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        for name in ("r_ep", "r_ta", "r_i"):
            known, found = getattr(one, f"{name}_T"), getattr(other, f"{name}_T")
            assert np.isfinite(known).all()
            assert np.isnan(found).all() == (name in absent(read_experiment(entry))), name
            if not np.isnan(found).all():
                np.testing.assert_array_equal(known, found, err_msg=name)
    if row.modulation is not Modulation.NONE:
        assert whole.episodes[0].r_ta_T.any()


@pytest.mark.parametrize("method", ["leco", "vq-only", "no-int"])
def test_a_policy_file_has_the_policy_and_the_hash_and_nothing_else(tmp_path: Path, method: str) -> None:
    _, entry = added(tmp_path, method=method)
    with safe_open(str(entry / "policy.safetensors"), "pt") as file:
        names = list(file.keys())
    kinds = {name.split("/")[0] for name in names}
    assert kinds == ({"policy"} if method == "no-int" else {"policy", "hash"})
    assert {name.split("/")[1].split(".")[0] for name in names if name.startswith("hash/")} <= {
        *("encoder", "bottleneck", "scale")
    }
    assert sorted(path.name for path in entry.iterdir()) == FILES
    assert [path.name for path in entry.parent.iterdir()] == [TASK]


def test_add_keeps_what_the_run_has_and_evaluates_what_it_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, entry = added(tmp_path, lines=1000, solved=None)
    out = capsys.readouterr().out
    assert "playing 100 fresh episodes of Empty-5x5" in out
    assert entry == tmp_path / "zoo" / TASK
    assert (entry / "config.toml").read_bytes() == (run / "config.toml").read_bytes()
    lines = read_metrics(entry / "metrics.csv")
    every = read_metrics(run / "metrics.csv")
    assert len(lines) == MOST_LINES
    assert (lines[0], lines[-1]) == (every[0], every[-1])
    assert lines == [row for row in every if row in lines]
    made = json.loads((entry / "provenance.json").read_text())
    assert (made["run"], made["command"], made["commit"], made["seed"]) == ("run", COMMAND, None, 1)
    assert (made["updates"], made["frames"], made["seconds"]) == (40, 1_000_000, 10_000)
    assert made["learned"] == {"success": 0.95, "frames": 1000 * LEARNED_LINE, "seconds": 10 * LEARNED_LINE}
    assert made["starts"] == json.loads((run / "versions.json").read_text())
    found = json.loads((entry / "evaluation.json").read_text())
    evaluate.main([str(run), f"--json={tmp_path / 'evaluated.json'}"])
    assert found == json.loads((tmp_path / "evaluated.json").read_text())
    assert (found["updates"], found["episodes"], found["greedy"]) == (40, 100, False)


@pytest.mark.parametrize(
    ("changed", "is_used"), [({}, True), ({"updates": 39}, False), ({"episodes": 50}, False), ({"greedy": True}, False)]
)
def test_the_runs_own_evaluation_is_used_if_it_is_of_this_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], is_used: bool
) -> None:
    run = saved_run(tmp_path / "run", bias=WALKS, solved=97)
    own = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps(own | changed))
    zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(run), "--name=other"])
    found = json.loads((tmp_path / "zoo" / "other" / "evaluation.json").read_text())
    assert (found["seed"] == 7) == is_used
    assert ("playing 100 fresh episodes" in capsys.readouterr().out) != is_used


def test_the_commit_is_that_of_the_start_or_of_the_sweep(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", solved=97)
    sweep = '[[runs]]\nname = "run"\ncommits = ["abc1234", "def5678"]\n\n[[runs]]\nname = "other"\ncommits = ["x"]\n'
    (tmp_path / "sweep.toml").write_text(sweep)
    zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(run)])
    path = tmp_path / "zoo" / TASK / "provenance.json"
    assert json.loads(path.read_text())["commit"] == "abc1234 def5678"
    (run / "versions.json").write_text(json.dumps([{"commit": "1234567"}, {"commit": "1234567"}]))
    zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(run), "--force"])
    assert json.loads(path.read_text())["commit"] == "1234567"


def test_add_says_what_it_cannot_make_an_entry_of(tmp_path: Path) -> None:
    run, entry = added(tmp_path)
    place = f"--zoo={tmp_path / 'zoo'}"
    assert error(zoo, [place, "add", str(run)]) == (
        f"leco zoo: {entry} exists already: choose another name with --name, or replace it with --force"
    )
    assert "is an entry of the zoo already" in error(zoo, [place, "add", str(entry)])
    assert "is neither a run nor an entry of the zoo" in error(zoo, [place, "add", str(tmp_path / "nowhere")])
    for name in ("../x", "a/b", ".hidden", ""):
        assert "is no name for an entry" in error(zoo, [place, "add", str(run), f"--name={name}"])
    (run / "checkpoints" / "000000040.safetensors").unlink()
    assert "has no checkpoint yet" in error(zoo, [place, "add", str(run), "--name=other"])
    (run / "checkpoints" / "000000040.safetensors").write_bytes(b"damaged")
    assert "000000040.safetensors" in error(zoo, [place, "add", str(run), "--name=other"])
    assert [path.name for path in (tmp_path / "zoo").iterdir()] == [TASK]


def test_force_replaces_an_entry_and_a_failure_leaves_it_as_it_was(tmp_path: Path) -> None:
    run, entry = added(tmp_path)
    before = {path.name: path.read_bytes() for path in entry.iterdir()}
    (run / "metrics.csv").unlink()
    assert "metrics.csv" in error(zoo, [f"--zoo={entry.parent}", "add", str(run), "--force"])
    assert {path.name: path.read_bytes() for path in entry.iterdir()} == before
    assert [path.name for path in entry.parent.iterdir()] == [TASK]
    better = saved_run(tmp_path / "better", updates=80, solved=99)
    zoo.main([f"--zoo={entry.parent}", "add", str(better), "--force"])
    assert trained_state(entry, "newest").updates == 80
    assert sorted(path.name for path in entry.iterdir()) == FILES
    with pytest.raises(ZooError, match="exists already"), new_entry(entry):
        pass


def test_a_policy_that_solves_little_is_added_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved_run(tmp_path / "run", bias=STANDS)
    zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(run)])
    assert capsys.readouterr().out.splitlines()[-1].startswith("it solves less than 90 % of fresh episodes")


def test_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"--zoo={tmp_path / 'zoo'}"
    assert error(zoo, [place]).startswith(f"leco zoo: there are no entries in {tmp_path / 'zoo'}: ")
    added(tmp_path, method="dsc", seed=3)
    never = saved_run(tmp_path / "never", lines=10, bias=STANDS)
    zoo.main([place, "add", str(never), "--name=standing"])
    capsys.readouterr()
    zoo.main([place])
    head, one, other = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell] for row in (head, one, other)]
    assert cells[0] == ["entry", "task", "method", "seed", "frames to 90 %", "time", "solved of 100", "size"]
    size = sum((tmp_path / "zoo" / TASK / name).stat().st_size for name in FILES)
    assert cells[1] == [*(TASK, TASK, "dsc", "3", "30,000", "0:05:00", "97 (91.5 to 99.0 %)", f"{size / 1000:.0f} KB")]
    assert cells[2][:7] == ["standing", TASK, "leco", "1", "-", "-", "0 (0.0 to 3.7 %)"]


@pytest.mark.parametrize("name", ["config.toml", "evaluation.json", "provenance.json", "metrics.csv"])
def test_a_damaged_entry_is_named_and_the_others_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run, entry = added(tmp_path)
    zoo.main([f"--zoo={entry.parent}", "add", str(run), "--name=other"])
    if name == "metrics.csv":
        (entry / name).unlink()
    else:
        (entry / name).write_text("{}")
    capsys.readouterr()
    assert f"{entry} is a damaged entry of the zoo" in error(zoo, [f"--zoo={entry.parent}"])
    out = capsys.readouterr().out
    assert "other" in out
    assert not out.splitlines()[1].startswith(TASK)
    with pytest.raises(ZooError, match="is a damaged entry of the zoo"):
        read_entry(entry)


def test_eval_on_an_entry_is_as_on_its_run_and_writes_nothing_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, entry = added(tmp_path)
    capsys.readouterr()
    said = []
    for folder in (run, entry):
        picture = tmp_path / f"{folder.name}.gif"
        evaluate.main([str(folder), "--episodes=5", f"--video={picture}", f"--json={tmp_path / folder.name}.json"])
        said.append(capsys.readouterr().out.splitlines())
        with Image.open(picture) as opened:
            assert (opened.format, opened.size) == ("GIF", (960, 480))
    assert said[1][:4] == said[0][:4]
    assert said[1][4] == (
        "not recorded: an entry of the zoo is only read. An entry of the zoo is without the modulator and V^e: "
        "r_ta and r_i are not known."
    )
    assert (tmp_path / "run.json").read_text() == (tmp_path / f"{TASK}.json").read_text()
    assert sorted(path.name for path in entry.iterdir()) == FILES


def test_a_film_of_an_entry_draws_the_rewards_that_are_known(tmp_path: Path) -> None:
    from leco.evaluation import video as module

    run, entry = added(tmp_path, method="leco")
    one, other = played(run).episodes[0], played(entry).episodes[0]
    assert list(module._known_rewards(one)) == ["r_ep", "r_ta", "r_i"]
    assert list(module._known_rewards(other)) == ["r_ep"]
    nothing = other._replace(r_ep_T=other.r_ta_T)  # as of an entry of RND
    recording = played(entry)
    film(type(recording)(recording.metadata, (nothing,)), tmp_path / "film.gif")
    assert (tmp_path / "film.gif").exists()


@pytest.mark.parametrize("checkpoint", ["best", "50%", "milestones", "000000040.safetensors"])
def test_an_entry_has_no_checkpoints(tmp_path: Path, checkpoint: str) -> None:
    _, entry = added(tmp_path)
    assert error(evaluate, [str(entry), f"--checkpoint={checkpoint}"]) == (
        f"leco eval: {entry} is an entry of the zoo, with one policy and no checkpoints: leave out --checkpoint"
    )


def test_a_damaged_policy_and_one_of_other_networks_are_refused(tmp_path: Path) -> None:
    _, entry = added(tmp_path)
    path = entry / "policy.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert f"{path} has changed since it was written" in error(evaluate, [str(entry)])
    path.write_bytes(data[:5000])
    assert str(path) in error(evaluate, [str(entry)])
    other = saved_run(tmp_path / "other", method="no-int", solved=97)
    zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(other), "--name=other"])
    path.write_bytes((tmp_path / "zoo" / "other" / "policy.safetensors").read_bytes())
    with pytest.raises(SavedStateError, match=r"policy\.safetensors is of other networks: missing: hash/"):
        trained_state(entry, "newest")
    path.write_bytes((other / "checkpoints" / "000000040.safetensors").read_bytes())
    with pytest.raises(SavedStateError, match=r"policy\.safetensors is "):
        trained_state(entry, "newest")
    path.unlink()
    assert "has no checkpoint yet" in error(evaluate, [str(entry)])  # then it is a run that has not saved


def test_an_entry_stands_as_a_run_that_has_ended(tmp_path: Path) -> None:
    _, entry = added(tmp_path)
    assert is_entry(entry)
    now = Standing(entry).now({"frames": 49_000.0})
    assert (now["phase"], now["frames"], now["goal"], now["left"], now["quiet_since"]) == (
        *("finished", 50_000, 50_000),
        *(None, None),
    )
    assert now["about"].startswith("An entry of the zoo: a policy, its hash, and the curves")
    assert now["about"].endswith("r_ta and r_i are not known.")
    assert now["trouble"] == ""
    (entry / "provenance.json").write_text("")
    now = Standing(entry).now({"frames": 49_000.0})
    assert (now["phase"], now["frames"]) == ("finished", 49_000)
    assert "is a damaged entry of the zoo" in now["trouble"]


def test_the_page_is_told_only_of_rewards_that_are_known(tmp_path: Path) -> None:
    run, entry = added(tmp_path)
    whole, kept = (document("x", of.metadata, of.episodes[0]) for of in (played(run), played(entry)))
    assert whole.keys() - kept.keys() == {"r_ta"}
    assert {name: whole[name] for name in kept} == kept
    _, other = added(tmp_path / "rnd", method="rnd")
    assert not {"r_ep", "r_ta"} & document("x", played(other).metadata, played(other).episodes[0]).keys()


def test_a_zoo_itself_cannot_be_watched(tmp_path: Path) -> None:
    _, entry = added(tmp_path)
    assert command.why_not(entry) == ""
    assert command.why_not(entry.parent) == f"{entry.parent} is a zoo; watch one of its entries: {entry}"
    missing = tmp_path / "zoo" / "Empti-5x5"
    assert str(entry) in command.why_not(missing)


def test_thin_curves_keep_their_ends() -> None:
    rows = [{"frames": str(n)} for n in range(1234)]
    assert thinned(rows[:200]) == rows[:200]
    found = thinned(rows)
    assert (len(found), found[0], found[-1]) == (200, rows[0], rows[-1])
    steps = np.diff([int(row["frames"]) for row in found])
    assert steps.min() >= 6
    assert steps.max() <= 7
    assert thinned([]) == []
