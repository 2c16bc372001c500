"""Compiles levels of DeepMind Lab ahead of play, so that actors find them in the cache. See docs/dmlab.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leco.envs.dmlab.process import Engine, gather, not_installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leco.envs.dmlab.environment import Machine


def compile_levels(level: str, seeds: Iterable[int], machine: Machine) -> Iterator[tuple[int, str | None]]:
    """Begins an episode of each seed in an engine, which puts its level into the cache unless it is there.

    Yields:
        Each seed when its level is done, and None; or the reason why it could not be compiled, after which the next one gets a
        new engine.

    Raises:
        ValueError: the interpreter cannot be run, or something that DeepMind Lab needs is not installed.
    """
    engine = Engine(machine.python, machine.configuration(level))
    try:
        for seed in seeds:
            try:
                engine.begin(0, seed)
            except OSError as error:
                raise ValueError(
                    f"cannot run {machine.python} ({error.strerror}): LECO_DMLAB_PYTHON names it"
                ) from None
            _, lost = gather({0: engine}, machine.reset_seconds)
            if not lost:
                yield seed, None
                continue
            words = engine.words()
            engine.kill()
            if lost[0].missing:
                raise not_installed(machine.python, lost[0])
            yield seed, f"{lost[0]}{words}"
    finally:
        engine.kill()
