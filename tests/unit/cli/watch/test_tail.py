"""metrics.csv is read while it is written, cut off, and replaced."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from leco.cli.watch import tail as module
from leco.cli.watch.tail import Tail
from services.learner.metrics_logger import MetricsLogger

if TYPE_CHECKING:
    from pathlib import Path


def test_each_whole_line_comes_once_and_half_a_line_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    tail = Tail(path)
    assert len(tail.read().values_LC) == 0  # no file yet
    path.write_text("frames,ret")
    assert tail.read().columns == ()
    with path.open("a") as file:
        file.write("urn\n10,0.5\n20,")
        file.flush()
        found = tail.read()
        assert found.columns == ("frames", "return")
        np.testing.assert_array_equal(found.values_LC, [[10, 0.5]])
        assert len(tail.read().values_LC) == 0
        file.write("0.75\n30,1\n")
        file.flush()
        found = tail.read()
    assert not found.anew
    np.testing.assert_array_equal(found.values_LC, [[20, 0.75], [30, 1]])
    tail.close()


def test_lines_of_the_real_recorder_and_a_run_that_is_resumed_from_an_earlier_checkpoint(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "metrics.csv")
    first = MetricsLogger(tmp_path, 0)
    for update in range(1, 6):
        first.write({"frames": 100 * update, "updates": update, "seconds": 1.5 * update, "return": update / 10})
    first.close()
    found = tail.read()
    assert found.anew
    assert found.values_LC[:, found.columns.index("frames")].tolist() == [100, 200, 300, 400, 500]
    assert np.isnan(found.values_LC[:, found.columns.index("r_ta")]).all()
    again = MetricsLogger(tmp_path, 3)  # its checkpoint is after the third update
    again.write({"frames": 401, "updates": 4, "seconds": 9.0})
    found = tail.read()
    assert found.anew
    assert found.values_LC[:, found.columns.index("frames")].tolist() == [100, 200, 300, 401]
    again.write({"frames": 501, "updates": 5, "seconds": 10.0})
    found = tail.read()
    assert not found.anew
    assert found.values_LC[:, found.columns.index("frames")].tolist() == [501]
    again.close()
    tail.close()


def test_a_file_that_goes_away_or_becomes_shorter_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("frames\n1\n2\n")
    tail = Tail(path)
    assert len(tail.read().values_LC) == 2
    path.write_text("frames\n7\n")
    found = tail.read()
    assert (found.anew, found.values_LC.tolist()) == (True, [[7]])
    path.unlink()
    found = tail.read()
    assert (found.anew, found.columns) == (True, ())
    assert not tail.read().anew
    path.write_text("frames\n8\n")
    assert tail.read().values_LC.tolist() == [[8]]
    tail.close()


def test_what_is_no_line_of_numbers_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"frames,loss\n1,2\n3\n4,5,6\nfive,6\n\xff\xfe\x00,1\n\n7,\n8,nan\n9,-inf\n")
    tail = Tail(path)
    rows = tail.read().values_LC.tolist()
    assert [row[0] for row in rows] == [1, 7, 8, 9]
    assert math.isnan(rows[1][1])  # nothing stands there
    assert math.isinf(rows[2][1])  # something stands there, but no number to plot
    assert math.isinf(rows[3][1])
    tail.close()


def test_a_long_file_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 64)
    path = tmp_path / "metrics.csv"
    path.write_text("frames\n" + "".join(f"{n}\n" for n in range(1000)))
    tail, got, pieces = Tail(path), [], 0
    while True:
        found = tail.read()
        got += found.values_LC[:, 0].tolist()
        pieces += 1
        if not found.more:
            break
    assert got == list(range(1000))
    assert pieces > 10
    path.write_text("x" * 1000 + "\n" + "frames\n")  # no line of ours: it must not be read for ever
    for _ in range(100):
        if not tail.read().more:
            break
    else:
        pytest.fail("it does not come to an end")
    tail.close()
