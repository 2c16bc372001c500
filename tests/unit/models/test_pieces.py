"""A batch in pieces gives what it gives whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from leco.learning import intrinsic_pass
from leco.learning.state import Networks, TrainingState, init
from leco.learning.update import update
from leco.methods.table import find_method
from leco.models import pieces as pieces_module
from leco.models import weighted_norm
from leco.models.build import build
from leco.models.kinds.pixels import PixelPolicy
from leco.models.pieces import map_pieces, pieces, sum_pieces
from leco.models.weighted_norm import Normed
from support.training_case import awaken, paper_config, picture_batch

if TYPE_CHECKING:
    from collections.abc import Callable

PICTURE = (24, 32, 3)
WEIGHT_N = torch.tensor([2.0, 0, 1, 3, 0, 1, 4])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes pieces of one or two samples, and has nothing kept that can be computed anew."""

    def begin() -> None:
        monkeypatch.setitem(pieces_module._ELEMENTS, "cpu", 1 << 14)
        monkeypatch.setattr(weighted_norm, "_KEPT", 0)
        monkeypatch.setattr(intrinsic_pass, "_LARGE", 0)

    return begin


def close(actual: Tensor, expected: Tensor) -> None:
    """To 1e-10 of the largest element."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10 * float(expected.detach().abs().max()))


@pytest.mark.parametrize(("samples", "elements"), [(1, 5), (7, 1 << 20), (7, 1 << 30), (5, 1 << 21)])
def test_pieces_cover_a_batch(samples: int, elements: int) -> None:
    found = list(pieces(samples, elements, torch.device("cpu")))
    assert [n for each in found for n in range(samples)[each]] == list(range(samples))
    largest = max(len(range(samples)[each]) for each in found)
    assert largest == 1 or largest * elements <= pieces_module._ELEMENTS["cpu"]


def test_a_map_and_a_sum_have_the_gradients_of_the_whole() -> None:
    x = torch.randn(7, 3, dtype=torch.float64)
    weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    slices = [slice(0, 3), slice(3, 6), slice(6, 7)]

    def act(x_N: Tensor, weight: Tensor) -> Tensor:
        return (x_N @ weight).tanh()

    whole = act(x, weight)
    upstream = torch.randn_like(whole)
    close(map_pieces(act, x, [weight], slices), whole)
    (expected,) = torch.autograd.grad(whole, weight, upstream)
    ours = map_pieces(act, x, [weight], slices)
    for _ in range(2):  # a graph may be gone through twice, as the policy's is
        (found,) = torch.autograd.grad(ours, weight, upstream, retain_graph=True)
        close(found, expected)
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(weight.detach(), torch.ones_like(weight))
        close(
            forward_ad.unpack_dual(map_pieces(act, x, [dual], slices)).tangent,
            forward_ad.unpack_dual(act(x, dual)).tangent,
        )

    leaf = x.clone().requires_grad_()
    total = (WEIGHT_N[:, None] * act(leaf, weight)).sum()
    ours = sum_pieces(lambda x_P, piece, w: (WEIGHT_N[piece, None] * act(x_P, w)).sum(), leaf, [weight], slices)
    close(ours, total)
    for actual, wanted in zip(
        torch.autograd.grad(3 * ours, [leaf, weight]), torch.autograd.grad(3 * total, [leaf, weight]), strict=True
    ):
        close(actual, wanted)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(
    ("convolution", "skip"),
    [
        (nn.Conv2d(3, 5, 4, 2, 1, bias=False), nn.Sequential(nn.AvgPool2d(4, 2, 1), nn.Conv2d(3, 5, 1))),
        (
            nn.ConvTranspose2d(3, 5, 4, 2, 1, bias=False),
            nn.Sequential(nn.Conv2d(3, 5, 1), nn.Upsample(scale_factor=2, mode="nearest")),
        ),
        (nn.Conv2d(3, 5, 3, padding=1, bias=False), None),
    ],
    ids=["down", "up", "same"],
)
def test_a_norm_in_pieces_is_torchs_on_repeated_samples(
    convolution: nn.Conv2d | nn.ConvTranspose2d, skip: nn.Module | None, relu: bool, small: Callable[[], None]
) -> None:
    small()
    ours = Normed(convolution, relu=relu).double()
    skip = skip and skip.double()
    parameters = [*ours.parameters(), *(skip.parameters() if skip else ())]
    x = (5 + torch.randn(7, 3, 40, 32, dtype=torch.float64)).requires_grad_()
    index_M = torch.arange(7).repeat_interleave(WEIGHT_N.long())
    norm = nn.BatchNorm2d(5).double()
    norm.load_state_dict(ours.norm.state_dict())
    normalised = norm(convolution(x[index_M]))
    expected = (normalised.relu() if relu else normalised) + (skip(x[index_M]) if skip else 0)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [x, convolution.weight, norm.weight, norm.bias, *parameters[3:]], upstream)
    y = ours(x, WEIGHT_N, skip)
    close(y[index_M], expected)
    summed = torch.zeros_like(y).index_add(0, index_M, upstream)
    for actual, each in zip(torch.autograd.grad(y, [x, *parameters], summed), wanted, strict=True):
        close(actual, each)
    for name, value in norm.state_dict().items():
        close(ours.norm.state_dict()[name].double(), value.double())


def test_a_policys_encoder_in_pieces(small: Callable[[], None]) -> None:
    encoder = PixelPolicy(7, 16, shape=PICTURE).double().encoder
    picture = torch.randint(256, (5, 3, 24, 32)).double()
    directions = {name: torch.randn_like(each) for name, each in encoder.named_parameters()}

    def found() -> list[Tensor]:
        features = encoder(picture)
        grads = torch.autograd.grad(features.square().sum(), list(encoder.parameters()))
        with torch.no_grad(), forward_ad.dual_level():
            duals = {n: forward_ad.make_dual(p.detach(), directions[n]) for n, p in encoder.named_parameters()}
            tangent = forward_ad.unpack_dual(functional_call(encoder, duals, picture)).tangent
        return [features.detach(), *grads, tangent]

    whole = found()
    small()
    for actual, expected in zip(found(), whole, strict=True):
        close(actual, expected)


@pytest.mark.parametrize("method", ["leco", "leco-ae-lsh"])
@pytest.mark.parametrize("changes", [{}, {"decoder_samples": 5, "inner_loss": "full"}], ids=["paper", "sampled"])
def test_an_update_in_pieces(method: str, changes: dict[str, object], small: Callable[[], None]) -> None:
    nets = build(find_method(method), PICTURE, 7)
    assert nets.intrinsic is not None
    awaken(nets.intrinsic)
    nets = Networks(*(net and net.double() for net in nets))  # type: ignore[arg-type]
    state, batch = init(nets), picture_batch(PICTURE)

    def after() -> TrainingState:
        return update(nets, state, batch, find_method(method), paper_config(**changes))[0]

    whole = after()
    small()
    ours = after()
    for name in ("running", "policy", "intrinsic"):
        for key, expected in getattr(whole, name).items():
            close(getattr(ours, name)[key].double(), expected.double())
    for adam in ("policy_adam", "intrinsic_adam"):
        for key, expected in getattr(whole, adam).exp_avg.items():
            close(getattr(ours, adam).exp_avg[key], expected)
