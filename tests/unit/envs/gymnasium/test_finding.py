"""Tests of how an environment is found, and what is found of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from leco.config.experiment import ConfigError, task_of
from leco.config.toml import parse, to_toml
from leco.envs.registry import find_task
from leco.envs.task import EnvironmentConfig

FILTER = "gymnasium.wrappers:FilterObservation(filter_keys=['speed'])"


def test_an_environment_is_described_once_and_then_known_without_it() -> None:
    text = to_toml(parse('task = "support.own_envs:Radar-v0"\n[environment.kwargs]\nside = 24\n'))
    assert "image = [24, 24, 3]" in text
    code = (
        f"import sys; from leco.config.toml import parse; from leco.config.experiment import task_of\n"
        f"task = task_of(parse({text!r})); print(task.layout, task.num_actions, task.max_steps, 'gymnasium' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out == "ObservationLayout(image=(24, 24, 3), numbers=2, actions=0) 2 20 False\n"
    assert parse(text) == parse(to_toml(parse(text)))


def test_wrappers_are_put_around_it_in_order() -> None:
    given = EnvironmentConfig(wrappers=(FILTER, "gymnasium.wrappers:FlattenObservation"))
    assert find_task("support.own_envs:Radar-v0", given).layout.numbers == 2
    assert find_task("support.own_envs:Radar-v0", given).layout.image is None


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "no_such_module:X-v0",
            {},
            "there is no module 'no_such_module': install it, or run leco in the folder that has it",
        ),
        (
            "support.own_envs:Rader-v0",
            {},
            "support.own_envs registers no environment 'Rader-v0'; did you mean 'Radar-v0'",
        ),
        ("Cartpole-v1", {}, "there is no task 'Cartpole-v1'; did you mean 'CartPole-v1'"),
        ("Pendulum-v1", {}, "Pendulum-v1 cannot be learned: its actions are continuous"),
        ("CartPole-v1", {"kwargs": {"size": 3}}, "CartPole-v1 cannot be made with {'size': 3}: TypeError: "),
        ("KeyCorridorS3R3", {"kwargs": {"size": 3}}, "cannot be made with {'size': 3}: TypeError: "),
        ("MiniGrid-Empty-Random-6x6-v0", {"kwargs": {"size": 2}}, "cannot be made with {'size': 2}: AssertionError"),
        (
            "support.own_envs:Counting-v0",
            {"kwargs": {"size": 3}},
            "support.own_envs:Counting-v0 cannot be made with {'size': 3}: TypeError: ",
        ),
        ("CartPole-v1", {"wrappers": ("nonsense",)}, "'nonsense' is no wrapper: write module:Class"),
        (
            "CartPole-v1",
            {"wrappers": ("gymnasium.wrappers:Nonsense",)},
            "the module 'gymnasium.wrappers' has no 'Nonsense'",
        ),
        ("CartPole-v1", {"wrappers": ("gymnasium.wrappers:ResizeObservation(shape=(4, 4))",)}, "does not go around"),
        ("vizdoom-my-way-home", {"kwargs": {"size": 3}}, "vizdoom-my-way-home is played by ViZDoom: leave them out"),
        ("CartPole-v1", {"family": "nobody"}, "environment.family is 'nobody', expected"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace("{", r"\{")):
        find_task(name, EnvironmentConfig(**given))


def test_a_wrong_section_of_the_experiment_is_refused() -> None:
    for text, message in (
        ("kwargs = 3", "environment.kwargs is 3, expected a table"),
        ('wrappers = "x"', "environment.wrappers is 'x', expected a list"),
        ("sizes = 3", "there is no key environment.sizes"),
        ('success = "always"', "environment.success is 'always', expected one of"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(f'task = "CartPole-v1"\n[environment]\n{text}\n')


def test_success_is_what_info_or_the_registration_says() -> None:
    assert task_of(parse('task = "support.own_envs:Ladder-v0"')).environment.success == "info"  # type: ignore[union-attr]
    assert task_of(parse('task = "CartPole-v1"')).environment.success == "threshold"  # type: ignore[union-attr]
    radar = task_of(parse('task = "support.own_envs:Radar-v0"'))
    assert (radar.environment.success, radar.solvable) == ("none", False)  # type: ignore[union-attr]
