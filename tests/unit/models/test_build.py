"""Which networks there are for which method, hash and width."""

from __future__ import annotations

import pytest
import torch

from leco.config.training import NetworkConfig
from leco.methods.table import METHODS, Hash, Modulation, find_method
from leco.models.build import build
from leco.models.exploration import Dynamics, Rnd
from leco.models.hash_function import make_hash_function
from leco.models.intrinsic import CellHashModule, FeatureModule, HashModule
from leco.models.kinds.minigrid import MiniGridPolicy
from leco.models.kinds.pixels import PixelPolicy
from leco.models.kinds.table import find_kind
from leco.models.seen_codes import SeenCodes
from leco.models.vq import LSHBottleneck, VectorQuantizer

SHAPE, PIXELS, A = (7, 7, 3), (72, 96, 3), 5
KINDS = (None, "vq", "ae-lsh", "dsc", "exact", "objects", "cells", "vq-cells")  # vq-patches: of pictures alone
ROWS = [
    (name, kind) for name, method in METHODS.items() for kind in KINDS if kind is None or method.hash is not Hash.NONE
]
NOVELTIES = {"count": SeenCodes, "noveld": Rnd, "rnd": Rnd, "ride": Dynamics, "agac": MiniGridPolicy}


@pytest.mark.parametrize(("name", "kind"), ROWS)
def test_every_method_has_networks_for_every_hash(name: str, kind: str | None) -> None:
    torch.manual_seed(0)
    method = find_method(name, kind)
    nets = build(method, SHAPE, A, network=NetworkConfig(width=16))
    net = nets.intrinsic
    if method.hash in (Hash.VQ, Hash.AE_LSH):
        assert isinstance(net, HashModule)
        assert isinstance(net.bottleneck, VectorQuantizer if method.hash is Hash.VQ else LSHBottleneck)
    elif method.hash is Hash.VQ_CELLS:
        assert isinstance(net, CellHashModule)
    elif method.modulation is not Modulation.NONE:
        assert isinstance(net, FeatureModule)
    else:
        assert net is None
    if net is not None:
        told = method.modulation is Modulation.REPLACING
        hidden = net.modulator_in.out_features
        assert net.modulator_out.weight.shape == (A, hidden + A + told)
    assert isinstance(nets.novelty, NOVELTIES.get(method.novelty, type(None)))
    coder = make_hash_function(method, find_kind(SHAPE), net and net.eval())
    assert (coder is not None) == method.counts
    view = torch.zeros(2, *SHAPE, dtype=torch.uint8).numpy()
    assert coder is None or coder.codes(view).shape == (2, coder.levels * coder.width)


@pytest.mark.parametrize("width", [1, 64, 256])
def test_a_policy_is_as_wide_as_is_asked_for_and_so_is_its_adversary(width: int) -> None:
    nets = build(find_method("agac"), SHAPE, A, network=NetworkConfig(width=width))
    for policy in (nets.policy, nets.novelty):
        assert isinstance(policy, MiniGridPolicy)
        assert policy.core.weight_ih[0].shape == policy.core.weight_hh[0].shape == (4 * width, width)
        assert policy.policy_head.weight.shape == (A, width)
        state = policy.initial_state(3)
        assert state.shape == (1, 2, 3, width)
        seen = torch.zeros(2, 3, *SHAPE, dtype=torch.uint8)
        output = policy(seen, torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3), torch.zeros(2, 3), state)
        assert output.logits_TBA.shape == (2, 3, A)
        assert output.state.shape == state.shape


def test_a_policy_is_as_wide_as_the_papers_unless_another_is_asked_for() -> None:
    assert build(find_method("no-int"), SHAPE, A).policy.core.hidden_size == 256


@pytest.mark.parametrize("kind", [None, "exact"])
def test_networks_for_pixels(kind: str | None) -> None:
    """The core sees the last action and reward beside features of the width that is asked for."""
    nets = build(find_method("leco", kind), PIXELS, A, network=NetworkConfig(width=32))
    assert isinstance(nets.policy, PixelPolicy)
    assert nets.policy.core.hidden_size == 32 + A + 1
    assert isinstance(nets.intrinsic, HashModule if kind is None else FeatureModule)


def test_nothing_of_a_width_is_in_the_intrinsic_module() -> None:
    narrow, wide = (
        build(find_method("leco", "exact"), SHAPE, A, network=NetworkConfig(width=width)).intrinsic for width in (8, 64)
    )
    assert narrow is not None
    assert wide is not None
    shapes = [{name: p.shape for name, p in net.named_parameters()} for net in (narrow, wide)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("shape", [(8, 8, 3), (15, 96, 3), (64, 257, 3), (64, 64, 0), (64, 64, 33)])
def test_pictures_of_sizes_without_networks_are_refused_with_those_that_have_some(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected pictures of 16 to 256 pixels .* and 1 to 32 channels"):
        build(find_method("leco"), shape, A)


@pytest.mark.parametrize("shape", [(84,), (84, 84), (4, 84, 84, 3)])
def test_what_is_no_picture_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"have shape .*, expected pictures: \[height, width, channels\]"):
        build(find_method("leco"), shape, A)
