"""The code of an observation: by the method's hash, of the right width, each distinct observation once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from leco.algo.hashes import digest, dsc_code
from leco.config.training import HashConfig
from leco.methods.table import METHODS, find_method
from leco.models.build import build
from leco.models.hash_function import HashFunction, make_hash_function
from leco.models.intrinsic import HashModule
from leco.models.kinds.minigrid import objects_code
from leco.models.kinds.table import find_kind

if TYPE_CHECKING:
    import numpy.typing as npt

SHAPE = (7, 7, 3)


def observations(count: int, distinct: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    random = np.random.default_rng(seed)
    pool = np.stack([random.integers(0, most, (distinct, 7, 7)) for most in (11, 6, 3)], -1).astype(np.uint8)
    return pool[random.integers(0, distinct, count)]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.counts])
def test_codes_are_bytes_of_the_said_width_and_depend_on_each_observation_alone(name: str) -> None:
    torch.manual_seed(1)
    method = find_method(name)
    networks = build(method, SHAPE, 7)
    if networks.intrinsic is not None:
        networks.intrinsic.eval()
    coder = make_hash_function(method, find_kind(SHAPE), networks.intrinsic)
    assert coder is not None
    observation_NO = observations(60, 9)
    code_NW = coder.codes(observation_NO)
    assert code_NW.dtype == np.uint8
    assert code_NW.shape == (60, coder.width)
    for observation_O, code_W in zip(observation_NO, code_NW, strict=True):
        assert coder.codes(observation_O[None]).tolist() == [code_W.tolist()]
    assert len(np.unique(code_NW, axis=0)) > 1


def test_the_code_of_dsc_is_the_picture_at_3_by_3_in_11_levels() -> None:
    coder = make_hash_function(find_method("dsc"), find_kind(SHAPE), None)
    assert coder is not None
    observation_NO = observations(5, 5)
    expected = dsc_code(torch.from_numpy(observation_NO), size=(3, 3), levels=11, maximum=(10, 5, 2)).numpy()
    assert coder.width == 27
    assert coder.codes(observation_NO).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["exact", "vq-only", "leco", "leco-naive", "noveld", "dsc"])
def test_the_code_of_exact_is_the_digest_of_the_whole_observation(name: str) -> None:
    for shape in (SHAPE, (72, 96, 3)):
        coder = make_hash_function(find_method(name, "exact"), find_kind(shape), None)
        assert coder is not None
        assert coder.width == 16
        observation_NO = np.random.default_rng(0).integers(0, 3, (6, *shape)).astype(np.uint8)
        expected = digest(torch.from_numpy(observation_NO)).numpy()
        assert coder.codes(observation_NO).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["objects", "vq-only", "leco", "agac"])
def test_the_code_of_objects_is_the_set_of_those_in_view(name: str) -> None:
    coder = make_hash_function(find_method(name, "objects"), find_kind(SHAPE), None)
    assert coder is not None
    assert coder.width == 35
    observation_NO = observations(20, 6)
    assert coder.codes(observation_NO).tolist() == objects_code(torch.from_numpy(observation_NO)).tolist()


def test_a_method_with_another_hash_has_the_codes_of_that_hash() -> None:
    """LECO's modulator has networks of its own then, which no code depends on."""
    torch.manual_seed(1)
    method = find_method("leco", "dsc")
    coder = make_hash_function(
        method, find_kind(SHAPE), build(method, SHAPE, 7).intrinsic, HashConfig(kind="dsc", size=(2, 2), dsc_levels=4)
    )
    assert coder is not None
    expected = make_hash_function(find_method("dsc"), find_kind(SHAPE), None, HashConfig(size=(2, 2), dsc_levels=4))
    assert expected is not None
    assert coder.codes(observations(20, 9)).tolist() == expected.codes(observations(20, 9)).tolist()


@pytest.mark.parametrize(
    ("name", "shape", "size", "width", "below"),
    [
        ("vq-only", SHAPE, HashConfig(size=(2, 4), codebook_size=16), 8, 16),
        ("vq-only", SHAPE, HashConfig(size=(4, 4)), 16, 8),
        ("vq-only", (72, 96, 3), HashConfig(size=(4, 6), codebook_size=36), 24, 36),
        ("vq-only", (72, 96, 3), HashConfig(), 6, 24),
        ("ae-lsh", SHAPE, HashConfig(bits=9), 2, 256),
        ("ae-lsh", (72, 96, 3), HashConfig(bits=82), 11, 256),
        ("dsc", SHAPE, HashConfig(size=(2, 2), dsc_levels=4), 12, 4),
        ("dsc", (72, 96, 3), HashConfig(dsc_levels=8), 18, 8),
    ],
)
def test_codes_have_the_size_that_is_asked_for(
    name: str, shape: tuple[int, ...], size: HashConfig, width: int, below: int
) -> None:
    torch.manual_seed(1)
    method = find_method(name)
    net = build(method, shape, 7, size).intrinsic
    coder = make_hash_function(method, find_kind(shape), net and net.eval(), size)
    assert coder is not None
    assert coder.width == width
    codes = coder.codes(np.random.default_rng(0).integers(0, 3, (5, *shape)).astype(np.uint8))
    assert codes.shape == (5, width)
    assert codes.max() < below
    if isinstance(net, HashModule):  # the decoder gives back what the encoder saw
        seen = torch.zeros(2, *shape, dtype=torch.uint8)
        assert net.decode(net.bottleneck(net.encode(seen)).z_NDHW).shape == net.target(seen).shape


def test_a_learned_hash_of_pixels_has_two_sizes() -> None:
    with pytest.raises(ValueError, match=r"hash.size is \[3, 3\], expected \[2, 3\] or \[4, 6\] for pixels"):
        build(find_method("leco"), (72, 96, 3), 7, HashConfig(size=(3, 3)))


def test_each_distinct_observation_is_hashed_once() -> None:
    hashed: list[int] = []

    def hash_(observation_UO: torch.Tensor) -> torch.Tensor:
        hashed.append(len(observation_UO))
        return observation_UO.flatten(1)[:, :4]

    observation_NO = observations(500, 16)
    codes = HashFunction(4, hash_).codes(observation_NO)
    assert hashed == [16]
    assert codes.tolist() == observation_NO.reshape(500, -1)[:, :4].tolist()


def test_a_learned_hash_follows_its_parameters() -> None:
    torch.manual_seed(1)
    method = find_method("leco")
    net = build(method, SHAPE, 7).intrinsic
    assert net is not None
    net.eval()
    coder = make_hash_function(method, find_kind(SHAPE), net)
    assert coder is not None
    before = coder.codes(observations(20, 20))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter))
    assert (coder.codes(observations(20, 20)) != before).any()


@pytest.mark.parametrize("name", ["no-int", "lirpg"])
def test_a_method_that_counts_nothing_has_no_codes(name: str) -> None:
    assert make_hash_function(find_method(name), find_kind(SHAPE), None) is None


def test_the_modulator_alone_counts_nothing_whatever_the_hash() -> None:
    assert make_hash_function(find_method("lirpg", "exact"), find_kind(SHAPE), None) is None


def test_a_learned_hash_needs_its_networks() -> None:
    with pytest.raises(ValueError, match="method 'leco' has a learned hash: its networks are needed"):
        make_hash_function(find_method("leco"), find_kind(SHAPE), None)
    without_a_hash = build(find_method("leco", "exact"), SHAPE, 7).intrinsic
    with pytest.raises(ValueError, match="method 'exact' has a learned hash: its networks are needed"):
        make_hash_function(find_method("exact", "ae-lsh"), find_kind(SHAPE), without_a_hash)
