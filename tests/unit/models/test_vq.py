"""What z_e passes on its way to the decoder. The mathematics below it has tests of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leco.algo.quantize import quantize
from leco.models.intrinsic import build_hash_module
from leco.models.kinds.table import MINIGRID, PIXELS
from leco.models.vq import LSHBottleneck, VectorQuantizer

N, D, SIZE = 6, 4, (3, 2)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def z() -> Tensor:
    return torch.randn(N, D, *SIZE, dtype=torch.float64, requires_grad=True)


def bits() -> LSHBottleneck:
    return LSHBottleneck(10, 11, D, SIZE).double()


def noise(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_codebook_is_quantisation() -> None:
    codebook, z_NDHW, weight_N = VectorQuantizer(5, D, SIZE).double(), z(), torch.arange(1.0, N + 1)
    squeezed = codebook(z_NDHW, weight_N, noise())
    expected = quantize(z_NDHW, codebook.vectors, weight_N)
    assert torch.equal(squeezed.z_NDHW, expected.z_q_NDHW)
    assert squeezed.loss == expected.codebook_term + expected.commitment_term
    assert codebook.code(z_NDHW).tolist() == expected.index_NHW.flatten(1).tolist()
    assert codebook.code(z_NDHW).shape == (N, codebook.code_width) == (N, 6)
    assert 0.9 / 5 < VectorQuantizer(5, 64, SIZE).vectors.abs().max() <= 1 / 5


def test_bits_by_hand() -> None:
    """The formulas of algorithm.md, section 2, one number at a time."""
    net, z_NDHW, weight_N = bits(), z(), torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0, 1.0])
    squeezed = net(z_NDHW, weight_N)
    b_NF = 1 / (1 + torch.exp(-(z_NDHW.flatten(1) @ net.narrow.weight.T + net.narrow.bias)))
    torch.testing.assert_close(
        squeezed.z_NDHW.flatten(1), b_NF @ net.widen.weight.T + net.widen.bias, rtol=1e-12, atol=1e-12
    )
    total = 0.0
    for n in range(N):
        for b in b_NF[n].tolist():
            total += weight_N[n].item() * min(b**2, (1 - b) ** 2)
    assert squeezed.loss.item() == pytest.approx(10 * total / (8 * 10), rel=1e-12)
    for n, code in enumerate(net.code(z_NDHW).tolist()):
        signs = (net.projection_PF @ (b_NF[n] > 0.5).double() >= 0).tolist()
        assert [bool(code[p // 8] >> (p % 8) & 1) for p in range(11)] == signs


def test_noise_is_uniform_up_to_three_tenths_and_only_there_if_asked_for() -> None:
    net, z_NDHW = LSHBottleneck(24, 11, D, SIZE).double(), torch.randn(400, D, *SIZE, dtype=torch.float64)
    with torch.no_grad():
        net.widen.weight.copy_(torch.eye(24))  # then the decoder sees the noisy bottleneck itself
        net.widen.bias.zero_()
    quiet, loud = net(z_NDHW), net(z_NDHW, None, noise())
    difference = (loud.z_NDHW - quiet.z_NDHW).flatten()
    assert -0.3 <= difference.min() < -0.299
    assert 0.299 < difference.max() <= 0.3
    assert difference.mean().abs() < 0.01
    assert difference.var().item() == pytest.approx(0.6**2 / 12, rel=0.03)
    assert loud.loss == quiet.loss, "the pressure is on the bottleneck itself"
    assert torch.equal(net(z_NDHW, None, noise()).z_NDHW, loud.z_NDHW)
    assert not torch.equal(net(z_NDHW, None, noise(4)).z_NDHW, loud.z_NDHW)
    assert torch.equal(net(z_NDHW).z_NDHW, quiet.z_NDHW)


def test_bits_gradients() -> None:
    net, weight_N = bits(), torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0, 1.0])

    def run(z_NDHW: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        names = [name for name, _ in net.named_parameters()]
        out = torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (z_NDHW, weight_N, noise()))
        return out.z_NDHW, out.loss

    torch.autograd.gradcheck(run, (z(), *(p.detach().requires_grad_() for p in net.parameters())))


def test_the_pressure_makes_bits() -> None:
    net, z_NDHW = bits(), z().detach()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
    before = net(z_NDHW).loss.item()
    for _ in range(100):
        optimiser.zero_grad()
        net(z_NDHW).loss.backward()
        optimiser.step()
    assert net(z_NDHW).loss.item() < 0.02 * before


def test_sizes_are_those_of_the_paper() -> None:
    for kind, units, code_bits, width in ((MINIGRID, 256, 25, 4), (PIXELS, 512, 62, 8)):
        net = build_hash_module(kind, 7, bits=True)
        assert isinstance(net.bottleneck, LSHBottleneck)
        assert net.bottleneck.projection_PF.shape == (code_bits, units)
        assert net.bottleneck.code_width == width
    view_N = torch.randint(3, (5, 7, 7, 3), dtype=torch.uint8)
    for net in (build_hash_module(MINIGRID, 7, bits=True), build_hash_module(MINIGRID, 7)):
        code_N = net.eval().code(view_N)
        assert code_N.dtype == torch.uint8
        assert code_N.shape == (5, net.bottleneck.code_width)
        assert torch.equal(net.code(view_N[2:3]), code_N[2:3]), "whatever else is in the batch"


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"z must have shape \[N, 4, 3, 2\], not \[6, 4, 2, 3\]"):
        bits().code(torch.zeros(N, D, 2, 3))
