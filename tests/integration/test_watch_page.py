"""The page of `leco watch` in a real browser, over a run that stands still, one that is written to, and one that trains."""

from __future__ import annotations

import csv
import math
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, Page, expect

from leco.cli import zoo
from services.learner.metrics_logger import COLUMNS, MetricsLogger
from support.browser import DESKTOP, PHONE, open_browser, visit
from support.paths import ROOT
from support.waiting import PATIENCE, until
from support.watch_process import TASK, WatchProcess, checkpoint, settings
from support.zoo_case import saved_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CURVES = ROOT / "docs" / "results" / "keycorridor_s3r3_leco_seed1.csv"  # of a real run
PANELS = {
    "return": ["return"],
    "success": ["success"],
    "intrinsic": ["r_ep", "r_ta", "r_i"],
    "codes": ["new_code_share", "distinct_share"],
    "entropy": ["entropy"],
    "losses": ["policy_gradient_loss", "value_loss"],
    "intrinsic-losses": ["hash_loss", "extrinsic_value_loss"],
    "gradient": ["gradient_norm"],
    "length": ["length"],
    "speed": ["frames_per_second"],
    "lag": ["policy_lag"],
}
expect.set_options(timeout=1000 * PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The curves of a real run, and networks to play an episode with."""
    folder = tmp_path_factory.mktemp("runs") / "a-run"
    folder.mkdir()
    (folder / "config.toml").write_text(settings())
    (folder / "metrics.csv").write_bytes(CURVES.read_bytes())
    checkpoint(folder, 700)
    return folder


@pytest.fixture(scope="module")
def watching(run: Path) -> Iterator[WatchProcess]:
    with WatchProcess(run) as process:
        yield process


def rows(path: Path = CURVES) -> list[dict[str, float]]:
    """The file, read by Python's own means."""
    with path.open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def pointed(page: Page, panel: str) -> dict[str, float]:
    """What a curve says of the point that the cursor is at, by the name of the line; and the frames."""
    text = page.locator(f"#curve-{panel} .plot").get_attribute("aria-valuetext") or ""
    at, _, said = text.removeprefix("at ").partition(" frames: ")
    found = {name: float(value) for name, _, value in (each.rpartition(" ") for each in said.split(", "))}
    return {"frames": float(at.replace(",", "")), **found}


def until_frames(page: Page, frames: float) -> None:
    """Waits until the newest point is at so many frames."""
    plot = page.locator("#curve-return .plot")
    expect(plot).to_have_attribute("aria-valuetext", re.compile(rf"^at {frames:,.0f} frames: "))


@pytest.mark.parametrize(("width", "dark"), [(DESKTOP, False), (DESKTOP, True), (PHONE, False), (PHONE, True)])
def test_it_opens_without_errors_asks_nobody_else_and_fits(
    browser: Browser, watching: WatchProcess, width: int, dark: bool
) -> None:
    with visit(browser, watching.url, width=width, dark=dark) as seen:
        expect(seen.page.locator("#curves figure")).to_have_count(len(PANELS))
        expect(seen.page.locator("#stage")).to_be_visible()
        seen.page.locator("#numbers summary").click()
        expect(seen.page.locator("#table tbody tr")).to_have_count(20)
        assert seen.fits
        assert all(url.startswith(watching.url) for url in seen.requests)
        light = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (light == "rgb(15, 21, 27)") == dark
        assert seen.clean, (seen.errors, seen.failed)


def test_the_curves_have_the_lines_labels_and_numbers_of_metrics_csv(browser: Browser, watching: WatchProcess) -> None:
    with visit(browser, watching.url) as seen:
        page = seen.page
        expect(page.locator("#curves figure")).to_have_count(len(PANELS))
        for panel, names in PANELS.items():
            labels = page.locator(f"#curve-{panel} .legend li").all_inner_texts()
            assert [label.split()[0] for label in labels] == names
            assert page.locator(f"#curve-{panel} canvas").count() == 1
            assert lines_drawn(page, panel) == len(names)
        for panel in ("return", "intrinsic", "losses"):
            page.locator(f"#curve-{panel} .plot").focus()
            page.keyboard.press("Home")
            for index, row in enumerate(rows()):
                found = pointed(page, panel)
                assert found["frames"] == row["frames"]
                for name in PANELS[panel]:
                    # As many digits as the page shows.
                    assert found[name] == pytest.approx(row[name], rel=5e-3 if abs(row[name]) < 1e-3 else 5e-4), index
                page.keyboard.press("ArrowRight")
        last = rows()[-1]
        tiles = dict(
            zip(page.locator("#tiles dt").all_inner_texts(), page.locator("#tiles dd").all_inner_texts(), strict=True)
        )
        assert float(tiles["return"]) == pytest.approx(last["return"], rel=1e-2)
        assert tiles["success"] == f"{100 * last['success']:.0f} %"
        assert tiles["episodes"] == f"{last['episodes']:,.0f}"
        share = last["frames"] / 10_000_000
        assert page.locator("#progress").evaluate("bar => bar.value") == pytest.approx(share)
        expect(page.locator("#progress-text")).to_contain_text(
            f"{last['frames']:,.0f} of 10,000,000 frames, {100 * share:.0f} %"
        )


def lines_drawn(page: Page, panel: str) -> int:
    """How many of the panel's colours are on its canvas."""
    return int(
        page.evaluate(
            """panel => {
                const canvas = document.querySelector(`#curve-${panel} canvas`);
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                const style = getComputedStyle(document.documentElement);
                const hex = [1, 2, 3, 4, 5].map((n) => style.getPropertyValue(`--line-${n}`).trim());
                const wanted = hex.map((each) => [1, 3, 5].map((at) => parseInt(each.slice(at, at + 2), 16)));
                const there = wanted.map(([r, g, b]) => {
                    for (let i = 0; i < data.length; i += 4)
                        if (data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255) return true;
                    return false;
                });
                return there.filter(Boolean).length;
            }""",
            panel,
        )
    )


def test_curves_by_keyboard(browser: Browser, watching: WatchProcess) -> None:
    every = rows()
    with visit(browser, watching.url) as seen:
        page = seen.page
        plot = page.locator("#curve-return .plot")
        expect(plot).to_be_visible()
        assert pointed(page, "return")["frames"] == every[-1]["frames"]  # nobody points: the newest
        plot.focus()
        page.keyboard.press("ArrowLeft")
        assert pointed(page, "return")["frames"] == every[-2]["frames"]
        # All panels point at the same frames.
        assert pointed(page, "entropy")["frames"] == every[-2]["frames"]
        page.keyboard.press("Home")
        assert pointed(page, "return")["frames"] == every[0]["frames"]
        page.keyboard.press("Escape")
        assert pointed(page, "return")["frames"] == every[-1]["frames"]
        page.locator("#axis").focus()
        page.keyboard.press("ArrowDown")
        expect(plot).to_have_attribute("aria-valuetext", re.compile(r"^at \d+:\d\d:\d\d of training: "))
        page.locator("#range").focus()
        page.keyboard.press("ArrowDown")
        plot.focus()
        page.keyboard.press("Home")
        quarter = [row for row in every if row["seconds"] >= 0.75 * every[-1]["seconds"]]
        assert plot.get_attribute("aria-valuemax") == str(len(quarter) - 1)
        # The whole page can be walked with the tab key alone.
        page.locator("body").press("Tab")
        walked = set()
        for _ in range(45):
            walked.add(page.evaluate("document.activeElement.id || document.activeElement.closest('figure')?.id || ''"))
            page.keyboard.press("Tab")
        assert {"another", "play", "step", "speed", "axis", "range", "curve-return", "curve-lag"} <= walked


def test_the_latest_episode_step_by_step(browser: Browser, watching: WatchProcess) -> None:
    with visit(browser, watching.url) as seen:
        page = seen.page
        expect(page.locator("#stage")).to_be_visible()
        text, picture = page.locator("#step-text"), page.locator("#picture")
        page.locator("#first").click()
        expect(text).to_contain_text("step 0 of ")
        steps = int(page.locator("#step").get_attribute("max") or 0)
        assert 1 <= steps <= 125
        page.locator("#step").focus()
        counts: dict[str, int] = {}
        pictures = set()
        for step in range(steps + 1):
            expect(text).to_contain_text(f"step {step} of {steps}")
            expect(picture).to_have_js_property("complete", True)
            assert picture.evaluate("image => image.naturalWidth") > 100
            pictures.add(picture.get_attribute("src"))
            assert f"after {step} of {steps} actions; the agent is at column " in (picture.get_attribute("alt") or "")
            # The code of this moment is marked, and its count is how often it has come so far.
            now = page.locator("#codes tr.now")
            code, count = now.locator("code").get_attribute("title") or "", int(now.locator(".number").inner_text())
            counts[code] = counts.get(code, 0) + 1
            assert count == counts[code]
            assert f"code seen {count} time" in text.inner_text()
            assert page.locator("#codes tbody tr:visible").count() == len(counts)
            if step:  # r_ep of the action that led here, by the paper's equation 1
                shown = float(page.locator("#now-r_ep").inner_text())
                assert shown == pytest.approx(1 / math.sqrt(count), abs=1e-3)
            page.keyboard.press("ArrowRight")
        assert 1 < len(pictures) <= steps + 1
        assert page.locator("#codes-sum").inner_text() == f"{len(counts)} in {steps + 1} observations"
        page.keyboard.press("Home")
        expect(text).to_contain_text("step 0 of ")
        page.keyboard.press(" ")
        expect(page.locator("#play")).to_have_attribute("aria-label", "pause")
        expect(text).not_to_contain_text("step 0 of ")
        page.keyboard.press(" ")
        expect(page.locator("#play")).to_have_attribute("aria-label", "play")
        page.locator("#play").focus()
        page.keyboard.press("End")
        expect(text).to_contain_text(f"step {steps} of {steps}")
        assert seen.clean, (seen.errors, seen.failed)


def test_another_level_can_be_played_and_does_not_take_the_place_of_a_step_that_is_looked_at(
    browser: Browser, watching: WatchProcess
) -> None:
    with visit(browser, watching.url) as seen:
        page = seen.page
        expect(page.locator("#stage")).to_be_visible()
        page.locator("#first").click()
        page.locator("#forward").click()
        before = page.locator("#picture").get_attribute("src") or ""
        page.locator("#another").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#newest")).to_be_visible()
        expect(page.locator("#step-text")).to_contain_text("step 1 of ")
        assert page.locator("#picture").get_attribute("src") == before
        page.locator("#newest").click()
        expect(page.locator("#newest")).to_be_hidden()
        assert (page.locator("#picture").get_attribute("src") or "").split("/")[-2] != before.split("/")[-2]


def test_nothing_moves_by_itself_for_people_who_want_that(browser: Browser, watching: WatchProcess) -> None:
    with visit(browser, watching.url) as seen:
        expect(seen.page.locator("#play")).to_have_attribute("aria-label", "pause")  # it plays by itself
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    page.goto(watching.url)
    expect(page.locator("#stage")).to_be_visible()
    page.wait_for_timeout(1000)
    expect(page.locator("#play")).to_have_attribute("aria-label", "play")
    expect(page.locator("#step-text")).to_contain_text("step 0 of ")
    context.close()


def line(update: int) -> dict[str, float]:
    return {"frames": 1536 * update, "updates": update, "seconds": float(update), "return": update / 100, "r_ep": 0.5}


def test_a_run_that_begins_goes_on_in_half_lines_is_resumed_and_fails(browser: Browser, tmp_path: Path) -> None:
    tmp_path /= "<img src=x onerror=alert()>"  # a name is text, whatever it looks like
    tmp_path.mkdir()
    with WatchProcess(tmp_path) as process, visit(browser, process.url) as seen:
        page = seen.page
        expect(page.locator("#run")).to_have_text(tmp_path.name)
        expect(page.locator("#phase")).to_have_text("not begun")
        expect(page.locator("#notice")).to_contain_text("The run has not begun: its folder has no config.toml yet")
        (tmp_path / "config.toml").write_text(settings(frames=153_600))
        expect(page.locator("#notice")).to_contain_text("No line of metrics.csv yet")
        expect(page.locator("#player-text")).to_contain_text("No checkpoint yet")
        metrics_logger = MetricsLogger(tmp_path, 0)
        for update in range(1, 11):
            metrics_logger.write(line(update))
        until_frames(page, 15_360)
        expect(page.locator("#phase")).to_have_text("training")
        expect(page.locator("#progress-text")).to_contain_text("15,360 of 153,600 frames, 10 % · about 0:01:30 left")
        expect(page).to_have_title(f"10 % · {tmp_path.name} · leco watch")
        metrics_logger.close()
        with (tmp_path / "metrics.csv").open("a") as file:
            file.write("16896,11,11,,,0.")
            file.flush()
            page.wait_for_timeout(2500)
            assert pointed(page, "return") == {"frames": 15_360, "return": 0.1}
            file.write("55" + "," * (len(COLUMNS) - 6) + "\n")
        until_frames(page, 16_896)
        assert pointed(page, "return")["return"] == 0.55
        metrics_logger = MetricsLogger(tmp_path, 4)  # resumed from the checkpoint after the fourth update
        until_frames(page, 6144)
        assert page.locator("#curve-return .plot").get_attribute("aria-valuemax") == "3"
        metrics_logger.write(line(5) | {"value_loss": math.nan})
        until_frames(page, 7680)
        expect(page.locator("#notice")).to_contain_text("Not a finite number any more: value_loss")
        metrics_logger.close()
        assert seen.clean, (seen.errors, seen.failed)


def test_a_long_run_is_shown_in_means_and_its_last_point_grows(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings())
    path = tmp_path / "metrics.csv"
    path.write_text("frames,seconds,return\n" + "".join(f"{100 * n},{n},{n % 4}\n" for n in range(1, 3003)))
    with WatchProcess(tmp_path) as process, visit(browser, process.url) as seen:
        plot = seen.page.locator("#curve-return .plot")
        until_frames(seen.page, 300_200)
        expect(seen.page.locator("#stride")).to_contain_text("each point is the mean of 4 lines")
        assert plot.get_attribute("aria-valuemax") == "750"  # 3002 lines, the last point of two
        assert pointed(seen.page, "return")["return"] == 1.5  # of 1 and 2
        with path.open("a") as file:
            file.write("300300,3003,3\n")
        until_frames(seen.page, 300_300)
        assert plot.get_attribute("aria-valuemax") == "750"
        assert pointed(seen.page, "return")["return"] == 2
        plot.focus()
        seen.page.keyboard.press("ArrowLeft")
        assert pointed(seen.page, "return") == {"frames": 300_000, "return": 1.5}  # of 1, 2, 3 and 0
        assert seen.clean, (seen.errors, seen.failed)


def test_a_server_that_was_stopped_is_noticed_and_the_page_finds_it_again(browser: Browser, run: Path) -> None:
    with WatchProcess(run) as process:
        port = process.port
        with visit(browser, process.url) as seen:
            page = seen.page
            expect(page.locator("#curves figure")).to_have_count(len(PANELS))
            process.stop(signal.SIGINT)
            expect(page.locator("#lost")).to_contain_text("leco watch does not answer")
            expect(page.locator("#phase")).to_have_text("not connected")
            assert page.locator("#curves figure").count() == len(PANELS)  # what was there stays
            with WatchProcess(run, f"--port={port}"):
                expect(page.locator("#lost")).to_be_hidden()
                expect(page.locator("#phase")).not_to_have_text("not connected")


def test_a_page_that_nobody_sees_does_not_listen(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings())
    metrics_logger = MetricsLogger(tmp_path, 0)
    metrics_logger.write(line(1))
    hide = """hidden => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with WatchProcess(tmp_path) as process, visit(browser, process.url) as seen:
        until_frames(seen.page, 1536)
        seen.page.evaluate(hide, True)
        metrics_logger.write(line(2))
        seen.page.wait_for_timeout(2500)
        assert pointed(seen.page, "return")["frames"] == 1536
        seen.page.evaluate(hide, False)
        until_frames(seen.page, 3072)
    metrics_logger.close()


def test_a_real_training_from_its_first_line_to_its_end(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    small = ("actors.unroll_length=16", "learner.batch_size=4", "learner.log_every=1", "learner.checkpoint_every=5")
    flags = [f"--task={TASK}", "--preset=paper", "--num-envs=4", "--threads=1", "--frames=2e6", f"--run-dir={folder}"]
    command = [sys.executable, "-P", "-m", "leco", "train", *flags, *(f"--set={each}" for each in small)]
    with WatchProcess(folder) as process, visit(browser, process.url) as seen:
        page = seen.page
        expect(page.locator("#phase")).to_have_text("not begun")
        train = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        try:
            expect(page.locator("#phase")).to_have_text("training")
            expect(page.locator("#what")).to_have_text(f"{TASK} · leco · seed 1")
            expect(page.locator("#curve-return .plot")).to_have_attribute("aria-valuetext", re.compile("^at "))
            first = pointed(page, "return")["frames"]
            expect(page.locator("#stage")).to_be_visible()  # an episode by a checkpoint that may be gone by now
            until(lambda: _waited(page) and pointed(page, "return")["frames"] >= first + 640)
            shown = pointed(page, "intrinsic")
            [same] = [row for row in rows(folder / "metrics.csv") if row["frames"] == shown["frames"]]
            assert shown["r_ep"] == pytest.approx(same["r_ep"], rel=5e-4)
            train.send_signal(signal.SIGINT)
            assert train.wait(PATIENCE) == 130
        finally:
            train.kill()
            train.wait()
        goal = int(rows(folder / "metrics.csv")[-1]["frames"])  # what it has: the run is over
        until_frames(page, goal)
        again = [*command[:-5], f"--frames={goal}", f"--run-dir={folder}", *command[-4:]]
        assert subprocess.run(again, stdout=subprocess.DEVNULL, timeout=PATIENCE, check=False).returncode == 0
        expect(page.locator("#phase")).to_have_text("finished")
        expect(page).to_have_title("finished · run · leco watch")
        assert seen.clean, (seen.errors, seen.failed)


def _waited(page: Page) -> bool:
    """Lets the page's own events through, which a plain sleep would not."""
    page.wait_for_timeout(200)
    return True


def test_an_entry_of_the_zoo_says_what_it_is_and_shows_what_it_knows(browser: Browser, tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", task=TASK, solved=97)
    zoo.main([f"--zoo={tmp_path / 'zoo'}", "add", str(run), "--name=entry"])
    with WatchProcess(tmp_path / "zoo" / "entry") as process, visit(browser, process.url) as seen:
        expect(seen.page.locator("#phase")).to_have_text("finished")
        expect(seen.page.locator("#notice")).to_contain_text("An entry of the zoo: a policy, its hash")
        expect(seen.page.locator("#notice")).to_contain_text("r_ta and r_i are not known")
        expect(seen.page.locator("#progress-text")).to_contain_text("50,000 of 50,000 frames, 100 %")
        expect(seen.page.locator("#stage")).to_be_visible()
        expect(seen.page.locator("#codes-part")).to_be_visible()
        expect(seen.page.locator("#rewards-legend li")).to_have_count(2)
        labels = seen.page.locator("#rewards-legend li").all_inner_texts()
        assert [label.split()[0] for label in labels] == ["r_ep", "r_e"]
        assert seen.clean, (seen.errors, seen.failed)
