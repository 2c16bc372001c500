"""On what machine, and by what command, something is made."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from pathlib import Path

COMMAND = "LECO_COMMAND"
"""The environment variable by which a command tells the services that it starts what was typed."""


def typed_command() -> str:
    """What was typed to start this process, or the one that started it; without passwords in addresses."""
    command = os.environ.get(COMMAND) or shlex.join(["leco", *sys.argv[1:]])
    return re.sub(r"://[^@/\s]*@", "://...@", command)


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
