"""Observations of any space as bytes: an image, float32 numbers, or both (`leco.types.ObservationLayout`).

Numbers are brought to the size of 1 here, so that networks and hashes need not know where they came from: by their bounds where
they have some, by symlog (sign(x) log(1 + |x|), Hafner et al. 2023) where they have none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from leco.types import ObservationLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CELLS = (7, 7, 3)  # what MiniGrid shows: an image in which numbers are categories
SMALLEST_IMAGE = 16  # pixels of a side; what is smaller is numbers
MOST_NUMBERS = 16_384
WIDEST = 1e6  # bounds further apart than that say nothing of what is seen


class Part(NamedTuple):
    """A part of an observation.

    path     the keys that lead to it
    image    its height, width and channels; None if it is numbers
    numbers  how many
    read     its value to bytes, or to float32 numbers
    """

    path: tuple[Any, ...]
    image: tuple[int, int, int] | None
    numbers: int
    read: Callable[[Any], npt.NDArray[Any]]


class Encoder:
    """Turns the observations of a space into bytes.

    Args:
        space: Of the observations.
        actions: How many actions there are, if it is said which of them may be taken; 0 otherwise.

    Raises:
        ValueError: there is something in it that no network of leco reads.
    """

    def __init__(self, space: spaces.Space[Any], actions: int = 0) -> None:
        parts = list(_parts(space, ()))
        self._images = [part for part in parts if part.image is not None]
        self._numbers = [part for part in parts if part.image is None]
        numbers = sum(part.numbers for part in self._numbers)
        if numbers > MOST_NUMBERS:
            raise ValueError(
                f"its observations have {numbers} numbers, and at most {MOST_NUMBERS} can be learned from: take some away "
                "with a wrapper, such as gymnasium.wrappers:FilterObservation"
            )
        self.layout = ObservationLayout(_joined([part.image for part in self._images if part.image]), numbers, actions)

    def encode(self, observation: Any, mask: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.uint8]:
        """One observation, and which actions may be taken."""
        images = [part.read(_at(observation, part.path)) for part in self._images]
        if not self._numbers and mask is None:
            return np.concatenate(images, -1) if len(images) > 1 else images[0]
        row = [np.concatenate(images, -1).ravel()] if images else []
        for part in self._numbers:
            numbers = part.read(_at(observation, part.path))
            if not math.isfinite(numbers.sum()):  # they are of the size of 1: a sum of finite ones is finite
                raise ValueError(f"an observation has a number that is not finite: {observation!r:.300}")
            row.append(numbers.astype("<f4", copy=False).view(np.uint8))
        if mask is not None:
            row.append(mask.astype(np.uint8))
        return np.concatenate(row) if len(row) > 1 else row[0]


def _at(observation: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        observation = observation[key]
    return observation


def _parts(space: spaces.Space[Any], path: tuple[Any, ...]) -> Iterator[Part]:
    """The parts of a space, those of dictionaries and tuples one after the other."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _parts(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _parts(inner, (*path, index))
    elif isinstance(space, spaces.Box):
        yield _box(space, path)
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        yield _categories(space, path)
    elif isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        yield Part(path, None, size, lambda value: np.asarray(value, np.float32).ravel())
    else:
        what = "its observation" if not path else f"the part {path[0]!r} of its observation"
        kind = "a text" if isinstance(space, spaces.Text) else f"a {type(space).__name__}"
        raise ValueError(  # noqa: TRY004  # of an environment, not of a program
            f"{what} is {kind}, which no network here reads: take it away with a wrapper, for example "
            "gymnasium.wrappers:FilterObservation(filter_keys=['image'])"
        )


def _categories(space: spaces.Discrete | spaces.MultiDiscrete, path: tuple[Any, ...]) -> Part:
    """One-hot."""
    first = np.ravel(space.start)
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec).astype(int)
    places = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    total = int(sizes.sum())

    def read(value: Any) -> npt.NDArray[np.float32]:
        numbers = np.zeros(total, np.float32)
        numbers[places + np.ravel(value) - first] = 1
        return numbers

    return Part(path, None, total, read)


def _box(space: spaces.Box, path: tuple[Any, ...]) -> Part:
    arrange, shape = _arranged(space.shape)
    bounded = np.isfinite(space.low).all() and np.isfinite(space.high).all() and np.ptp([space.low, space.high]) > 0
    even = bounded and np.ptp(space.low) == np.ptp(space.high) == 0
    if shape is not None and space.dtype == np.uint8:
        return Part(path, shape, 0, lambda value: arrange(np.asarray(value)))
    if shape is not None and even and shape != CELLS:
        low, width = float(space.low.flat[0]), float(space.high.flat[0] - space.low.flat[0])

        def to_bytes(value: Any) -> npt.NDArray[np.uint8]:
            share = (np.asarray(value, np.float32) - low) * (255 / width)
            return arrange(np.clip(np.rint(share), 0, 255).astype(np.uint8))

        return Part(path, shape, 0, to_bytes)
    return Part(path, None, int(np.prod(space.shape)), _scaled(space))


def _scaled(space: spaces.Box) -> Callable[[Any], npt.NDArray[np.float32]]:
    """Numbers from -1 to 1 by their bounds; by symlog where there are none that say anything."""
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low
    bounded = np.isfinite(width) & (width > 0) & (width < WIDEST)
    at = np.flatnonzero(bounded)
    scale = 2 / width[at]
    shift = -1 - scale * low[at]

    def by_bounds(value: Any) -> npt.NDArray[np.float32]:
        numbers: npt.NDArray[np.float64] = np.asarray(value, np.float64).ravel() * scale + shift
        return numbers.astype(np.float32)

    def read(value: Any) -> npt.NDArray[np.float32]:
        value = np.asarray(value, np.float64).ravel()
        numbers = np.copysign(np.log1p(np.abs(value)), value)
        numbers[at] = value[at] * scale + shift
        narrow: npt.NDArray[np.float32] = numbers.astype(np.float32)
        return narrow

    return by_bounds if bounded.all() else read


def _arranged(
    shape: tuple[int, ...],
) -> tuple[Callable[[npt.NDArray[Any]], npt.NDArray[Any]], tuple[int, int, int] | None]:
    """How an array becomes height x width x channels, and what these are; None if it is no image.

    Frames that are stacked, and colours before rows, become channels.
    """
    if shape == CELLS:
        return np.ascontiguousarray, shape
    if len(shape) == 2:
        found = (*shape, 1)
        arrange: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda x: x[:, :, None]  # noqa: E731
    elif len(shape) == 3 and shape[0] < shape[2]:
        found, arrange = (*shape[1:], shape[0]), lambda x: np.ascontiguousarray(x.transpose(1, 2, 0))
    elif len(shape) == 3:
        found, arrange = shape, np.ascontiguousarray
    elif len(shape) == 4:
        found = (shape[1], shape[2], shape[0] * shape[3])
        arrange = lambda x: x.transpose(1, 2, 0, 3).reshape(found)  # noqa: E731
    else:
        return np.ascontiguousarray, None
    return arrange, found if min(found[:2]) >= SMALLEST_IMAGE else None


def _joined(images: list[tuple[int, int, int]]) -> tuple[int, int, int] | None:
    """Several images of one size are one with more channels."""
    if not images:
        return None
    sizes = {image[:2] for image in images}
    if len(sizes) > 1:
        raise ValueError(
            f"its observations have images of different sizes, {' and '.join(f'{h} x {w}' for h, w in sorted(sizes))}: leave "
            "one, or resize them, with a wrapper"
        )
    [(height, width)] = sizes
    return height, width, sum(image[2] for image in images)
