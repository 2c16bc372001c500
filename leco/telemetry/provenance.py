"""On what machine, by what command and since when something is made."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import time
from pathlib import Path

COMMAND = "LECO_COMMAND"
"""The environment variable by which a command tells the services that it starts what was typed."""
CLOCK_ZERO = "LECO_CLOCK_ZERO"
"""The environment variable by which `leco train` tells its learner when the run's clock stood at zero, see `clock_zero`."""


def typed_command() -> str:
    """What was typed to start this process, or the one that started it; without passwords in addresses."""
    command = os.environ.get(COMMAND) or shlex.join(["leco", *sys.argv[1:]])
    return re.sub(r"://\S*@", "://...@", command)


def process_start() -> float:
    """When this process began, as time.monotonic() counts; where the system does not tell, now."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # since the system began
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0
    except (OSError, ValueError, IndexError, AttributeError):
        age = 0.0
    return time.monotonic() - max(age, 0.0)


def clock_zero() -> float | None:
    """When the clock of this run stood at zero, as time.monotonic() counts; None if nobody said so.

    All processes of a machine read the same clock, so a command can say it to those that it starts.
    """
    try:
        return float(os.environ[CLOCK_ZERO])
    except (KeyError, ValueError):
        return None


def hardware() -> dict[str, str | int]:
    """Processor, how many of them this process may use, and memory in bytes; what cannot be found out is left out."""
    found: dict[str, str | int] = {"processor": _processor(), "processors": len(os.sched_getaffinity(0))}
    if "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return found


def _processor() -> str:
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        model = None
    return model[1] if model else platform.machine()
