"""Tests of how observations of any space become bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from leco.envs.gymnasium.observations import Encoder
from leco.types import ObservationLayout


def numbers(encoder: Encoder, observation: Any) -> list[float]:
    found: list[float] = encoder.encode(observation).view("<f4").tolist()
    return found


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((84, 96), (84, 96, 1)),
        ((84, 96, 3), (84, 96, 3)),
        ((4, 84, 96), (84, 96, 4)),
        ((4, 84, 96, 3), (84, 96, 12)),
        ((7, 7, 3), (7, 7, 3)),
    ],
)
def test_pictures_stay_bytes_with_their_channels_last(shape: tuple[int, ...], image: tuple[int, int, int]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    encoder = Encoder(space)
    assert encoder.layout == ObservationLayout(image)
    space.seed(0)
    seen = space.sample()
    found = encoder.encode(seen)
    assert found.shape == image
    assert found.dtype == np.uint8
    assert sorted(found.ravel()) == sorted(seen.ravel())
    if shape == (4, 84, 96, 3):
        np.testing.assert_array_equal(found[:, :, 3:6], seen[1])
    if shape == (4, 84, 96):
        np.testing.assert_array_equal(found[:, :, 1], seen[1])


def test_pictures_of_other_numbers_become_bytes() -> None:
    encoder = Encoder(spaces.Box(0.0, 1.0, (16, 20, 3), np.float32))
    assert encoder.layout.image == (16, 20, 3)
    seen = np.full((16, 20, 3), 0.5, np.float32)
    seen[0, 0] = (0, 1, 1.7)
    found = encoder.encode(seen)
    assert found[0, 0].tolist() == [0, 255, 255]
    assert found[1, 1].tolist() == [128] * 3


def test_numbers_are_scaled_by_their_bounds_and_by_symlog_without() -> None:
    low = np.array([-4.0, -np.inf, 0.0, -3e38], np.float32)
    high = np.array([4.0, np.inf, 10.0, 3e38], np.float32)
    encoder = Encoder(spaces.Box(low, high, dtype=np.float32))
    assert encoder.layout == ObservationLayout(None, 4)
    assert encoder.layout.shape == (16,)
    assert numbers(encoder, np.array([2.0, -np.e + 1, 10.0, 0.0])) == pytest.approx([0.5, -1.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("space", "observation", "expected"),
    [
        (spaces.Discrete(4), 2, [0, 0, 1, 0]),
        (spaces.Discrete(3, start=-1), -1, [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 0], [0, 1, 1, 0, 0]),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1]),
        (spaces.Box(0, 255, (3,), np.uint8), [0, 255, 51], [-1, 1, -0.6]),
        (spaces.Box(0, 9, (2, 2), np.int64), [[0, 9], [9, 0]], [-1, 1, 1, -1]),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,))]), (1, [0.5]), [0, 1, 0.5]),
        (spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2))), {"a": {"b": 0}}, [1, 0]),
    ],
)
def test_everything_else_is_numbers(space: Any, observation: Any, expected: list[float]) -> None:
    assert numbers(Encoder(space), observation) == pytest.approx(expected)


def test_a_picture_numbers_and_a_mask_share_a_row() -> None:
    space = spaces.Dict(speed=spaces.Box(-2, 2, (1,)), picture=spaces.Box(0, 255, (16, 16, 1), np.uint8))
    encoder = Encoder(space, actions=3)
    assert encoder.layout == ObservationLayout((16, 16, 1), 1, 3)
    picture = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    row = encoder.encode({"picture": picture, "speed": [1.0]}, np.array([True, False, True]))
    assert row.shape == encoder.layout.shape == (256 + 4 + 3,)
    np.testing.assert_array_equal(row[:256], picture.ravel())
    assert row[256:260].view("<f4").tolist() == [0.5]
    assert row[260:].tolist() == [1, 0, 1]


def test_pictures_of_one_size_are_one_and_of_two_are_refused() -> None:
    small, large = spaces.Box(0, 255, (16, 16, 1), np.uint8), spaces.Box(0, 255, (32, 16, 1), np.uint8)
    assert Encoder(spaces.Dict(a=small, b=small)).layout == ObservationLayout((16, 16, 2))
    with pytest.raises(ValueError, match="images of different sizes, 16 x 16 and 32 x 16"):
        Encoder(spaces.Dict(a=small, b=large))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "its observation is a text, which no network here reads: take it away with a wrapper"),
        (spaces.Dict(mission=spaces.Text(5)), "the part 'mission' of its observation is a text"),
        (spaces.Sequence(spaces.Discrete(3)), "its observation is a Sequence"),
        (spaces.Discrete(20_000), "20000 numbers, and at most 16384"),
    ],
)
def test_what_no_network_reads_is_refused_in_a_sentence(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Encoder(space)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="a number that is not finite"):
        Encoder(spaces.Box(-np.inf, np.inf, (2,))).encode(np.array([0, bad]))
