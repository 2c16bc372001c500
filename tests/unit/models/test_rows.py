"""Networks and hashes for observations that are rows of bytes: numbers, an image with numbers, and masks of actions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from leco.config.training import HashConfig, NetworkConfig
from leco.learning.state import init
from leco.methods.table import METHODS, Hash, find_method
from leco.models.build import build
from leco.models.fused_step import make_step_fn
from leco.models.hash_function import make_hash_function
from leco.models.kinds.parts import image_of, numbers_of, without_mask
from leco.models.kinds.table import find_kind
from leco.types import ObservationLayout as Layout

A, N = 4, 5
LAYOUTS = [
    Layout(None, 3),
    Layout(None, 3, A),
    Layout(None, 300),
    Layout((16, 20, 1), 2),
    Layout((16, 20, 3), 2, A),
    Layout((24, 32, 3), 0, A),
    Layout((7, 7, 3), 0, A),
]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def rows(layout: Layout, count: int = N, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Observations, of which the last equals the first but for its mask."""
    random = np.random.default_rng(seed)
    parts = [random.integers(0, 4, (count, layout.image_bytes)).astype(np.uint8)]
    parts.append(random.normal(size=(count, layout.numbers)).astype("<f4").view(np.uint8))
    made = np.concatenate(parts, 1)
    made[-1] = made[0]
    mask = np.zeros((count, layout.actions), np.uint8)
    mask[:, 1:3] = 1
    mask[-1] = 1
    return np.concatenate([made, mask], 1).reshape(count, *layout.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_parts_of_a_row_are_what_was_put_together(layout: Layout) -> None:
    seen, kind = rows(layout), find_kind(layout)
    given = torch.from_numpy(seen)
    flat = seen.reshape(N, -1)
    image, numbers = image_of(kind, given), numbers_of(kind, given)
    assert (image is None, numbers is None) == (layout.image is None, layout.numbers == 0)
    if image is not None:
        np.testing.assert_array_equal(image.flatten(1), flat[:, : layout.image_bytes])
    if numbers is not None:
        end = layout.image_bytes + 4 * layout.numbers
        np.testing.assert_array_equal(numbers, flat[:, layout.image_bytes : end].copy().view("<f4"))
        np.testing.assert_array_equal(numbers_of(kind, given[1:]), numbers[1:])  # at another place
    bare = without_mask(kind, given)
    assert bare.shape[1:] == Layout(layout.image, layout.numbers).shape


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_networks_and_codes_that_know_no_mask(layout: Layout, name: str) -> None:
    kind, method = find_kind(layout), find_method(name)
    if method.hash is Hash.OBJECTS and not kind.has_cells:
        pytest.skip("objects are counted in cells")
    nets = build(method, layout, A, network=NetworkConfig(width=8))
    seen = rows(layout)
    hash_function = make_hash_function(method, kind, nets.intrinsic and nets.intrinsic.eval())
    if hash_function is not None:
        codes = hash_function.codes(seen)
        assert codes.shape == (N, hash_function.width * hash_function.levels)
        assert hash_function.width <= 256
        np.testing.assert_array_equal(codes[-1], codes[0])
    if nets.intrinsic is not None:
        z = nets.intrinsic.encode(torch.from_numpy(seen)).flatten(1)
        torch.testing.assert_close(z[-1], z[0])
        assert nets.intrinsic.value(z).shape == (N,)
    assert init(nets).policy


@pytest.mark.parametrize("layout", LAYOUTS)
def test_acting_gives_what_the_policy_gives(layout: Layout) -> None:
    policy = build(find_method("no-int"), layout, A, network=NetworkConfig(width=8)).policy
    seen = torch.from_numpy(rows(layout))
    nothing = torch.zeros(N)
    inputs = (nothing.bool(), nothing.long() - 1, nothing)
    with torch.no_grad():
        out = policy(seen[None], *(each[None] for each in inputs), policy.initial_state(N))
        logits_EA, state = make_step_fn(policy)(policy.initial_state(N), seen, *inputs)
        indexed = policy(
            seen, *(each[None] for each in inputs), policy.initial_state(N), index_TB=torch.arange(N).flip(0)[None]
        )
    torch.testing.assert_close(logits_EA, out.logits_TBA[0])
    torch.testing.assert_close(state, out.state)
    torch.testing.assert_close(indexed.logits_TBA[0].flip(0), out.logits_TBA[0])
    forbidden = (logits_EA == -1e9).tolist()
    assert forbidden == [([True, False, False, True] if layout.actions else [False] * A)] * (N - 1) + [[False] * A]


def test_numbers_are_counted_in_bins() -> None:
    layout = Layout(None, 2)
    hash_function = make_hash_function(find_method("dsc"), find_kind(layout), None, HashConfig(dsc_levels=4))
    assert hash_function is not None
    seen = np.array([[0.1, -0.1], [0.2, -0.3], [0.8, 0.1], [99, -99]], "<f4").view(np.uint8)
    # Bins of tanh: -1, -0.5, 0, 0.5, 1.
    assert hash_function.codes(seen).tolist() == [[2, 1], [2, 1], [3, 2], [3, 0]]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout((16, 16, 3), 300), "300 numbers beside an image, expected at most 256"),
        (Layout((8, 8, 3), 2), "expected pictures of 16 to 256 pixels"),
    ],
)
def test_what_no_network_reads_is_refused(layout: Layout, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_kind(layout)
