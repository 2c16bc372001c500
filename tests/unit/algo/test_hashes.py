"""AE-LSH and DSC against computing one observation at a time, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leco.algo.hashes import binarisation_loss, dsc_code, lsh_code


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("bits", [1, 8, 25, 62])
def test_lsh_equals_the_definition(bits: int) -> None:
    bottleneck = torch.rand(20, 16, generator=generator(1))
    projection = torch.randn(bits, 16, generator=generator(2))
    code = lsh_code(bottleneck, projection).numpy()
    assert code.shape == (20, -(-bits // 8))
    for row, b in zip(code, bottleneck.numpy(), strict=True):
        found = np.unpackbits(row, bitorder="little")
        for p, a in enumerate(projection.numpy().astype(float)):
            assert found[p] == (a @ np.round(b) >= 0)
        assert not found[bits:].any()


def test_lsh_by_hand() -> None:
    bottleneck = torch.tensor([[0.9, 0.2], [0.1, 0.8], [0.0, 0.0]])
    projection = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 1.0]])
    assert lsh_code(bottleneck, projection).tolist() == [[0b001], [0b111], [0b111]]


def test_a_code_does_not_depend_on_what_else_is_in_the_batch() -> None:
    bottleneck, projection = torch.rand(64, 256, generator=generator(3)), torch.randn(25, 256, generator=generator(4))
    together = lsh_code(bottleneck, projection)
    assert torch.equal(together, torch.cat([lsh_code(row[None], projection) for row in bottleneck]))


def test_binarisation_by_hand_and_with_multiplicities() -> None:
    b = torch.tensor([[0.0, 0.5], [0.9, 0.2]], dtype=torch.float64)
    assert binarisation_loss(b).item() == pytest.approx((0 + 0.25 + 0.01 + 0.04) / 4)
    expanded = torch.stack([b[0], b[0], b[0], b[1]])
    weighted = binarisation_loss(b, torch.tensor([3.0, 1.0]))
    assert weighted.item() == pytest.approx(binarisation_loss(expanded).item())


def test_binarisation_gradient() -> None:
    b = torch.rand(4, 5, generator=generator(5), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(binarisation_loss, b)


def test_dsc_by_hand() -> None:
    """7 x 7 to 3 x 3 keeps rows and columns 0, 2 and 4."""
    observation = torch.zeros(1, 7, 7, 3, dtype=torch.uint8)
    observation[0, 2, 4] = torch.tensor([10, 5, 2])
    observation[0, 3, 3] = 1  # not looked at
    code = dsc_code(observation, size=(3, 3), levels=11, maximum=(10, 5, 2)).view(3, 3, 3)
    assert code[1, 2].tolist() == [10, 5 * 11 // 6, 2 * 11 // 3]
    assert code.sum() == code[1, 2].sum()


def test_dsc_equals_looping_over_everything() -> None:
    observation = torch.randint(256, (5, 72, 96, 3), generator=generator(6)).to(torch.uint8)
    code = dsc_code(observation, size=(3, 2), levels=4, maximum=(255, 255, 255)).view(5, 3, 2, 3)
    for n in range(5):
        for i in range(3):
            for j in range(2):
                expected = [int(v) * 4 // 256 for v in observation[n, i * 72 // 3, j * 96 // 2]]
                assert code[n, i, j].tolist() == expected


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"projection_PF \(25, 255\)"):
        lsh_code(torch.zeros(2, 256), torch.zeros(25, 255))
    with pytest.raises(ValueError, match="one maximum for each channel"):
        dsc_code(torch.zeros(2, 7, 7, 3, dtype=torch.uint8), size=(3, 3), levels=11, maximum=(10,))
    with pytest.raises(ValueError, match="1 to 256"):
        dsc_code(torch.zeros(2, 7, 7, 3, dtype=torch.uint8), size=(3, 3), levels=300, maximum=(10, 5, 2))
