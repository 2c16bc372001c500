"""Scores that can be compared between tasks."""

from __future__ import annotations


def human_normalised(score: float, random: float, human: float) -> float:
    """A score in per cent of the way from random play (0) to a person's (100): 100 (score - random) / (human - random).

    Args:
        score: A mean return, of the task's own rewards.
        random: The mean return of random play.
        human: The mean return of people.

    Raises:
        ValueError: random and human are the same; there is no way between them.
    """
    if random == human:
        raise ValueError(f"random play and people both score {human:g}, so nothing can be compared with them")
    return 100.0 * (score - random) / (human - random)
