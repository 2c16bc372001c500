"""What was played, with codes, counts and rewards, to a recording that reports, videos and `leco watch` are made from."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from leco.config.experiment import method_of, task_of
from leco.envs.registry import family_of
from leco.evaluation.recording import Episode, Metadata, Recording
from leco.evaluation.scoring import EpisodeScorer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from leco.envs.task import Task
    from leco.evaluation.rollout import Played, Result
    from leco.evaluation.trained import Trained


def recorded_episodes(task: Task, episodes: int) -> int:
    """How many of the episodes of an evaluation are recorded, the first ones."""
    return min(episodes, family_of(task).max_recorded or episodes)


def make_recording(
    trained: Trained,
    played: Sequence[Played],
    *,
    run: str,
    checkpoint: str,
    seed: int,
    greedy: bool,
    result: Result | None = None,
) -> Recording:
    """Episodes that were played, and all that is known of them.

    Args:
        trained: What played.
        played: The episodes to record.
        run, checkpoint, seed, greedy: As `Metadata` has them.
        result: Of all episodes that were played, if these are only the first of them.
    """
    experiment, task = trained.experiment, task_of(trained.experiment)
    scorer = EpisodeScorer(
        trained.networks,
        trained.state,
        method_of(experiment),
        experiment.training,
        observation=task.layout,
        hash_config=experiment.hash,
    )
    metadata = Metadata(
        run=run,
        task=task.name,
        method=experiment.method,
        actions=task.action_names or tuple(f"action {n}" for n in range(task.num_actions)),
        updates=trained.updates,
        frames=int(trained.metadata.get("frames", 0)),
        checkpoint=checkpoint,
        seed=seed,
        greedy=greedy,
        alpha=experiment.training.alpha,
        lambda_=scorer.lambda_,
        leco=version("leco"),
        solvable=task.solvable,
        image=task.layout.image,
        numbers=task.layout.numbers,
        masked=task.layout.actions > 0,
        played=0 if result is None else len(result.returns_N),
        success=None if result is None else result.success_rate,
        mean_return=None if result is None else result.mean_return,
    )
    scenes = _Scenes(task)
    return Recording(metadata, tuple(_episode(each, scorer, scenes) for each in played))


def _episode(played: Played, scorer: EpisodeScorer, scenes: _Scenes) -> Episode:
    observation_TO, action_T = np.stack(played.observations), np.array(played.actions, np.int16)
    reward_T = np.array(played.rewards, np.float32)
    worth = scorer.score(observation_TO, action_T, reward_T)
    x_T, y_T, direction_T, scene_T, grid_GXY = scenes.of(played)
    return Episode(
        level=played.level,
        solved=played.solved,
        action_T=action_T,
        r_e_T=reward_T,
        r_ep_T=worth.r_ep_T,
        r_ta_T=worth.r_ta_T,
        r_i_T=worth.r_i_T,
        observation_TO=observation_TO,
        code_TW=worth.code_TW,
        count_T=worth.count_T,
        x_T=x_T,
        y_T=y_T,
        direction_T=direction_T,
        scene_T=scene_T,
        grid_GXY=grid_GXY,
        picture_T=scenes.painted(played),
        layout=scenes.layout,
    )


class _Scenes:
    """Where the agent was, and what the level looked like; -1 and nothing where there is no grid."""

    def __init__(self, task: Task) -> None:
        replayer = family_of(task).replayer
        self._replayer = replayer(task) if replayer is not None else None
        self._task, self._paint, self.layout = task, family_of(task).paint, task.layout

    def painted(self, played: Played) -> npt.NDArray[np.uint8] | None:
        """The episode as its environment draws it, if it does."""
        return None if self._paint is None else self._paint(self._task, played.level, played.actions)

    def of(self, played: Played) -> tuple[np.ndarray, ...]:
        if self._replayer is not None:
            return self._replayer.play(played.level, played.actions)
        nowhere = np.full(len(played.observations), -1)
        kinds = (np.int16, np.int16, np.int8, np.int32)
        return *(nowhere.astype(kind) for kind in kinds), np.zeros((0, 0, 0, 3), np.uint8)
