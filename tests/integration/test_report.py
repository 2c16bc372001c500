"""`leco report`: its numbers against an independent computation from the files, and folders that are not as they should be."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from leco.cli import report
from leco.cli.main import COMMANDS
from leco.evaluation.recording import Recording, write_recording
from leco.report import curves, gallery, maps, results
from leco.report.pictures import window
from leco.report.runs import ReportError, read_runs
from leco.report.style import COLOURS, colour, dash, styled
from support.made_episodes import episode, metadata, recording
from support.made_runs import make_run, make_sweep

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def last(folder: Path, name: str) -> float:
    return float([row[name] for row in rows_of(folder) if row[name]][-1])


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("sweeps") / "sweep")


def test_numbers_of_the_table_are_those_of_the_csv(sweep: Path, tmp_path: Path) -> None:
    report.main([str(sweep), f"--out={tmp_path / 'out'}"])
    found = {(row["task"], row["label"]): row for row in json.loads((tmp_path / "out" / "results.json").read_text())}
    page = (tmp_path / "out" / "index.html").read_text()
    assert len(found) == 4
    for (task, method), row in found.items():
        folders = [sweep / f"{task}-{method}-{seed}" for seed in (1, 2, 3)]
        for column, name, scale, digits in (("success", "success", 100, 1), ("return", "returns", 1, 3)):
            values = [last(folder, column) for folder in folders]
            mean, half = statistics.fmean(values), 4.302653 * statistics.stdev(values) / math.sqrt(3)
            low, high = mean - half, mean + half
            if column == "success":
                low, high = max(low, 0), min(high, 1)
            assert row[name] == pytest.approx([mean, low, high], rel=1e-5)
            unit = " %" if column == "success" else ""
            told = f"{scale * mean:.{digits}f}{unit} ({scale * low:.{digits}f} to {scale * high:.{digits}f})"
            assert f">{told}</td>" in page
        assert row["frames"] == [last(folders[0], "frames")] * 2
        assert row["seeds"] == ["1", "2", "3"]
    # Of fresh episodes: three of each recording, and only the newest one counts.
    fresh = found["Empty-5x5", "leco"]
    assert (fresh["fresh_episodes"], fresh["fresh_returns"][0]) == (3, 0.5)
    assert fresh["fresh_success"] == pytest.approx([2 / 3, 0.2077, 0.9385], abs=1e-4)  # Wilson's
    assert found["DoorKey-5x5", "leco"]["fresh_success"] == [None, None, None]


def naive_90(folder: Path) -> tuple[float, float] | None:
    for row in rows_of(folder):
        if row["success"] and float(row["success"]) >= 0.9 and int(row["episodes"]) >= 100:
            return float(row["frames"]), float(row["seconds"])
    return None


def test_frames_and_seconds_to_90_percent_are_those_of_the_csv(sweep: Path, tmp_path: Path) -> None:
    report.main([str(sweep), f"--out={tmp_path / 'out'}"])
    page = (tmp_path / "out" / "index.html").read_text()
    for row in json.loads((tmp_path / "out" / "results.json").read_text()):
        whens = [naive_90(sweep / f"{row['task']}-{row['label']}-{seed}") for seed in (1, 2, 3)]
        each = [when for when in whens if when is not None]
        assert len(each) == 3
        assert row["each"]["frames_to_90"] == [frames for frames, _ in each]
        assert row["frames_to_90"] == sorted(frames for frames, _ in each)[1]
        assert row["seconds_to_90"] == sorted(seconds for _, seconds in each)[1]
        for frames in (
            row["frames_to_90"],
            *row["each"]["frames_to_90"],
        ):  # in the table of results, and in that of runs
            assert f'<td data-head="frames to 90 %">{frames:,.0f}</td>' in page


def test_seeds_that_never_reached_90_percent_are_told(tmp_path: Path) -> None:
    for seed, worst in ((1, False), (2, True), (3, False)):
        folder = make_run(tmp_path / "runs" / f"{seed}", seed=seed, recordings=0, settings={"until": 0.5 + seed / 10})
        if worst:
            made = [row | {"success": "0.5"} for row in rows_of(folder)]
            lines = [",".join(made[0]), *(",".join(row.values()) for row in made)]
            (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    runs = read_runs([tmp_path / "runs"])
    assert {run.label for run in runs} == {"leco"}, "when they end makes no difference"
    [row] = results.table(runs)
    later = max(when for when in (naive_90(tmp_path / "runs" / name) for name in "13") if when)
    assert (row.frames_to_90, row.seconds_to_90) == later
    report.main([str(tmp_path / "runs"), f"--out={tmp_path / 'out'}"])
    page = (tmp_path / "out" / "index.html").read_text()
    assert f'<td data-head="frames to 90 %">{later[0]:,.0f} (2 of 3)</td>' in page
    minutes, seconds = divmod(int(later[1]), 60)
    assert f'<td data-head="time to 90 %">0:{minutes:02d}:{seconds:02d} (2 of 3)</td>' in page
    assert page.count('<td data-head="frames to 90 %">-</td>') == 1, "of the second run"
    [few] = results.table([run for run in runs if run.name in "12"])
    assert (few.frames_to_90, len(few.each["frames_to_90"])) == (None, 1)


def naive_mean(folders: Sequence[Path], column: str) -> list[tuple[float, float, float]]:
    """All have lines at the same frames."""
    table = [[(float(row["frames"]), float(row[column])) for row in rows_of(each) if row[column]] for each in folders]
    return [
        (points[0][0], statistics.fmean(y for _, y in points), statistics.stdev(y for _, y in points))
        for points in zip(*table, strict=True)
    ]


@pytest.mark.parametrize("measure", [curves.SUCCESS, curves.RETURN, curves.R_EP, curves.SPEED])
def test_lines_are_means_of_the_csv_in_a_band_of_one_deviation(sweep: Path, measure: curves.Measure) -> None:
    runs = read_runs([sweep])
    with styled():
        panels = curves.draw(runs, measure, numbers=curves.numbered(runs))
    assert [panel.name for panel in panels] == [f"{measure.column}-frames-{t}" for t in ("DoorKey-5x5", "Empty-5x5")]
    for panel, task in zip(panels, ("DoorKey-5x5", "Empty-5x5"), strict=True):
        [axes] = panel.figure.axes
        methods = ("leco",) if measure is curves.R_EP else ("leco", "no-int")
        means = [line for line in axes.lines if str(line.get_gid()).startswith("line-")]
        assert len(axes.lines) == 4 * len(methods)  # and three seeds each
        assert [line.get_label() for line in means] == [f"{method} (3)" for method in methods]
        [legend] = panel.figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [f"{method} (3)" for method in methods]
        for line, band, method in zip(means, axes.collections, methods, strict=True):
            expected = naive_mean([sweep / f"{task}-{method}-{seed}" for seed in (1, 2, 3)], measure.column)
            x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
            np.testing.assert_allclose(x, [frames / 1e3 for frames, _, _ in expected])
            np.testing.assert_allclose(y, [mean for _, mean, _ in expected], rtol=1e-6)
            edges = np.asarray(band.get_paths()[0].vertices, float)
            for frames, mean, deviation in expected:
                for end in (mean - deviation, mean + deviation):
                    assert np.isclose(edges, (frames / 1e3, end), rtol=1e-5).all(1).any()
            assert f"{method} ends at {y[-1]:.3g}" in panel.alt


def test_wall_time_is_an_axis_of_its_own(sweep: Path) -> None:
    runs = [run for run in read_runs([sweep]) if run.task == "Empty-5x5"]
    with styled():
        [panel] = curves.draw(runs, curves.RETURN, numbers=curves.numbered(runs), against="seconds")
    [axes] = panel.figure.axes
    seconds = float(rows_of(runs[0].folder)[-1]["seconds"])
    assert axes.lines[0].get_xdata()[-1] == pytest.approx(seconds)  # type: ignore[index]
    assert axes.get_xlabel() == "seconds of training"


def test_interquartile_means_of_a_sweep(sweep: Path) -> None:
    runs = read_runs([sweep])
    found = results.aggregate(runs)
    for method, estimate in found.items():
        ours = [run for run in runs if run.label == method]
        scores = [run.evaluation.success if run.evaluation else last(run.folder, "success") for run in ours]
        middle = sorted(scores)[1:-1]  # a quarter of six, rounded down, at each end
        assert estimate.value == pytest.approx(statistics.fmean(middle))
        assert estimate.low <= estimate.value <= estimate.high
    with styled():
        panel = results.draw_aggregate(runs, curves.numbered(runs))
    assert panel is not None
    [axes] = panel.figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["leco", "no-int"]
    assert [line.get_xdata()[0] for line in axes.lines] == [each.value for each in found.values()]  # type: ignore[index]


def test_a_varied_setting_is_part_of_the_name_and_an_ablation(tmp_path: Path) -> None:
    for value in (0.25, 0.5, 0.0):
        for seed in (1, 2, 3):
            settings = {"training.lambda": value, "learner.keep_checkpoints": seed}
            make_run(tmp_path / f"{value}-{seed}", seed=seed, settings=settings, recordings=0, lines=3 + int(8 * value))
    runs = read_runs([tmp_path])
    assert {run.label for run in runs} == {"leco, lambda 0", "leco, lambda 0.25", "leco, lambda 0.5"}
    with styled():
        [panel] = results.draw_ablations(runs)
    [axes] = panel.figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.25", "0.5"]
    expected = [statistics.fmean(last(tmp_path / f"{v}-{s}", "success") for s in (1, 2, 3)) for v in (0.0, 0.25, 0.5)]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), expected)  # type: ignore[arg-type]
    assert panel.name == "ablation-leco-training.lambda"


def test_the_papers_comparisons_are_made_of_what_is_there(tmp_path: Path) -> None:
    for method in ("leco", "vq-only", "no-int", "noveld", "leco-naive"):
        make_run(tmp_path / method, method=method, recordings=0)
    found = {title: [run.method for run in runs] for title, runs in results.comparisons(read_runs([tmp_path]))}
    assert found == {
        "LECO and its variations": ["leco", "no-int", "vq-only"],
        "LECO and other methods": ["leco", "no-int", "noveld"],
        "LECO and its naive form": ["leco", "leco-naive"],
    }
    few = read_runs([tmp_path / "leco", tmp_path / "no-int"])
    assert results.comparisons(few) == []


def test_every_figure_is_a_png_and_an_svg(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.main([str(sweep / "Empty-5x5-leco-1"), f"--out={tmp_path}", "--title=A & B"])
    out = capsys.readouterr().out
    names = sorted(path.stem for path in (tmp_path / "figures").glob("*.png"))
    assert out.splitlines()[-1] == f"1 run, {len(names)} figures: {tmp_path / 'index.html'}"
    assert names == sorted(path.stem for path in (tmp_path / "figures").glob("*.svg"))
    kinds = ["success", "return", "r_ep", "r_ta", "r_i", "visits", "actions", "gallery", "new-codes", "codebook"]
    kinds += ["new_code_share", "frames_per_second", "policy_lag"]
    assert {next((kind for kind in kinds if name.startswith(f"{kind}-")), name) for name in names} == set(kinds)
    for path in (tmp_path / "figures").glob("*.png"):
        with Image.open(path) as picture:
            picture.verify()
    page = (tmp_path / "index.html").read_text()
    assert "<title>A &amp; B</title>" in page
    assert "A Processor" in page
    assert "24 GB" in page
    assert "leco train --task Empty-5x5" in page


def test_what_is_missing_is_said_and_the_rest_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = make_run(tmp_path / "runs" / "whole")
    no_config = make_run(tmp_path / "runs" / "no-config", seed=2)
    (no_config / "config.toml").unlink()
    cut = make_run(tmp_path / "runs" / "cut", seed=3)
    text = (cut / "metrics.csv").read_text()
    (cut / "metrics.csv").write_text(text[: len(text) - 70])  # in the middle of a line
    damaged = make_run(tmp_path / "runs" / "damaged", seed=4)
    (damaged / "versions.json").write_text("[{")
    (damaged / "config.toml").write_text("frames = 'many'")
    first = min((damaged / "recordings").iterdir())
    first.write_bytes(first.read_bytes()[:100])
    (damaged / "evaluation.json").write_text("{}")
    fresh = tmp_path / "runs" / "fresh"
    fresh.mkdir()
    (fresh / "requested.toml").write_text((whole / "config.toml").read_text())
    strange = make_run(tmp_path / "runs" / "strange", seed=5, recordings=0)
    (strange / "metrics.csv").write_text("frames,success,return\n100,0.5,\nx,0.5,0.5\n200,nan,0.25\n300,0.75,inf\n")
    report.main([str(tmp_path / "runs"), f"--out={tmp_path / 'out'}"])
    out = capsys.readouterr().out
    assert "no-config: there is no config.toml" in out
    assert "damaged: config.toml cannot be used: " in out
    assert "damaged: evaluation.json is damaged" in out
    assert "damaged: recordings/000000300-seed0.npz is no recording of leco, or is damaged" in out
    assert "damaged: there is no usable versions.json" in out
    assert "fresh: there is no metrics.csv: no curves" in out
    assert "strange: it has not been evaluated: `leco eval` plays fresh episodes" in out
    assert not [line for line in out.splitlines() if line.startswith("whole")]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Not everything was there; the rest is drawn." in page
    runs = {run.name: run for run in read_runs([tmp_path / "runs"])}
    assert len(runs["cut"].columns["frames"]) == 11  # of 12 lines
    assert runs["strange"].columns["frames"].tolist() == [100, 200, 300]
    assert (runs["strange"].last("success"), runs["strange"].last("return")) == (0.75, 0.25)
    assert len(runs["damaged"].recordings) == 1
    assert (runs["no-config"].task, runs["no-config"].method) == ("unknown task", "no-config")
    assert (tmp_path / "out" / "figures" / "success-frames-Empty-5x5.png").exists()
    assert "leco: its 3 seeds have no frames in common yet." in page  # whole, cut and strange


def test_nothing_to_report_on_is_an_error_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ReportError, match="is no run and has none in it: `leco train` and `leco sweep` make them"):
        read_runs([tmp_path])
    with pytest.raises(SystemExit):
        report.main([str(tmp_path / "nowhere"), f"--out={tmp_path}"])
    assert capsys.readouterr().err == f"leco report: there is no folder {tmp_path / 'nowhere'}\n"
    assert COMMANDS["report"][0] == "leco.cli.report"


def test_a_run_that_is_named_twice_is_shown_once(sweep: Path) -> None:
    assert len(read_runs([sweep, sweep / "Empty-5x5-leco-1"])) == 12


def naive_cells(episodes: Sequence[Any], values: str) -> dict[tuple[int, int], list[float]]:
    found: dict[tuple[int, int], list[float]] = {}
    for each in episodes:
        for t, value in enumerate(getattr(each, values)):
            found.setdefault((int(each.x_T[t + 1]), int(each.y_T[t + 1])), []).append(float(value))
    return found


def test_cells_of_maps_are_those_of_the_recording() -> None:
    episodes = [episode(1, 30), episode(2, 20)]
    for what, values in (("r_ep", "r_ep_T"), ("r_ta", "r_ta_T")):
        mean = maps._mean(episodes, what)
        expected = naive_cells(episodes, values)
        assert {(int(x), int(y)) for x, y in np.argwhere(np.isfinite(mean))} == set(expected)
        for (x, y), found in expected.items():
            assert mean[x, y] == pytest.approx(statistics.fmean(found))
    visits = maps._mean(episodes, "visits")
    assert np.nansum(visits) == pytest.approx((31 + 21) / 2)
    toggles = maps.action_counts(episodes, 5, (5, 4))
    expected_toggles = Counter(
        (int(x), int(y))
        for each in episodes
        for x, y, a in zip(each.x_T, each.y_T, each.action_T, strict=False)
        if a == 5
    )
    assert {(int(x), int(y)): int(toggles[x, y]) for x, y in np.argwhere(toggles)} == dict(expected_toggles)


def test_maps_are_of_levels_that_every_checkpoint_played() -> None:
    one = Recording(metadata(updates=1), tuple(episode(n, 5, level=n) for n in range(4)))
    other = Recording(metadata(updates=2, frames=2_000_000), tuple(episode(n, 5, level=n) for n in range(1, 3)))
    found = maps.places([one, other])
    assert [place.name for place in found] == ["all 4 episodes", "level 1", "level 2"]
    assert [each.level for each in found[1].episodes["after 2 M frames"]] == [1]
    moved = episode(9, 5, level=9)
    walls = moved.grid_GXY.copy()
    walls[0, 2, 2] = (2, 5, 0)
    third = Recording(metadata(updates=3, frames=3_000_000), (moved._replace(grid_GXY=walls), *other.episodes))
    assert [place.name for place in maps.places([one, third])] == ["level 1", "level 2"]
    assert maps.places([]) == []


def test_drawers_hold_what_fell_into_them() -> None:
    one = episode(5, 40)
    found = gallery.drawers(one)
    times = Counter(bytes(code) for code in one.code_TW)
    assert [len(each.when) for each in found] == sorted(times.values(), reverse=True)
    for each in found:
        assert each.when == [t for t, code in enumerate(one.code_TW) if bytes(code) == each.code]
        views = Counter(bytes(o) for o, c in zip(one.observation_TO, one.code_TW, strict=True) if bytes(c) == each.code)
        assert {bytes(seen): n for seen, n in each.observations} == dict(views)
    assert gallery.new_code_rate(one) == pytest.approx(sum(n == 1 for n in one.count_T[1:]) / 40)


def test_the_map_of_a_code_marks_where_it_was_seen_and_nothing_else() -> None:
    one = episode(5, 40)
    first = one.grid(0)
    assert first is not None
    side = 60
    plain, marked = gallery.draw_places(one, [], side), gallery.draw_places(one, [3, 7, 3], side)
    assert plain is not None
    assert marked is not None
    assert plain.shape == marked.shape == (side, side, 3)
    columns, rows = window(first)
    width, height = columns.stop - columns.start, rows.stop - rows.start
    tile = side // max(width, height)
    changed = np.argwhere((plain != marked).any(2)) - [(side - height * tile) // 2, (side - width * tile) // 2]
    cells = {(int(x) + columns.start, int(y) + rows.start) for y, x in changed // tile}
    assert cells == {(int(one.x_T[t]), int(one.y_T[t])) for t in (3, 7)}
    assert gallery.draw_places(one._replace(scene_T=np.full_like(one.scene_T, -1)), [3], side) is None


def test_the_use_of_a_codebook_by_hand() -> None:
    made = episode(0, 3, width=2)._replace(code_TW=np.array([[0, 1], [0, 1], [2, 2], [0, 1]], np.uint8))
    made = made._replace(count_T=np.array([1, 2, 1, 3], np.uint32))
    use = gallery.use_of(Recording(metadata(), (made,)), 4)
    assert use is not None
    assert use.index_K.tolist() == [3 / 8, 3 / 8, 2 / 8, 0]
    assert use.perplexity == pytest.approx(math.exp(-2 * 3 / 8 * math.log(3 / 8) - 2 / 8 * math.log(2 / 8)))
    assert [use.new, use.distinct] == pytest.approx([1 / 3, 2])
    assert gallery.use_of(recording(3), None) is not None
    nothing = Recording(metadata(), (episode(0, 3, width=0),))
    assert gallery.use_of(nothing, 8) is None


def test_lines_can_be_told_apart_without_colours() -> None:
    styles = [(colour(n), str(dash(n))) for n in range(24)]
    assert len(set(styles)) == 24
    assert all(dash(n) != dash(n + 1) for n in range(24))
    grey = [int(c[1:3], 16) * 0.299 + int(c[3:5], 16) * 0.587 + int(c[5:], 16) * 0.114 for c in COLOURS]
    assert all(60 < each < 190 for each in grey), "visible on white and on black"


def test_names_of_runs_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)<!-- & \"' `x`"
    run = make_run(tmp_path / "runs" / evil.replace("/", ""))
    (run / "config.toml").unlink()  # then the folder's name is its label
    report.main([str(tmp_path / "runs"), f"--out={tmp_path / 'out'}"])
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert all(re.fullmatch(r"[A-Za-z0-9._=+-]+", path.name) for path in (tmp_path / "out" / "figures").iterdir())


def test_greedy_recordings_are_not_compared_with_others(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recordings=1)
    greedy = Recording(dataclasses.replace(metadata(updates=900), greedy=True), (episode(0, 5),))
    write_recording(run / "recordings" / "000000900-seed0-greedy.npz", greedy)
    [found] = read_runs([run])
    assert found.evaluation is not None
    assert found.evaluation.updates == 300
    assert [each.metadata.updates for each in maps.comparable(found)] == [300]
