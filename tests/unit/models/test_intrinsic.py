"""The intrinsic module: its shapes, and that distinct observations with multiplicities train it like all of them."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch import Tensor

from leco.algo.dedup import distinct
from leco.models.intrinsic import FeatureModule, HashModule, build_feature_module, build_hash_module
from leco.models.kinds.minigrid import CellFeatures
from leco.models.kinds.table import MINIGRID, PIXELS
from support.training_case import awaken

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


def nearest(net: HashModule, z_NDHW: Tensor) -> Tensor:
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

    make: Callable[[int], HashModule]
    observe: Callable[[int, int], Tensor]
    codes: int
    z: tuple[int, ...]
    image: tuple[int, ...]
    batch: tuple[int, int]


CASES = [
    pytest.param(
        Case(partial(build_hash_module, MINIGRID), minigrid_views, 8, (64, 3, 3), (3, 12, 12), (50, 12)), id="minigrid"
    ),
    pytest.param(
        Case(partial(build_hash_module, PIXELS), dmlab_pictures, 24, (64, 2, 3), (3, 64, 96), (8, 4)), id="dmlab"
    ),
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
    net = build_hash_module(MINIGRID, ACTIONS)
    greatest = torch.tensor([10, 5, 2], dtype=torch.uint8).expand(1, 7, 7, 3)
    torch.testing.assert_close(net.target(greatest), torch.ones(1, 3, 12, 12))
    torch.testing.assert_close(net.target(torch.zeros_like(greatest)), -torch.ones(1, 3, 12, 12))
    torch.testing.assert_close(net.target(greatest // 2)[0, :, 0, 0], torch.tensor([0.0, -0.2, 0.0]))
    assert net.target(minigrid_views(50, 50)).abs().max() <= 1


def test_dmlab_pixels_are_scaled_to_one() -> None:
    net = build_hash_module(PIXELS, ACTIONS)
    white = torch.full((1, 72, 96, 3), 255, dtype=torch.uint8)
    torch.testing.assert_close(net.target(white), torch.ones(1, 3, 64, 96))
    torch.testing.assert_close(net.target(white * 0), -torch.ones(1, 3, 64, 96))


def test_an_image_keeps_its_orientation_and_its_channels() -> None:
    """What is in the last row and the first column of the second channel stays there."""
    view = torch.zeros(1, 7, 7, 3, dtype=torch.uint8)
    view[0, 6, 0, 1] = 5
    image = build_hash_module(MINIGRID, ACTIONS).target(view)[0]
    assert image[1, 11, 0] == 1
    assert max(image[1, 0].max(), image[1, :, 11].max(), image[0].max(), image[2].max()) < -0.99


def test_modulator_and_value_begin_at_zero_unless_the_modulator_is_the_whole_bonus() -> None:
    z_NF, action_N = torch.randn(5, 576), torch.arange(5)
    net = build_hash_module(MINIGRID, ACTIONS)
    assert (net.modulate(z_NF, action_N) == 0).all()
    assert (net.value(z_NF) == 0).all()
    told = build_hash_module(MINIGRID, ACTIONS, condition_on_novelty=True)
    assert (told.modulate(z_NF, action_N, novelty_N=torch.ones(5)) != 0).all()


def test_the_scores_depend_on_the_observation_and_the_action() -> None:
    net = awaken(build_hash_module(MINIGRID, ACTIONS))
    z_NF = torch.randn(1, 576).expand(ACTIONS, -1)
    scores_NA = net.modulate(z_NF, torch.arange(ACTIONS))
    weight, bias = net.modulator_out.weight, net.modulator_out.bias
    hidden = torch.relu(net.modulator_in(z_NF[0]))
    for action in range(ACTIONS):
        torch.testing.assert_close(scores_NA[action], weight[:, :512] @ hidden + weight[:, 512 + action] + bias)
    assert not torch.allclose(net.modulate(z_NF + 1, torch.arange(ACTIONS)), scores_NA)


def test_a_modulator_that_is_told_the_novelty_answers_to_it() -> None:
    net = build_hash_module(MINIGRID, ACTIONS, condition_on_novelty=True)
    z_NF, action_N = torch.randn(1, 576).expand(3, -1), torch.full((3,), 2)
    scores_NA = net.modulate(z_NF, action_N, novelty_N=torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(scores_NA[1] - scores_NA[0], 0.5 * net.modulator_out.weight[:, -1])
    torch.testing.assert_close(scores_NA[2] - scores_NA[0], net.modulator_out.weight[:, -1])


def test_the_modulator_and_the_value_train_the_encoder() -> None:
    net = awaken(build_hash_module(MINIGRID, ACTIONS))
    z_NF = net.encode(minigrid_views(8, 8)).flatten(1)
    first = next(net.encoder.parameters())
    for output in (net.modulate(z_NF, torch.zeros(8, dtype=torch.int64))[:, 0], net.value(z_NF)):
        (gradient,) = torch.autograd.grad(output.square().sum(), first, retain_graph=True)
        assert gradient.abs().max() > 0


def test_forward_is_deterministic() -> None:
    observation_N = minigrid_views(40, 20)
    net = build_hash_module(MINIGRID, ACTIONS)
    other = copy.deepcopy(net)
    for _ in range(2):
        assert torch.equal(net.decode(net.encode(observation_N)), other.decode(other.encode(observation_N)))


def test_codes_in_evaluation_do_not_depend_on_the_rest_of_the_batch() -> None:
    net = build_hash_module(MINIGRID, ACTIONS)
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
    net = build_hash_module(MINIGRID, ACTIONS)
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
        build_hash_module(MINIGRID, ACTIONS, condition_on_novelty=True).modulate(
            torch.zeros(2, 576), torch.zeros(2, dtype=torch.int64)
        )
    with pytest.raises(ValueError, match=r"weights must have shape \[2\], one a sample, not \[3\]"):
        net.encode(torch.zeros(2, 7, 7, 3, dtype=torch.uint8), torch.ones(3))


def one_hot(observation_NHWC: Tensor) -> Tensor:
    """Each cell as 11 numbers for its object, 6 for its colour and 4 for its state, cell by cell: [N, 49 x 21]."""
    rows = []
    for view in observation_NHWC:
        row: list[float] = []
        for x in range(7):
            for y in range(7):
                for value, values in zip(view[x, y].tolist(), (11, 6, 4), strict=True):
                    row += [float(value == each) for each in range(values)]
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def test_the_features_of_cells_are_a_linear_layer_on_one_hot_vectors() -> None:
    """Values and gradients."""
    features, views_N = CellFeatures(5).double(), minigrid_views(20, 9)
    views_N[0] = torch.tensor([10, 5, 3])  # the largest of each
    with torch.no_grad():
        features.bias.normal_()
    table, bias = (p.detach().clone().requires_grad_() for p in (features.table, features.bias))
    assert table.shape == (49 * 21, 5)
    expected_NF, found_NF = torch.relu(one_hot(views_N) @ table + bias), features(views_N)
    torch.testing.assert_close(found_NF, expected_NF, rtol=1e-12, atol=1e-12)
    assert 0 < int((found_NF == 0).sum()) < found_NF.numel()
    upstream_NF = torch.randn_like(found_NF)
    expected = torch.autograd.grad(expected_NF, [table, bias], upstream_NF)
    found = torch.autograd.grad(found_NF, [features.table, features.bias], upstream_NF)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_every_value_of_every_cell_has_a_row_of_its_own() -> None:
    """By hand: what one more object at a place adds is the difference of two rows of the table."""
    features, nothing = CellFeatures(3), torch.zeros(1, 7, 7, 3, dtype=torch.uint8)
    with torch.no_grad():
        features.table.abs_()
        features.bias.fill_(100.0)  # so that the ReLU lets everything pass
    for x, y, channel, value, row in ((0, 0, 0, 3, 3), (0, 1, 1, 5, 21 + 11 + 5), (6, 6, 2, 3, 48 * 21 + 17 + 3)):
        view = nothing.clone()
        view[0, x, y, channel] = value
        added_F = (features(view) - features(nothing))[0]
        torch.testing.assert_close(added_F, features.table[row] - features.table[row - value], rtol=0, atol=1e-4)


def test_the_gradient_of_the_features_of_cells() -> None:
    features, views_N = CellFeatures(2).double(), minigrid_views(4, 3)

    def called(table: Tensor, bias: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(features, {"table": table, "bias": bias}, (views_N,))
        return output

    given = [p.detach().clone().requires_grad_() for p in features.parameters()]
    assert torch.autograd.gradcheck(called, given, fast_mode=True)


def test_a_value_that_minigrid_does_not_have_counts_as_the_largest() -> None:
    features = CellFeatures(4)
    largest = torch.tensor([10, 5, 3], dtype=torch.uint8).expand(1, 7, 7, 3)
    for strange in (torch.full((1, 7, 7, 3), 255, dtype=torch.uint8), largest + 1):
        assert torch.equal(features(strange), features(largest))


def test_the_features_begin_of_the_size_of_one() -> None:
    """147 rows of a cell's table add up to numbers of variance 1, before the ReLU."""
    features = CellFeatures(512)
    with torch.no_grad():
        features.bias.fill_(100.0)
        spread = (features(minigrid_views(20, 20)) - 100).std()
    assert 0.9 < spread < 1.1


FEATURES = [
    pytest.param(partial(build_feature_module, MINIGRID), minigrid_views, 128, id="minigrid"),
    pytest.param(partial(build_feature_module, PIXELS), dmlab_pictures, 384, id="dmlab"),
]


@pytest.mark.parametrize(("make", "observe", "width"), FEATURES)
def test_without_a_learned_hash_modulator_and_value_begin_at_zero_too(
    make: Callable[..., FeatureModule], observe: Callable[[int, int], Tensor], width: int
) -> None:
    net, observation_N, action_N = make(ACTIONS), observe(4, 4), torch.tensor([0, 1, 2, 6])
    z_NF = net.encode(observation_N, torch.ones(4))
    assert z_NF.shape == (4, width)
    different = {bytes(each.flatten().tolist()) for each in observation_N}
    assert len({tuple(each.tolist()) for each in z_NF}) == len(different) > 1, "they tell observations apart"
    scores_NA, value_N = net.modulate(z_NF, action_N), net.value(z_NF)
    assert (scores_NA.shape, value_N.shape) == ((4, ACTIONS), (4,))
    assert not scores_NA.any()
    assert not value_N.any()
    told = make(ACTIONS, condition_on_novelty=True)
    z_NF = told.encode(observation_N)
    assert (told.modulate(z_NF, action_N, novelty_N=torch.ones(4)) != 0).all()
    assert not told.value(z_NF).any()


@pytest.mark.parametrize(("make", "observe", "width"), FEATURES)
def test_without_a_learned_hash_modulator_and_value_train_features_of_their_own(
    make: Callable[..., FeatureModule], observe: Callable[[int, int], Tensor], width: int
) -> None:
    net = awaken(make(ACTIONS))
    z_NF = net.encode(observe(4, 4), torch.ones(4))
    parameters = dict(net.features.named_parameters())
    for output in (net.modulate(z_NF, torch.zeros(4, dtype=torch.int64)), net.value(z_NF)):
        loss = (output * torch.randn_like(output)).sum()
        for name, gradient in zip(
            parameters, torch.autograd.grad(loss, list(parameters.values()), retain_graph=True), strict=True
        ):
            assert gradient.any(), name
    with pytest.raises(ValueError, match=rf"z must have shape \[N, {width}\], not \[4, {width - 1}\]"):
        net.value(z_NF[:, 1:])


def test_observations_with_multiplicities_have_the_features_of_pixels_that_all_of_them_have() -> None:
    """Its batch norms see each picture as often as it occurs."""
    pictures_N = dmlab_pictures(12, 3)
    found = distinct(pictures_N)
    plain = build_feature_module(PIXELS, ACTIONS).double()
    weighted = copy.deepcopy(plain)
    expected = plain.encode(pictures_N).detach()
    close(weighted.encode(found.observation_UO, found.multiplicity_U)[found.index_N], expected)
    for wanted, kept in zip(plain.buffers(), weighted.buffers(), strict=True):
        close(kept.double(), wanted.double())
