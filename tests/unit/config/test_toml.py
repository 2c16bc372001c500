"""Experiments as TOML: what can be written, what is refused and why, and what is filled in."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leco.config.experiment import ActorConfig, ConfigError, Experiment, LearnerConfig, method_of
from leco.config.presets import PRESETS
from leco.config.toml import parse, to_toml
from leco.config.training import HashConfig, NetworkConfig, TrainingConfig
from leco.envs.registry import TASKS, family_of
from leco.methods.table import METHODS, Hash, find_method
from support.training_case import paper_config

TASK = 'task = "Empty-5x5"\n'
Kind = Literal["vq", "ae-lsh", "dsc", "exact", "objects", "cells", "vq-cells"]
OF_CELLS: tuple[Kind, ...] = ("objects", "cells", "vq-cells")

counts = st.integers(1, 10**9)
rates = st.floats(1e-12, 1e6)
amounts = st.floats(0, 1e6)
shares = st.floats(0, 1)


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    batch = draw(st.integers(1, 1000))
    turn = draw(st.integers(1, 8))
    task = draw(st.sampled_from(sorted(TASKS)))
    grid = TASKS[task].observation_shape == (7, 7, 3)
    method = draw(st.sampled_from(sorted(name for name in METHODS if grid or name != "objects")))
    kinds: list[Kind] = ["vq", "ae-lsh", "dsc", "exact", *(OF_CELLS if grid else ())]
    length, reuse = draw(counts), draw(st.booleans())
    kind = None if METHODS[method].hash is Hash.NONE else draw(st.none() | st.sampled_from(kinds))
    sized = find_method(method, kind).hash not in (Hash.EXACT, Hash.OBJECTS, Hash.CELLS, Hash.VQ_CELLS)
    return Experiment(
        task=task,
        method=method,
        seed=draw(st.integers(0, 2**63)),
        frames=draw(counts),
        actors=ActorConfig(num_envs=batch * turn, unroll_length=length * draw(st.integers(1, 9))),
        learner=LearnerConfig(
            batch_size=batch,
            queue_capacity=batch + draw(st.integers(0, 100)),
            max_policy_lag=draw(st.integers(0, 999)),
            publish_every=1,
            checkpoint_every=turn * draw(st.integers(1, 1000)),
            keep_checkpoints=draw(counts),
            log_every=draw(counts),
            deterministic=family_of(TASKS[task]).reproducible and draw(st.booleans()),
        ),
        training=paper_config(
            gamma=draw(shares),
            alpha=draw(amounts),
            lambda_=draw(shares),
            vtrace_lambda=draw(shares),
            reward_scale=draw(rates),
            bootstrap_on_truncation=draw(st.booleans()),
            entropy_cost=draw(amounts),
            policy_learning_rate=draw(rates),
            intrinsic_learning_rate=draw(rates),
            policy_betas=(draw(st.floats(0, 0.999)), draw(st.floats(0, 0.999))),
            intrinsic_betas=(draw(st.floats(0, 0.999)), draw(st.floats(0, 0.999))),
            eps=draw(rates),
            inner_loss=draw(st.sampled_from(["policy-gradient", "full"])),
            max_gradient_norm=draw(st.none() | rates),
            precision=draw(st.sampled_from(["auto", "float32"])),
            decoder_samples=draw(st.none() | counts),
            novelty_learning_rate=draw(rates),
            learning_rate_timescale=draw(st.none() | st.integers(1, 10**6)),
            modulator_learning_rate=draw(st.none() | rates),
            agac_coef=draw(amounts),
            reward_shaping=draw(st.sampled_from(["none", "soft-asymmetric"])),
            epochs=draw(counts) if reuse else 1,
            minibatches=draw(counts) if reuse else 1,
            sequence_length=draw(st.sampled_from([None, length, 10**11])),
            clip_range=draw(rates if reuse else st.none() | rates),
            normalize_advantages=draw(st.booleans()),
            episodic_bonus=draw(st.sampled_from(["inverse-sqrt", "first-visit", "information"])),
            center_bonus=draw(st.booleans()),
            normalize_bonus=draw(st.booleans()),
            penalty_on_revisits=draw(st.booleans()),
            earned_trust=draw(st.booleans()),
        ),
        network=NetworkConfig(
            encoder=draw(st.sampled_from(["paper", "one-hot"])) if grid else "paper", width=draw(counts)
        ),
        hash=HashConfig(
            kind=kind,
            size=draw(st.none() | st.sampled_from([(2, 3), (4, 6)])) if sized else None,
            codebook_size=draw(st.none() | st.integers(2, 256)) if sized else None,
            dsc_levels=draw(st.none() | st.integers(2, 256)) if sized else None,
            bits=draw(st.none() | st.integers(1, 2048)) if sized else None,
        ),
    )


@settings(deadline=None, max_examples=200)
@given(experiments())
def test_what_is_written_is_read_back(experiment: Experiment) -> None:
    assert parse(to_toml(experiment)) == experiment


def test_every_value_is_written_also_those_that_are_defaults() -> None:
    text = to_toml(parse(TASK))
    off = []
    for section in (ActorConfig, LearnerConfig, NetworkConfig, TrainingConfig, HashConfig):
        for field in dataclasses.fields(section):
            if field.default is None:
                off.append(field.name)
            else:
                assert f"\n{field.name.rstrip('_')} = " in text, field.name
    training = [
        "learning_rate_timescale",
        "modulator_learning_rate",
        "max_gradient_norm",
        "decoder_samples",
        "sequence_length",
        "clip_range",
    ]
    assert off == [*training, "kind", "size", "codebook_size", "dsc_levels", "bits"], (
        "these are off unless they are given"
    )
    assert "lambda_" not in text
    assert "None" not in text


def test_only_the_task_has_no_default() -> None:
    with pytest.raises(ConfigError, match='task is missing: name what is to be solved, for example task = "Key'):
        parse("frames = 5e6")
    assert parse(TASK) == Experiment(task="Empty-5x5", training=paper_config())


@pytest.mark.parametrize(
    ("task", "gamma"), [("Empty-5x5", 0.99), ("ObstructedMaze-1Dl", 0.8), ("MiniGrid-ObstructedMaze-1Dl-v0", 0.8)]
)
def test_gamma_is_the_tasks_unless_it_is_given(task: str, gamma: float) -> None:
    assert parse(f'task = "{task}"').training.gamma == gamma
    assert parse(f'task = "{task}"\n[training]\nalpha = 0.5').training.gamma == gamma
    assert parse(f'task = "{task}"\n[training]\ngamma = 0.5').training.gamma == 0.5


def test_a_task_known_by_its_id_gets_its_short_name() -> None:
    assert parse('task = "MiniGrid-Empty-5x5-v0"') == parse(TASK)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frame = 1", "there is no key frame; did you mean frames?"),
        ("[training]\nlamda = 1", "there is no key training.lamda; did you mean training.lambda?"),
        ("[training]\nlambda_ = 1", "there is no key training.lambda_; did you mean training.lambda?"),
        ("[learner]\nbatches = 1", "there is no key learner.batches; did you mean learner.batch_size?"),
        ("[actors]\nzzz = 1", "there is no key actors.zzz; the keys here are: num_envs, unroll_length"),
        ("method = 'lecoo'", "there is no method 'lecoo'; did you mean 'leco'?"),
        ("task", "this is not TOML: "),
    ],
)
def test_what_is_not_known_is_refused_with_the_nearest_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(TASK + text)
    assert str(caught.value).startswith(message)


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"there is no task 'Emty-5x5'; did you mean 'Empty-5x5'\?"):
        parse('task = "Emty-5x5"')


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("frames", 0, "frames is 0, expected more than 0"),
        ("frames", -1, "frames is -1, expected more than 0"),
        ("until", 0, "until is 0.0, expected more than 0 and at most 1"),
        ("until", 1.01, "until is 1.01, expected more than 0 and at most 1"),
        ("until", "95%", "until is '95%', expected a number"),
        ("actors.num_envs", 0, "expected more than 0"),
        ("actors.unroll_length", 0, "expected more than 0"),
        ("learner.batch_size", 0, "expected more than 0"),
        ("learner.publish_every", 0, "expected more than 0"),
        ("learner.checkpoint_every", 0, "expected more than 0"),
        ("learner.keep_checkpoints", 0, "expected more than 0"),
        ("learner.log_every", 0, "expected more than 0"),
        ("training.policy_learning_rate", 0, "expected more than 0"),
        ("training.intrinsic_learning_rate", -1e-9, "expected more than 0"),
        ("training.eps", 0, "expected more than 0"),
        ("training.reward_scale", 0, "expected more than 0"),
        ("training.epochs", 0, "training.epochs is 0, expected more than 0"),
        ("training.epochs", -3, "training.epochs is -3, expected more than 0"),
        ("training.minibatches", 0, "training.minibatches is 0, expected more than 0"),
        ("network.width", 0, "network.width is 0, expected more than 0"),
        ("network.width", -64, "network.width is -64, expected more than 0"),
        ("training.sequence_length", 0, "is 0, expected at least 1; leave it out for whole unrolls"),
        ("training.sequence_length", -1, "is -1, expected at least 1; leave it out for whole unrolls"),
        (
            "training.sequence_length",
            36,
            "training.sequence_length is 36, expected a divisor of actors.unroll_length (96), which is cut into sequences",
        ),
        ("training.clip_range", 0, "is 0.0, expected more than 0; leave it out for the plain policy gradient"),
        ("training.clip_range", -0.2, "is -0.2, expected more than 0; leave it out for the plain policy gradient"),
        (
            "training.epochs",
            2,
            "because training.epochs or training.minibatches is more than 1: the plain policy gradient is right for one step",
        ),
        ("training.minibatches", 2, "training.clip_range is left out, expected a number such as 0.2 because"),
        ("training.gamma", 1.001, "expected 0 to 1"),
        ("training.gamma", -0.001, "expected 0 to 1"),
        ("training.lambda", 1.001, "expected 0 to 1"),
        ("training.lambda", -0.001, "expected 0 to 1"),
        ("training.vtrace_lambda", 1.001, "expected 0 to 1"),
        ("training.vtrace_lambda", -0.001, "expected 0 to 1"),
        ("training.policy_betas", [1.0, 0.5], "expected two numbers from 0 to below 1"),
        ("training.intrinsic_betas", [1.0, 0.5], "expected two numbers from 0 to below 1"),
        ("training.policy_betas", [0.5, 1.0], "expected two numbers from 0 to below 1"),
        ("training.intrinsic_betas", [-0.1, 0.5], "expected two numbers from 0 to below 1"),
        ("seed", -1, "expected 0 or more"),
        ("learner.max_policy_lag", -1, "expected 0 or more"),
        (
            "learner.max_policy_lag",
            1000,
            "learner.max_policy_lag is 1000, expected less than 1000: versions leap by that",
        ),
        ("training.alpha", -0.1, "expected 0 or more"),
        ("training.entropy_cost", -0.1, "expected 0 or more"),
        ("training.max_gradient_norm", 0, "expected more than 0; leave it out for no limit"),
        ("training.decoder_samples", 0, "expected at least 1; leave it out to decode all"),
        ("learner.queue_capacity", 15, "expected at least learner.batch_size (16): a batch must fit in the queue"),
        ("training.inner_loss", "some", "expected one of 'policy-gradient', 'full'"),
        ("training.precision", "bfloat16", "expected one of 'auto', 'float32'"),
        ("training.novelty_learning_rate", 0, "expected more than 0"),
        (
            "training.learning_rate_timescale",
            0,
            "expected at least 1 update; leave it out for a learning rate that stays",
        ),
        ("training.modulator_learning_rate", 0, "expected more than 0; leave it out for the intrinsic module's"),
        ("training.agac_coef", -0.1, "expected 0 or more"),
        ("training.reward_shaping", "hard", "expected one of 'none', 'soft-asymmetric'"),
        ("training.episodic_bonus", "second", "expected one of 'inverse-sqrt', 'first-visit'"),
        ("hash.kind", "md5", "hash.kind is 'md5', expected one of 'vq', 'ae-lsh', 'dsc', 'exact', 'objects'"),
        ("hash.kind", "-", "hash.kind is '-', expected one of 'vq'"),
        ("hash.size", [0, 3], "expected a height and a width from 1 to 16"),
        ("hash.size", [3, 17], "expected a height and a width from 1 to 16"),
        ("hash.size", [3], "expected a list of 2 numbers"),
        ("hash.codebook_size", 1, "expected 2 to 256: a place of a code is a byte"),
        ("hash.dsc_levels", 257, "expected 2 to 256"),
        ("hash.bits", 0, "expected 1 to 2048"),
        ("hash.bits", 2049, "a code has at most 256 bytes"),
        # types
        ("frames", 0.5, "frames is 0.5, expected a whole number"),
        ("frames", float("inf"), "expected a whole number"),
        ("frames", float("nan"), "expected a whole number"),
        ("frames", True, "expected a whole number"),
        ("frames", "many", "expected a whole number"),
        ("training.alpha", "0.1", "expected a number"),
        ("training.alpha", float("nan"), "expected a number"),
        ("training.alpha", float("inf"), "expected a number"),
        ("training.alpha", False, "expected a number"),
        ("learner.deterministic", 1, "expected true or false"),
        ("training.epochs", 1.5, "training.epochs is 1.5, expected a whole number"),
        ("training.minibatches", "all", "expected a whole number"),
        ("training.sequence_length", 0.5, "expected a whole number"),
        ("training.clip_range", "some", "expected a number"),
        ("network.width", 64.5, "expected a whole number"),
        ("network.encoder", "two-hot", "network.encoder is 'two-hot', expected one of"),
        ("network", 64, "network is 64, expected a section [network]"),
        ("hash.kind", 3, "hash.kind is 3, expected one of"),
        ("training.normalize_advantages", 1, "expected true or false"),
        ("training.center_bonus", "yes", "expected true or false"),
        ("training.penalty_on_revisits", 0, "expected true or false"),
        ("training.earned_trust", 1, "expected true or false"),
        ("training.policy_betas", [0.9], "expected a list of 2 numbers"),
        ("training.policy_betas", 0.9, "expected a list of 2 numbers"),
        ("training.policy_betas", [0.9, "x"], "expected a number"),
        ("training", 5, "training is 5, expected a section [training]"),
        ("task.name", 5, "task is 'Empty-5x5', expected a section"),
    ],
)
def test_a_value_out_of_range_or_of_another_kind_is_refused_with_its_key(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(TASK, {key: value})
    assert message in str(caught.value)
    assert key.removesuffix(".name") in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.gamma", 0),
        ("training.gamma", 1),
        ("training.lambda", 0),
        ("training.lambda", 1),
        ("training.policy_betas", [0, 0]),
        ("training.alpha", 0),
        ("training.entropy_cost", 0),
        ("seed", 0),
        ("learner.max_policy_lag", 0),
        ("learner.queue_capacity", 16),
        ("training.decoder_samples", 1),
        ("training.epochs", 1),
        ("training.minibatches", 1),
        ("training.sequence_length", 1),
        ("training.sequence_length", 96),
        ("training.sequence_length", 97),  # more than an unroll has is all of it
        ("training.clip_range", 1e-9),
        ("network.width", 1),
        ("hash.kind", "objects"),
        ("training.agac_coef", 0),
        ("hash.size", [1, 16]),
        ("hash.codebook_size", 2),
        ("hash.dsc_levels", 256),
        ("hash.bits", 2048),
        ("frames", 1),
        ("until", 1),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(key: str, value: Any) -> None:
    parse(TASK, {key: value})


def test_a_task_that_calls_no_episode_solved_cannot_end_by_its_success_rate() -> None:
    assert parse(TASK, {"until": 0.95}).until == 0.95
    assert parse(to_toml(parse(TASK, {"until": 0.95}))).until == 0.95
    with pytest.raises(ConfigError, match=r"until is 0\.95, but vizdoom-deathmatch calls no episode solved: leave it"):
        parse('task = "vizdoom-deathmatch"\nuntil = 0.95')


def test_alpha_and_the_noveltys_rate_are_the_methods_unless_they_are_given() -> None:
    for method, task, alpha in (
        ("leco", "Empty-5x5", 0.01),
        ("ride", "Empty-5x5", 0.1),
        ("ride", "vizdoom-deathmatch", 0.01),
    ):
        assert parse("", {"task": task, "method": method}).training.alpha == alpha
    assert parse("", {"task": "Empty-5x5", "method": "ride", "training.alpha": 0.3}).training.alpha == 0.3
    assert parse("", {"task": "Empty-5x5", "method": "agac"}).training.novelty_learning_rate == 9e-5
    assert parse("", {"task": "Empty-5x5", "method": "rnd"}).training.novelty_learning_rate == 1e-4


def test_rewards_are_shaped_by_default_only_in_dmlab() -> None:
    assert parse('task = "lasertag_three_opponents_small"').training.reward_shaping == "soft-asymmetric"
    assert parse('task = "vizdoom-deathmatch"').training.reward_shaping == "none"


def test_what_does_not_fit_the_method_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"hash.size is \[3, 3\], expected \[2, 3\] or \[4, 6\] for a learned hash of pixels"
    ):
        parse("", {"task": "vizdoom-deathmatch", "hash.size": [3, 3]})
    parse("", {"task": "vizdoom-deathmatch", "hash.size": [4, 6]})
    parse("", {"task": "vizdoom-deathmatch", "method": "dsc", "hash.size": [3, 3]})


@pytest.mark.parametrize("kind", ["vq", "ae-lsh", "dsc", "exact", "objects"])
def test_a_method_counts_with_the_hash_that_is_asked_for(kind: str) -> None:
    for method in ("leco", "vq-only", "exact", "noveld", "lirpg"):
        experiment = parse(TASK, {"method": method, "hash.kind": kind})
        assert experiment.hash.kind == kind
        assert method_of(experiment) == dataclasses.replace(METHODS[method], hash=Hash(kind))
        assert parse(to_toml(experiment)) == experiment
    assert method_of(parse(TASK)) == METHODS["leco"]


@pytest.mark.parametrize("method", ["no-int", "rnd"])
def test_a_method_without_a_hash_is_asked_for_none(method: str) -> None:
    message = f"hash.kind is 'exact', but method '{method}' has no hash: leave it out"
    with pytest.raises(ConfigError, match=message):
        parse(TASK, {"method": method, "hash.kind": "exact"})
    with pytest.raises(ConfigError, match=message):
        method_of(dataclasses.replace(parse(TASK), method=method, hash=HashConfig(kind="exact")))
    assert method_of(parse(TASK, {"method": method})) == METHODS[method]


@pytest.mark.parametrize("task", ["vizdoom-deathmatch", "lasertag_three_opponents_small"])
def test_pixels_are_no_categories(task: str) -> None:
    message = f'network.encoder is "one-hot", but {task} shows pixels, which are no categories: leave it out'
    with pytest.raises(ConfigError, match=message):
        parse(f'task = "{task}"', {"network.encoder": "one-hot"})


def test_cells_are_no_pictures() -> None:
    with pytest.raises(
        ConfigError, match=r'network.encoder is "patches", but .* views of MiniGrid, which are no pictures'
    ):
        parse(TASK, {"network.encoder": "patches"})
    with pytest.raises(
        ConfigError, match=r"patches are counted in pictures: choose another hash.kind, or the task \S+-RGB"
    ):
        parse(TASK, {"hash.kind": "vq-patches"})
    with pytest.raises(ConfigError, match=r"hash.bits is 25, but the hash vq-patches has no such size"):
        parse("", {"task": "Empty-5x5-RGB", "hash.kind": "vq-patches", "hash.bits": 25})


def test_small_pictures_have_the_usual_laptop_preset_with_a_hash_and_a_policy_of_patches() -> None:
    """And those of the paper's size one of their own."""
    small, cells = (parse("", {"task": f"KeyCorridorS3R3{suffix}", "preset": "laptop"}) for suffix in ("-RGB", ""))
    assert small.training == cells.training
    assert (small.hash.kind, small.network.encoder) == ("vq-patches", "patches")
    assert parse("", {"task": "KeyCorridorS3R3-RGB", "method": "exact", "preset": "laptop"}).hash.kind is None
    assert parse("", {"task": "vizdoom-my-way-home", "preset": "laptop"}).hash.kind is None
    paper = parse("", {"task": "KeyCorridorS3R3-RGB", "preset": "paper"})
    assert (paper.hash.kind, paper.network.encoder) == (None, "paper")


@pytest.mark.parametrize("task", ["vizdoom-deathmatch", "lasertag_three_opponents_small"])
@pytest.mark.parametrize(("kind", "what"), [("cells", "cells"), ("vq-cells", "codes of cells")])
def test_cells_are_counted_in_views_of_minigrid_alone(task: str, kind: str, what: str) -> None:
    message = f"{task} shows pixels, and {what} are counted in views of MiniGrid: choose another method or hash.kind"
    with pytest.raises(ConfigError, match=message):
        parse(f'task = "{task}"', {"hash.kind": kind})


@pytest.mark.parametrize("task", ["vizdoom-deathmatch", "lasertag_three_opponents_small"])
def test_objects_are_counted_in_views_of_minigrid_alone(task: str) -> None:
    message = f"{task} shows pixels, and objects are counted in views of MiniGrid: choose another method or hash.kind"
    for asked in ({"method": "objects"}, {"hash.kind": "objects"}, {"method": "vq-only", "hash.kind": "objects"}):
        with pytest.raises(ConfigError, match=message):
            parse("", {"task": task, **asked})
    for kind in ("vq", "ae-lsh", "dsc", "exact"):
        assert parse("", {"task": task, "method": "objects", "hash.kind": kind}).hash.kind == kind
    assert parse("", {"task": "Empty-5x5", "method": "objects"}).method == "objects"


def test_the_size_of_a_hash_of_pixels_is_free_where_it_is_not_learned() -> None:
    pixels: dict[str, Any] = {"task": "vizdoom-deathmatch", "hash.size": [3, 3]}
    with pytest.raises(ConfigError, match="for a learned hash of pixels"):
        parse("", {**pixels, "method": "dsc", "hash.kind": "vq"})
    assert parse("", {**pixels, "method": "leco", "hash.kind": "dsc"}).hash.size == (3, 3)


def test_a_batch_may_be_learned_from_more_than_once_if_steps_are_clipped() -> None:
    reuse = {
        "training.epochs": 4,
        "training.minibatches": 8,
        "training.sequence_length": 32,
        "training.clip_range": 0.2,
    }
    training = parse(TASK, reuse).training
    assert (training.epochs, training.minibatches, training.sequence_length, training.clip_range) == (4, 8, 32, 0.2)
    assert parse(TASK, {"training.clip_range": 0.2}).training.clip_range == 0.2, "a single clipped step is one too"
    assert parse(TASK, {"training.sequence_length": 32}).training.clip_range is None, "and so are sequences in one pass"
    divided = parse(TASK, {"actors.unroll_length": 100, "training.sequence_length": 25})
    assert divided.training.sequence_length == 25
    with pytest.raises(
        ConfigError, match=r"training.sequence_length is 32, expected a divisor of actors.unroll_length \(100\)"
    ):
        parse(TASK, {**reuse, "actors.unroll_length": 100})


def test_a_whole_number_may_be_written_with_an_exponent_and_a_number_without_a_point() -> None:
    experiment = parse(TASK + "frames = 5e6\n[training]\nalpha = 1\npolicy_betas = [0, 0.5]")
    assert (experiment.frames, type(experiment.frames)) == (5_000_000, int)
    assert (experiment.training.alpha, type(experiment.training.alpha)) == (1.0, float)
    assert [type(beta) for beta in experiment.training.policy_betas] == [float, float]


def test_overrides_win_by_their_dotted_key_and_none_is_no_override() -> None:
    text = TASK + "frames = 7\nseed = 3\n[training]\nalpha = 0.25\nentropy_cost = 0.5"
    experiment = parse(text, {"frames": None, "seed": 4, "training.alpha": 0.125, "learner.keep_checkpoints": 9})
    assert (experiment.frames, experiment.seed, experiment.learner.keep_checkpoints) == (7, 4, 9)
    assert (experiment.training.alpha, experiment.training.entropy_cost) == (0.125, 0.5)
    assert parse("", {"task": "Empty-5x5"}) == parse(TASK)


def turns(**changes: Any) -> Experiment:
    keys = {"learner.batch_size": 4, "actors.num_envs": 8, "learner.checkpoint_every": 6, "learner.deterministic": True}
    return parse(TASK, keys | {key.replace("__", "."): value for key, value in changes.items()})


def test_a_deterministic_run_needs_whole_turns() -> None:
    assert turns().learner.deterministic
    assert turns(learner__publish_every=2).learner.publish_every == 2
    with pytest.raises(
        ConfigError, match=r"actors.num_envs is 6, expected a multiple of learner.batch_size .4. because"
    ):
        turns(actors__num_envs=6)
    with pytest.raises(ConfigError, match=r"actors.num_envs is 2, expected a multiple of learner.batch_size .4."):
        turns(actors__num_envs=2)
    with pytest.raises(ConfigError, match=r"learner.checkpoint_every is 5, expected a multiple of 2, the updates of a"):
        turns(learner__checkpoint_every=5)
    with pytest.raises(
        ConfigError, match=r"learner.publish_every is 3, expected a divisor of 2, the updates of a turn"
    ):
        turns(learner__publish_every=3)


def test_a_deterministic_run_needs_episodes_that_follow_from_their_seed() -> None:
    with pytest.raises(ConfigError, match=r"learner.deterministic is true, but episodes of lasertag.* leave it out"):
        turns(task="lasertag_three_opponents_small", preset="paper")


def test_other_runs_need_none() -> None:
    free = {"actors__num_envs": 6, "learner__checkpoint_every": 5, "learner__publish_every": 3}
    assert not turns(**free, learner__deterministic=False).learner.deterministic


def test_what_an_experiment_says_wins_over_its_preset_and_the_rest_of_it_stays() -> None:
    laptop = parse(TASK, {"preset": "laptop"})
    other = parse('preset = "laptop"\n' + TASK + "[training]\nalpha = 0.25\ndecoder_samples = 7")
    assert laptop.training != parse(TASK).training == parse(TASK, {"preset": "paper"}).training
    assert other.training == dataclasses.replace(laptop.training, alpha=0.25, decoder_samples=7)
    assert parse(to_toml(other)) == other


def test_a_preset_that_is_none_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="preset is 'labtop'; did you mean 'laptop'"):
        parse(TASK, {"preset": "labtop"})
    with pytest.raises(ConfigError, match="preset is 3; there are: laptop, paper"):
        parse(TASK, {"preset": 3})


GRIDS = [name for name, task in TASKS.items() if task.observation_shape == (7, 7, 3)]
PICTURES = [name for name in TASKS if name not in GRIDS]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_used_with_every_task_and_method(name: str, method: str) -> None:
    for task in GRIDS if method == "objects" else TASKS:
        experiment = parse("", {"task": task, "method": method, "preset": name})
        assert parse(to_toml(experiment)) == experiment, "and a run folder says all of it without the preset"


def test_the_paper_is_the_defaults_and_nothing_else() -> None:
    """But for what a task or a method says itself, as it does without a preset."""
    assert parse(TASK, {"preset": "paper"}) == Experiment(task="Empty-5x5", training=paper_config())
    for task in TASKS:
        for method in ("leco", "agac"):
            asked = {"task": task, "method": method}
            assert parse("", {**asked, "preset": "paper"}) == parse("", asked)
    defaults = paper_config()
    assert (defaults.epochs, defaults.minibatches, defaults.sequence_length, defaults.clip_range) == (1, 1, None, None)
    assert (defaults.normalize_advantages, defaults.episodic_bonus) == (False, "inverse-sqrt")
    assert (defaults.center_bonus, defaults.penalty_on_revisits, defaults.earned_trust) == (False, False, False)
    assert (NetworkConfig().width, HashConfig()) == (
        256,
        HashConfig(kind=None, size=None, codebook_size=None, dsc_levels=None, bits=None),
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_laptop_has_one_preset_for_every_task_of_minigrid(method: str) -> None:
    """Nothing is chosen for a task."""
    first, *others = (parse("", {"task": task, "method": method, "preset": "laptop"}) for task in GRIDS)
    assert others
    for other in others:
        assert dataclasses.replace(other, task=first.task) == first


def test_the_laptops_methods_differ_in_what_they_say_themselves_and_in_nothing_else() -> None:
    """One search for all: alpha and the novelty's rate, and the hash that LECO counts with."""
    leco = parse(TASK, {"preset": "laptop"})
    for method in METHODS:
        other = parse(TASK, {"method": method, "preset": "laptop"})
        training = dataclasses.replace(
            other.training, alpha=leco.training.alpha, novelty_learning_rate=leco.training.novelty_learning_rate
        )
        assert dataclasses.replace(other, method="leco", training=training, hash=leco.hash) == leco
        assert other.hash == HashConfig(kind="vq-cells" if method == "leco" else None)


def test_on_a_laptop_leco_counts_learned_codes_of_cells_unless_it_is_told_otherwise() -> None:
    assert parse(TASK, {"preset": "laptop"}).hash == HashConfig(kind="vq-cells")
    assert method_of(parse(TASK, {"preset": "laptop"})).hash is Hash.VQ_CELLS
    for kind in ("vq", "ae-lsh", "dsc", "exact", "objects", "cells"):
        assert method_of(parse(TASK, {"preset": "laptop", "hash.kind": kind})).hash is Hash(kind)
    for method in ("leco-ae-lsh", "vq-only"):
        assert method_of(parse(TASK, {"preset": "laptop", "method": method})) == METHODS[method]


def test_the_laptop_learns_from_a_batch_more_than_once_where_it_sees_minigrid() -> None:
    """By turns, on policy, with a narrow policy; and every batch is one turn of the actors."""
    experiment = parse(TASK, {"preset": "laptop"})
    training, learner, actors = experiment.training, experiment.learner, experiment.actors
    assert training.epochs > 1
    assert training.minibatches > 1
    assert training.clip_range is not None
    assert learner.synchronous
    assert actors.num_envs == learner.batch_size == learner.queue_capacity
    assert experiment.network.width < 256
    assert training.sequence_length is not None
    assert learner.batch_size * actors.unroll_length // training.sequence_length % training.minibatches == 0, (
        "all alike"
    )


@pytest.mark.parametrize("task", PICTURES)
def test_the_laptop_learns_from_pixels_in_a_single_pass(task: str) -> None:
    experiment = parse("", {"task": task, "preset": "laptop"})
    training = experiment.training
    assert (training.epochs, training.minibatches, training.sequence_length, training.clip_range) == (1, 1, None, None)
    assert (training.episodic_bonus, training.center_bonus, training.penalty_on_revisits) == (
        "inverse-sqrt",
        False,
        False,
    )
    assert (experiment.network, experiment.hash) == (NetworkConfig(), HashConfig())
    assert (experiment.actors, experiment.learner) == (ActorConfig(), LearnerConfig())
    assert training != parse("", {"task": task}).training
    assert training.reward_scale == 20


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (
            '[hash]\nkind = "exact"\ncodebook_size = 16',
            "hash.codebook_size is 16, but the hash exact has no such size: leave it out",
        ),
        (
            '[hash]\nkind = "objects"\nsize = [3, 3]',
            "hash.size is .*, but the hash objects has no such size: leave it out",
        ),
    ],
)
def test_what_cannot_be_sized_is_refused(lines: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse(TASK + lines)
