"""The intrinsic module: its shapes, and that distinct observations with multiplicities train it like all of them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch import Tensor
from training_case import awaken

from leco.algo.dedup import distinct
from leco.nets.intrinsic import Intrinsic, dmlab_intrinsic, minigrid_intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

ACTIONS = 7


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def minigrid_views(n: int, different: int) -> Tensor:
    """Like real ones: mostly unseen (0, 0, 0), floor and grey walls, some keys, balls and doors, many repeats."""
    kinds = torch.tensor([[0, 0, 0]] * 4 + [[1, 0, 0], [2, 5, 0]] * 3 + [[5, 2, 0], [6, 4, 0], [4, 1, 2], [10, 0, 1]])
    views = kinds[torch.randint(len(kinds), (different, 7, 7))].to(torch.uint8)
    return views[torch.randint(different, (n,))]


def dmlab_pictures(n: int, different: int) -> Tensor:
    return torch.randint(256, (different, 72, 96, 3), dtype=torch.uint8)[torch.randint(different, (n,))]


def nearest(net: Intrinsic, z_NDHW: Tensor) -> Tensor:
    """The codes [N, H W]."""
    vectors_KD = net.bottleneck.get_parameter("vectors")
    z_NPD = z_NDHW.flatten(2).transpose(1, 2)
    return torch.cdist(z_NPD, vectors_KD.expand(len(z_NPD), -1, -1)).argmin(2)


def close(actual: Tensor | None, expected: Tensor) -> None:
    """To 1e-10 of the largest element."""
    assert actual is not None
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10 * float(expected.abs().max()))


class Case(NamedTuple):
    """A kind of observation: what is made for it, and the numbers of algorithm.md."""

    make: Callable[[int], Intrinsic]
    observe: Callable[[int, int], Tensor]
    codes: int
    z: tuple[int, ...]
    image: tuple[int, ...]
    batch: tuple[int, int]


CASES = [
    pytest.param(Case(minigrid_intrinsic, minigrid_views, 8, (64, 3, 3), (3, 12, 12), (50, 12)), id="minigrid"),
    pytest.param(Case(dmlab_intrinsic, dmlab_pictures, 24, (64, 2, 3), (3, 64, 96), (8, 4)), id="dmlab"),
]


@pytest.mark.parametrize("case", CASES)
def test_shapes(case: Case) -> None:
    net, observation_N = case.make(ACTIONS), case.observe(4, 4)
    z = net.encode(observation_N)
    assert z.shape == (4, *case.z)
    assert net.decode(z).shape == net.target(observation_N).shape == (4, *case.image)
    assert net.decode(z).abs().max() < 1
    vectors_KD = net.bottleneck.get_parameter("vectors")
    assert vectors_KD.shape == (case.codes, 64)
    assert 0.9 / case.codes < vectors_KD.abs().max() <= 1 / case.codes
    assert net.modulate(z.flatten(1), torch.tensor([0, 1, 2, 6])).shape == (4, ACTIONS)
    assert net.value(z.flatten(1)).shape == (4,)


@pytest.mark.parametrize("case", CASES)
def test_distinct_observations_with_multiplicities_train_like_all_of_them(case: Case) -> None:
    observation_N = case.observe(*case.batch)
    found = distinct(observation_N)
    padding = int((found.multiplicity_U == 0).sum())
    assert padding > 0
    assert found.multiplicity_U[0] != 1 + padding  # else the padding, which repeats the first, would do for the weights
    plain = case.make(ACTIONS).double()
    weighted = copy.deepcopy(plain)
    losses = []
    for net, observation, weight in (
        (plain, observation_N, None),
        (weighted, found.observation_UO, found.multiplicity_U),
    ):
        rebuilt = net.decode(net.encode(observation, weight), weight)
        error_N = (rebuilt - net.target(observation)).square().flatten(1).mean(1)
        loss = error_N.mean() if weight is None else weight.double() @ error_N / len(observation_N)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-10, atol=0)
    trained = 0
    for (name, expected), actual in zip(plain.named_parameters(), weighted.parameters(), strict=True):
        if name.startswith(("encoder", "decoder")):
            assert expected.grad is not None
            assert expected.grad.abs().max() > 0
            close(actual.grad, expected.grad)
            trained += 1
    assert trained > 10
    for wanted, kept in zip(plain.buffers(), weighted.buffers(), strict=True):
        close(kept.double(), wanted.double())


def test_minigrid_channels_are_scaled_by_their_maximum() -> None:
    net = minigrid_intrinsic(ACTIONS)
    greatest = torch.tensor([10, 5, 2], dtype=torch.uint8).expand(1, 7, 7, 3)
    torch.testing.assert_close(net.target(greatest), torch.ones(1, 3, 12, 12))
    torch.testing.assert_close(net.target(torch.zeros_like(greatest)), -torch.ones(1, 3, 12, 12))
    torch.testing.assert_close(net.target(greatest // 2)[0, :, 0, 0], torch.tensor([0.0, -0.2, 0.0]))
    assert net.target(minigrid_views(50, 50)).abs().max() <= 1


def test_dmlab_pixels_are_scaled_to_one() -> None:
    net = dmlab_intrinsic(ACTIONS)
    white = torch.full((1, 72, 96, 3), 255, dtype=torch.uint8)
    torch.testing.assert_close(net.target(white), torch.ones(1, 3, 64, 96))
    torch.testing.assert_close(net.target(white * 0), -torch.ones(1, 3, 64, 96))


def test_an_image_keeps_its_orientation_and_its_channels() -> None:
    """What is in the last row and the first column of the second channel stays there."""
    view = torch.zeros(1, 7, 7, 3, dtype=torch.uint8)
    view[0, 6, 0, 1] = 5
    image = minigrid_intrinsic(ACTIONS).target(view)[0]
    assert image[1, 11, 0] == 1
    assert max(image[1, 0].max(), image[1, :, 11].max(), image[0].max(), image[2].max()) < -0.99


def test_modulator_and_value_begin_at_zero_unless_the_modulator_is_the_whole_bonus() -> None:
    z_NF, action_N = torch.randn(5, 576), torch.arange(5)
    net = minigrid_intrinsic(ACTIONS)
    assert (net.modulate(z_NF, action_N) == 0).all()
    assert (net.value(z_NF) == 0).all()
    told = minigrid_intrinsic(ACTIONS, told_novelty=True)
    assert (told.modulate(z_NF, action_N, novelty_N=torch.ones(5)) != 0).all()


def test_the_scores_depend_on_the_observation_and_the_action() -> None:
    net = awaken(minigrid_intrinsic(ACTIONS))
    z_NF = torch.randn(1, 576).expand(ACTIONS, -1)
    scores_NA = net.modulate(z_NF, torch.arange(ACTIONS))
    weight, bias = net.modulator_out.weight, net.modulator_out.bias
    hidden = torch.relu(net.modulator_in(z_NF[0]))
    for action in range(ACTIONS):
        torch.testing.assert_close(scores_NA[action], weight[:, :512] @ hidden + weight[:, 512 + action] + bias)
    assert not torch.allclose(net.modulate(z_NF + 1, torch.arange(ACTIONS)), scores_NA)


def test_a_modulator_that_is_told_the_novelty_answers_to_it() -> None:
    net = minigrid_intrinsic(ACTIONS, told_novelty=True)
    z_NF, action_N = torch.randn(1, 576).expand(3, -1), torch.full((3,), 2)
    scores_NA = net.modulate(z_NF, action_N, novelty_N=torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(scores_NA[1] - scores_NA[0], 0.5 * net.modulator_out.weight[:, -1])
    torch.testing.assert_close(scores_NA[2] - scores_NA[0], net.modulator_out.weight[:, -1])


def test_the_modulator_and_the_value_train_the_encoder() -> None:
    net = awaken(minigrid_intrinsic(ACTIONS))
    z_NF = net.encode(minigrid_views(8, 8)).flatten(1)
    first = next(net.encoder.parameters())
    for output in (net.modulate(z_NF, torch.zeros(8, dtype=torch.int64))[:, 0], net.value(z_NF)):
        (gradient,) = torch.autograd.grad(output.square().sum(), first, retain_graph=True)
        assert gradient.abs().max() > 0


def test_forward_is_deterministic() -> None:
    observation_N = minigrid_views(40, 20)
    net = minigrid_intrinsic(ACTIONS)
    other = copy.deepcopy(net)
    for _ in range(2):
        assert torch.equal(net.decode(net.encode(observation_N)), other.decode(other.encode(observation_N)))


def test_codes_in_evaluation_do_not_depend_on_the_rest_of_the_batch() -> None:
    net = minigrid_intrinsic(ACTIONS)
    observation_N = minigrid_views(24, 24)
    for _ in range(5):
        net.encode(observation_N)
    net.eval()
    before = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        together = net.encode(observation_N)
        for size in (1, 7):
            apart = torch.cat([net.encode(part) for part in observation_N.split(size)])  # type: ignore[no-untyped-call]
            torch.testing.assert_close(apart, together)
            assert torch.equal(nearest(net, apart), nearest(net, together))
    assert len(set(nearest(net, together).flatten().tolist())) > 1
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_wrong_shapes_are_refused() -> None:
    net = minigrid_intrinsic(ACTIONS)
    with pytest.raises(ValueError, match=r"observations must have shape \[N, 7, 7, 3\], not \[2, 3, 7, 7\]"):
        net.encode(torch.zeros(2, 3, 7, 7, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"z must have shape \[N, 64, 3, 3\], not \[2, 64, 2, 3\]"):
        net.decode(torch.zeros(2, 64, 2, 3))
    with pytest.raises(ValueError, match=r"z must have shape \[N, 576\], not \[2, 64, 3, 3\]"):
        net.value(torch.zeros(2, 64, 3, 3))
    with pytest.raises(ValueError, match=r"actions must have shape \[2\], one a row of z, not \[3\]"):
        net.modulate(torch.zeros(2, 576), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="this modulator is not told the novelty"):
        net.modulate(torch.zeros(2, 576), torch.zeros(2, dtype=torch.int64), novelty_N=torch.zeros(2))
    with pytest.raises(ValueError, match="this modulator is told the novelty"):
        minigrid_intrinsic(ACTIONS, told_novelty=True).modulate(torch.zeros(2, 576), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"weights must have shape \[2\], one a sample, not \[3\]"):
        net.encode(torch.zeros(2, 7, 7, 3, dtype=torch.uint8), torch.ones(3))
