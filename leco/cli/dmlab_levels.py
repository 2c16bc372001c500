"""Compiles the levels of DeepMind Lab that a run will play: `leco dmlab-levels`, the warm-up job in Kubernetes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import structlog

from leco.config.toml import parse
from leco.envs.dmlab.environment import Machine
from leco.envs.dmlab.family import FAMILY
from leco.envs.dmlab.levels import compile_levels
from leco.envs.registry import find_task
from leco.telemetry.logging import configure_logging
from services import flags

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = """\
Compiles the levels that an experiment on DeepMind Lab will play, and leaves them in the cache. Those that are there already
are skipped.

LECO_DMLAB_LEVELS says how many different levels are played, for this command and for actors alike, and LECO_DMLAB_CACHE where
they are kept (docs/dmlab.md). Many machines share the work by --part and --parts:

  LECO_DMLAB_LEVELS=1000 leco dmlab-levels --config experiment.toml --part 0 --parts 4"""
MOST_PARTS = 100_000
TELL_EVERY = 10

log = structlog.get_logger("leco.levels")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles one part of the levels; ends with code 1 if some could not be compiled."""
    parser = flags.ServiceParser("dmlab-levels", DESCRIPTION)
    parser.setting("--config", default=None, kind=flags.existing_file, metavar="FILE", help="the experiment")
    parser.setting(
        "--part", default="0", kind=flags.whole_number(0, MOST_PARTS), metavar="N", help="which part of them, from 0"
    )
    parser.setting("--parts", default="1", kind=flags.whole_number(1, MOST_PARTS), metavar="N", help="of how many")
    parser.log_settings()
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if given.config is None:
        parser.error("--config is missing: name the experiment's file")
    if given.part >= given.parts:
        parser.error(f"--part is {given.part}, expected less than --parts ({given.parts})")
    configure_logging(level=given.log_level, log_format=given.log_format)
    try:
        failed = warm_up(given.config.read_text(), Machine.from_environment(), given.part, given.parts)
    except ValueError as error:
        parser.refuse(error)
    sys.exit(1 if failed else 0)


def warm_up(experiment: str, machine: Machine, part: int, parts: int) -> int:
    """Compiles levels part, part + parts, ... of the experiment's task. Returns how many could not be compiled.

    Raises:
        ValueError: there is nothing that could be done; the message says why.
    """
    task = find_task(parse(experiment).task)
    if task not in FAMILY.tasks:
        raise ValueError(f"{task.name} is no task of DeepMind Lab: it has no levels to compile")
    if machine.cache is None:
        raise ValueError("LECO_DMLAB_CACHE is off: what is compiled would not be kept")
    if machine.levels is None:
        raise ValueError("LECO_DMLAB_LEVELS is not set: say how many different levels are played")
    seeds = range(part, machine.levels, parts)
    failed = 0
    for done, (seed, reason) in enumerate(compile_levels(task.id, seeds, machine), start=1):
        if reason is not None:
            failed += 1
            log.error("a level could not be compiled", seed=seed, reason=reason)
        if done % TELL_EVERY == 0 or done == len(seeds):
            log.info("levels", done=done, of=len(seeds), failed=failed, folder=str(machine.cache))
    return failed


if __name__ == "__main__":
    main()
