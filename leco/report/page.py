"""The report: one page with everything in it, beside the figures as files and the numbers as JSON.

index.html     opens from disk, asks the network for nothing and runs no script
figures/       each figure as PNG and SVG
results.json   the numbers of the table
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from leco.checkpoint.atomic_file import atomic_write
from leco.methods.table import METHODS, Hash
from leco.models.kinds.table import find_kind
from leco.report import curves, gallery, maps, results
from leco.report.runs import find_known
from leco.report.style import save, styled
from leco.report.template import page_template

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leco.report.results import Row
    from leco.report.runs import Run
    from leco.report.style import Panel

MAPPED = 8  # runs with maps and galleries at most: the first of each label, in the order of the table
FOLDER = "figures"


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure in the page."""

    name: str
    title: str
    alt: str
    svg: Markup


@dataclass(slots=True)
class Choice:
    """Figures that are shown together, when they are chosen."""

    name: str
    shown: list[Shown]


@dataclass(slots=True)
class Section:
    """A part of the page: figures, or choices of them; `text` says what there is to see."""

    id: str
    title: str
    text: str
    shown: list[Shown] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to see."""
        return not self.shown and not any(choice.shown for choice in self.choices)


def write_report(runs: Sequence[Run], out: Path, *, title: str, commands: Sequence[str] = ()) -> list[str]:
    """Writes the page, the figures and the numbers.

    Args:
        runs: What is reported on.
        out: A folder; it is made if it is not there.
        title: Of the page.
        commands: That made the runs, where they are known beside what the runs themselves say.

    Returns:
        The names of the figures.
    """
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    with styled():
        drawing = _Drawing(out / FOLDER)
        sections = [
            *_curves(runs, drawing),
            _intrinsic(runs, drawing),
            _maps(runs, drawing),
            _codes(runs, drawing),
            _speed(runs, drawing),
        ]
        aggregated = drawing.all([results.draw_aggregate(runs, curves.numbered(runs))])
    rows = results.table(runs)
    page = page_template().render(
        title=title,
        runs=runs,
        rows=rows,
        aggregated=aggregated,
        sections=[section for section in sections if not section.empty],
        made_by=_made_by(runs),
        commands=list(dict.fromkeys([*commands, *(c for run in runs for c in _commands(run))])),
        version=metadata.version("leco"),
        figures=drawing.names,
        folder=FOLDER,
    )
    atomic_write(out / "index.html", page.encode())
    atomic_write(out / "results.json", (json.dumps([_plain(row) for row in rows], indent=1) + "\n").encode())
    return drawing.names


class _Drawing:
    """Saves figures, and lets go of each at once: a hundred of them would take much memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: list[str] = []

    def all(self, panels: Sequence[Panel | None]) -> list[Shown]:
        shown = []
        for panel in panels:
            if panel is not None:
                svg = Markup(save(panel, self._folder))  # noqa: S704  # by matplotlib, which escapes what it is told
                shown.append(Shown(panel.name, panel.title, panel.alt, svg))
                self.names.append(panel.name)
        return shown


def _curves(runs: Sequence[Run], drawing: _Drawing) -> list[Section]:
    numbers = curves.numbered(runs)
    band = "Lines are means over seeds (their number in brackets), bands one standard deviation."
    learning = Section("learning", "Learning curves", f"Of the last 100 episodes of training. {band}")
    for against, axis in (("frames", "over frames"), ("seconds", "over wall time")):
        both = [curves.draw(runs, each, numbers=numbers, against=against) for each in (curves.SUCCESS, curves.RETURN)]
        learning.choices.append(Choice(axis, drawing.all([panel for panels in both for panel in panels])))
    compared = Section(
        "comparisons", "The paper's comparisons", f"The same runs, as its figures 3 to 6 group them. {band}"
    )
    for title, ours in results.comparisons(runs):
        name = title.lower().replace(" ", "-")
        panels = curves.draw(ours, curves.RETURN, numbers=numbers, name=name)
        compared.choices.append(Choice(title, drawing.all(panels)))
    varied = Section("ablations", "What a setting changes", "The score at the end, with 95 % intervals over seeds.")
    varied.shown = drawing.all(results.draw_ablations(runs))
    return [learning, compared, varied]


def _intrinsic(runs: Sequence[Run], drawing: _Drawing) -> Section:
    numbers = curves.numbered(runs)
    text = (
        "r_ep is what was new in its episode, r_ta what the modulator makes of it, and r_i = (1 - lambda) r_ep + lambda r_ta is "
        "what is added to the task's reward, times alpha."
    )
    section = Section("intrinsic", "The intrinsic reward over training", text)
    for measure in (curves.R_I, curves.R_EP, curves.R_TA):
        section.shown += drawing.all(curves.draw(runs, measure, numbers=numbers))
    return section


def _maps(runs: Sequence[Run], drawing: _Drawing) -> Section:
    text = (
        "Recorded by `leco eval`, drawn on the level as MiniGrid draws it, for each checkpoint that was recorded. Visits and "
        "actions are where the agent stood; rewards are those of the actions that led to a cell."
    )
    section = Section("maps", "Where it went, and what for", text)
    tasks = len({run.task for run in runs})
    for run in list(gallery.first_recorded(runs).values())[:MAPPED]:
        for place in maps.places(maps.comparable(run)):
            named = ", ".join([run.label, *([run.task] if tasks > 1 else []), place.name])
            section.choices.append(Choice(named, drawing.all(maps.draw(run, place))))
    return section


def _codes(runs: Sequence[Run], drawing: _Drawing) -> Section:
    section = Section("codes", "Codes", "")
    numbers = curves.numbered(runs)
    uses: dict[str, dict[str, gallery.Use]] = {}
    galleries: list[Shown] = []
    mapped = False
    for (task, label), run in gallery.first_recorded(runs).items():
        newest = run.newest()
        use = gallery.use_of(newest, _codebook(run)) if newest is not None else None
        if newest is not None and use is not None:
            uses.setdefault(task, {})[label] = use
            if len(galleries) < MAPPED:
                galleries += drawing.all([gallery.draw_gallery(run, newest)])
                mapped |= newest.episodes[0].grid_GXY.size > 0
    rows = (
        "the cells in which the agent saw it, on a map of the level as it was at first, and the observations that fell into it, "
        "as the agent saw them: it stands at the bottom and looks up"
        if mapped
        else "the observations that fell into it"
    )
    section.text = (
        f"Each row is a code of one episode: {rows}. New-hash rates and the use of the codebook are of all recorded episodes of "
        "the newest checkpoint."
    )
    rates = [shown for task in uses for shown in drawing.all(gallery.draw_use(uses[task], numbers, task=task))]
    over_training = drawing.all(curves.draw(runs, curves.NEW_CODES, numbers=numbers))
    section.choices = [
        Choice("observations of each code", galleries),
        Choice("new-hash rate and codebook", rates),
        Choice("new codes over training", over_training),
    ]
    section.choices = [choice for choice in section.choices if choice.shown]
    return section


def _codebook(run: Run) -> int | None:
    """K of a run with a VQ hash."""
    method = METHODS.get(run.method)
    if run.experiment is None or method is None or method.hash is not Hash.VQ:
        return None
    task = find_known(run.task)
    return run.experiment.hash.codebook_size or (find_kind(task.layout).codebook_size if task else None)


def _speed(runs: Sequence[Run], drawing: _Drawing) -> Section:
    numbers = curves.numbered(runs)
    text = "How fast the learner was, and how many versions old the parameters were that had acted."
    section = Section("speed", "Throughput and lag", text)
    for measure in (curves.SPEED, curves.LAG):
        section.shown += drawing.all(curves.draw(runs, measure, numbers=numbers))
    return section


def _commands(run: Run) -> list[str]:
    return [str(start["command"]) for start in run.starts if start.get("command")]


def _made_by(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Versions and hardware, each combination once, with the runs that it trained."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        for start in run.starts:
            same = {key: value for key, value in start.items() if key not in ("started", "command")}
            entry = found.setdefault(json.dumps(same, sort_keys=True), {"facts": same, "runs": []})
            if run.name not in entry["runs"]:
                entry["runs"].append(run.name)
    return list(found.values())


def _plain(row: Row) -> dict[str, Any]:
    """For JSON, which has no nan."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

    return {key: plain(value) for key, value in asdict(row).items()}
