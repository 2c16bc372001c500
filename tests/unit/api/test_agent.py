"""An agent acts as the policy does that it was made of, with its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import leco
from leco.config.experiment import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt

ENTRY = "zoo/KeyCorridorS4R3"


def played(agent: leco.Agent, steps: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """What three environments showed, where episodes began, and what the agent did."""
    env = leco.make_env(agent.task, 3, seed=7)
    observation_EO, start_E = env.reset(), np.ones(3, bool)
    shown, starts, done = [], [], []
    agent.reset()
    for _ in range(steps):
        action_E = agent.act(observation_EO, np.zeros(3, np.float32))
        shown.append(observation_EO)
        starts.append(start_E)
        done.append(action_E)
        step = env.step(action_E)
        observation_EO, start_E = step.observation_EO, step.done_E
        agent.reset(step.done_E)
    return np.stack(shown), np.stack(starts), np.stack(done)


def test_it_takes_the_policys_most_probable_actions_over_several_episodes() -> None:
    agent = leco.load(ENTRY, greedy=True)
    shown_TEO, start_TE, action_TE = played(agent, 120)
    assert start_TE[1:].any(), "an episode must have ended"
    policy = agent.trained.policy
    before_TE = np.concatenate([np.full((1, 3), -1), action_TE[:-1]])
    before_TE[start_TE] = -1
    with torch.no_grad():
        whole = policy(
            *map(torch.from_numpy, (shown_TEO, start_TE, before_TE, np.zeros((120, 3), np.float32))),
            policy.initial_state(3),
        )
    assert (whole.logits_TBA.argmax(-1).numpy() == action_TE).all()


def test_one_environment_gives_a_number_and_its_seed_decides() -> None:
    observation = leco.make_env("KeyCorridorS4R3", 1, seed=3).reset()[0]
    agents = [leco.load(ENTRY, seed=seed) for seed in (5, 5, 6)]
    for agent in agents:  # one that is not sure of anything
        torch.nn.init.zeros_(agent.trained.policy.policy_head.weight)
        torch.nn.init.zeros_(agent.trained.policy.policy_head.bias)
    first, again, other = (leco.Agent(agent.trained, seed=seed) for agent, seed in zip(agents, (5, 5, 6), strict=True))
    actions = [first.act(observation) for _ in range(30)]
    assert all(isinstance(each, int) for each in actions)
    assert actions == [again.act(observation) for _ in range(30)]
    assert actions != [other.act(observation) for _ in range(30)]


def test_mistakes_are_one_sentence() -> None:
    agent = leco.load(ENTRY)
    with pytest.raises(
        ValueError, match=r"the observation has shape \[5, 5, 3\], expected \[7, 7, 3\], or a row of such"
    ):
        agent.act(np.zeros((5, 5, 3), np.uint8))
    agent.act(np.zeros((7, 7, 3), np.uint8))
    with pytest.raises(ValueError, match=r"there are 2 observations, and were 1: call reset\(\) between them"):
        agent.act(np.zeros((2, 7, 7, 3), np.uint8))
    with pytest.raises(ValueError, match=r"done has shape \[2\], expected \[1\]"):
        agent.reset([True, False])
    with pytest.raises(ConfigError, match="is neither a run nor an entry of the zoo"):
        leco.load("zoo/Nowhere")


def test_the_zoo_is_found_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert leco.evaluate("zoo/MultiRoom-N2-S4", episodes=5).success_rate == 1.0
