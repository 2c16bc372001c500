"""How good a policy is, in numbers and in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from leco.report.statistics import Z, human_normalised, wilson

if TYPE_CHECKING:
    from leco.envs.task import Task
    from leco.evaluation.rollout import Result


def summary(result: Result, task: Task | None = None) -> str:
    """What people want to know. Of a task: what is particular to it as well."""
    found = numbers(result, task)

    def interval(name: str, digits: int, scale: float = 1.0) -> str:
        low, high = scale * found[f"{name}_low"], scale * found[f"{name}_high"]
        return f"(95 %: {low:.{digits}f} to {high:.{digits}f})"

    lines = [f"success rate  {100 * found['success']:.1f} %   {interval('success', 1, 100)}"]
    if task is not None and not task.solvable:
        lines = ["success rate  none: this task calls no episode solved, look at the return"]
    lines.append(f"mean return   {found['return']:.3f}   {interval('return', 3)}")
    if task is not None and task.scores is not None:
        random, human = task.scores
        lines.append(
            f"normalised    {found['human_normalised']:.1f} %   {interval('human_normalised', 1)}   "
            f"0 % is random play ({random:g}), 100 % are people ({human:g})"
        )
    lines.append(f"mean length   {found['length']:.1f} actions")
    if result.dropped:
        lines.append(f"dropped       {result.dropped}, because their engine failed; others were played in their place")
    return "".join(f"  {line}\n" for line in lines)


def numbers(result: Result, task: Task | None = None) -> dict[str, float]:
    """Means by name, with the ends of their 95 % intervals. Of a task with scores also normalised.

    What there is not is nan: the interval of a single return, and the success of a task that calls no episode solved.
    """
    count = len(result.returns_N)
    low, high = wilson(int(result.solved_N.sum()), count)
    share = float(result.solved_N.mean())
    if task is not None and not task.solvable:
        share = low = high = math.nan
    mean = float(result.returns_N.mean())
    error = Z * float(result.returns_N.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    found = {
        "episodes": count,
        "success": share,
        "success_low": low,
        "success_high": high,
        "return": mean,
        "return_low": mean - error,
        "return_high": mean + error,
        "length": float(result.lengths_N.mean()),
        "dropped": result.dropped,
    }
    if task is not None and task.scores is not None:
        for end in ("", "_low", "_high"):
            found[f"human_normalised{end}"] = human_normalised(found[f"return{end}"], *task.scores)
    return found
