"""`leco learner --ranks N`: torchrun, with the same command for each rank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from leco.telemetry.provenance import COMMAND, typed_command

if TYPE_CHECKING:
    from collections.abc import Sequence

# After SIGTERM the learner ends its update and saves: on few processors an update of pixels takes a minute.
LONGEST_END_SECONDS = 600


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Runs the learner in so many processes of this machine, to their end; ends all if one ends badly. Returns the exit code."""
    os.environ.setdefault(COMMAND, typed_command())
    os.environ["PYTHONSAFEPATH"] = "1"  # a folder called `leco` where the user happens to be is not taken for it
    how = ["--standalone", f"--nproc-per-node={ranks}", f"--shutdown-timeout={LONGEST_END_SECONDS}"]
    try:
        told = torchrun.parse_args([*how, "-m", "leco", "learner", *arguments])  # type: ignore[no-untyped-call]
        torchrun.run(told)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        return max(first.exitcode, 1)
    except SignalException:  # all have ended as they should
        return 0
    return 0
