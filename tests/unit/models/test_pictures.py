"""Networks and hashes for pictures of any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leco.config.training import HashConfig, NetworkConfig
from leco.methods.table import find_method
from leco.models.build import build
from leco.models.hash_function import make_hash_function
from leco.models.intrinsic import HashModule
from leco.models.kinds.pixels import PixelPolicy
from leco.models.kinds.table import find_kind, networks_of

A = 3
SHAPES = [
    (16, 16, 1),
    (17, 40, 3),
    (24, 32, 4),
    (35, 36, 3),
    (56, 56, 3),
    (72, 96, 3),
    (84, 84, 4),
    (16, 256, 2),
    (256, 144, 32),
]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pictures(shape: tuple[int, ...], count: int = 3) -> torch.Tensor:
    return torch.randint(256, (count, *shape), dtype=torch.uint8)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_policy_tells_pictures_apart(shape: tuple[int, int, int]) -> None:
    policy = build(find_method("no-int"), shape, A, network=NetworkConfig(width=8)).policy
    nothing = torch.zeros(1, 3)
    seen = pictures(shape)
    seen[2] = seen[0]
    out = policy(seen[None], nothing.bool(), nothing.long(), nothing, policy.initial_state(3))
    assert out.logits_TBA.shape == (1, 3, A)
    torch.testing.assert_close(out.logits_TBA[0, 0], out.logits_TBA[0, 2])
    assert not torch.equal(out.logits_TBA[0, 0], out.logits_TBA[0, 1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["vq-only", "ae-lsh", "dsc", "exact", "leco", "rnd", "ride"])
def test_a_method_has_codes_and_networks(name: str, shape: tuple[int, int, int]) -> None:
    method = find_method(name)
    nets = build(method, shape, A, network=NetworkConfig(width=8))
    seen = pictures(shape)
    hash_function = make_hash_function(method, find_kind(shape), nets.intrinsic and nets.intrinsic.eval())
    assert (hash_function is not None) == method.counts
    if hash_function is not None:
        assert hash_function.codes(seen.numpy()).shape == (3, hash_function.width)
        assert hash_function.width <= 256
    if isinstance(nets.intrinsic, HashModule):
        z_NDHW = nets.intrinsic.encode(seen)
        assert z_NDHW.shape[2:] == find_kind(shape).hash_size
        assert nets.intrinsic.decode(z_NDHW).shape == nets.intrinsic.target(seen).shape
        assert nets.intrinsic.value(z_NDHW.flatten(1)).shape == (3,)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_embedding_and_features_have_the_width_that_they_say(shape: tuple[int, int, int]) -> None:
    kind = find_kind(shape)
    embedding, features = networks_of(kind).build_embedding(kind), networks_of(kind).build_features(kind)
    assert embedding(pictures(shape)).shape == (3, embedding.features)
    assert features.network(pictures(shape)).shape == (3, features.width)


@pytest.mark.parametrize(
    ("shape", "small", "image"),
    [
        ((72, 96, 3), (2, 3), (64, 96)),
        ((56, 56, 3), (2, 2), (64, 64)),
        ((84, 84, 4), (3, 3), (96, 96)),
        ((16, 16, 1), (2, 2), (16, 16)),
        ((256, 256, 3), (2, 2), (256, 256)),
    ],
)
def test_a_hash_has_two_sizes(shape: tuple[int, int, int], small: tuple[int, int], image: tuple[int, int]) -> None:
    kind = find_kind(shape)
    assert (kind.hash_size, kind.hash_image) == (small, image)
    for size in (small, (2 * small[0], 2 * small[1])):
        net = build(find_method("vq-only"), shape, A, HashConfig(size=size)).intrinsic
        assert isinstance(net, HashModule)
        assert net.encode(pictures(shape)).shape[2:] == size
        assert net.target(pictures(shape)).shape[2:] == image
    with pytest.raises(ValueError, match=r"hash.size is \[5, 5\], expected"):
        build(find_method("vq-only"), shape, A, HashConfig(size=(5, 5)))


def test_large_pictures_have_a_deeper_encoder_instead_of_a_wider_layer() -> None:
    def parameters(side: int) -> int:
        return sum(each.numel() for each in PixelPolicy(A, 256, shape=(side, side, 3)).encoder.parameters())

    assert parameters(256) < 1.5 * parameters(96)


def test_every_pixel_counts() -> None:
    """Nothing at a border is left out by a picture whose sides are no powers of two."""
    policy = PixelPolicy(A, 8, shape=(37, 50, 3)).double()
    picture = torch.zeros(1, 3, 37, 50, dtype=torch.float64).requires_grad_()
    policy.encoder(picture + torch.rand_like(picture)).sum().backward()
    assert picture.grad is not None
    assert (picture.grad.abs().sum((0, 1))[[0, 0, -1, -1], [0, -1, 0, -1]] > 0).all()


def test_codes_do_not_depend_on_the_other_pictures() -> None:
    method = find_method("vq-only")
    net = build(method, (56, 56, 3), A).intrinsic
    assert net is not None
    hash_function = make_hash_function(method, find_kind((56, 56, 3)), net.eval())
    assert hash_function is not None
    seen = np.random.default_rng(0).integers(0, 256, (6, 56, 56, 3), np.uint8)
    assert hash_function.codes(seen)[2].tolist() == hash_function.codes(seen[2:3])[0].tolist()
