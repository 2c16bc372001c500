# ruff: noqa: INP001 # a script beside what it writes
"""Writes docs/reference/hardware.md: what each task took and on what, from the zoo's entries.

python docs/derive_hardware.py           # writes it
python docs/derive_hardware.py --check   # fails if it is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leco.cli.progress import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/hardware.md"
BEFORE = """\
# Hardware and time

<!-- Written by docs/derive_hardware.py from the zoo; `make lint` checks that it is current. -->

What [the zoo's entries](../zoo.md) took, each with `leco train --task TASK`: one actor, the laptop
preset, no GPU. The columns say when 90 % of the last 100 episodes were solved, how long the whole
training was, and the share of 100 fresh levels that its end solves.

"""
AFTER = """
Frames are those of one seed; seconds are those of the machine. Other trainings and much else ran
beside these, up to twenty processes on the two processors, so that alone most of them take less:
compare the frames per second with those that `leco train` shows on yours.

**Processors.** Two are enough for MiniGrid: one plays, one learns. With more, an update has more
threads (`--threads`), and a learner that waits can have more actors (`--actors`). Pictures take much
more: in an hour in which rooms of [one's own](../how-to/use-your-own-environment.md) were trained at
2,200 frames a second, Montezuma's Revenge was at 60.

**Memory.** On MiniGrid the learner takes 0.7 GB, an actor 0.6 GB and the hash-count service 0.1 GB.

**Disk.** A run of 10 to 60 thousand frames took 13 to 17 MB, two of its recorded episodes included.

**A GPU** is not needed, and hardly pays on MiniGrid ([GPU](../gpu.md)).

**The paper's scale**, DeepMind Lab with 240 actors, asks for 250 processors, 500 GB of memory and a
GPU: [Kubernetes](../../deploy/k8s/README.md) has the numbers for each part.
"""


def page() -> str:
    """The page as it should be."""
    head = ("task", "frames to 90 %", "time to 90 %", "frames", "time", "frames/s", "solved", "processors", "memory")
    rows = [head, ("---",) * len(head), *_rows()]
    return BEFORE + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n" + AFTER


def _rows() -> Iterator[tuple[str, ...]]:
    for entry in sorted(each for each in (ROOT / "zoo").iterdir() if each.is_dir()):
        told: dict[str, Any] = json.loads((entry / "provenance.json").read_text())
        solved: float = json.loads((entry / "evaluation.json").read_text())["success"]
        start, learned = told["starts"][-1], told["learned"]
        yield (
            entry.name,
            f"{learned['frames']:,}",
            clock(learned["seconds"]),
            f"{told['frames']:,}",
            clock(told["seconds"]),
            f"{told['frames'] / told['seconds']:,.0f}",
            f"{100 * solved:.0f} %",
            f"{start['processors']} x {start['processor']}",
            f"{start['memory_bytes'] / 2**30:.0f} GB",
        )


def main() -> None:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description="Writes docs/reference/hardware.md.")
    parser.add_argument("--check", action="store_true", help="only say whether it is current")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run `python docs/derive_hardware.py`")


if __name__ == "__main__":
    main()
