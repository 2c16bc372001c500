from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leco.algo.sampling import systematic_sample
from support.reference.sampling_numpy import hits


def counted(weight_U: Tensor, size: int, offset: float) -> list[int]:
    sample = systematic_sample(weight_U, size, offset)
    assert len(set(sample.index_S.tolist())) == len(sample.index_S), "rows are distinct"
    found = [0] * len(weight_U)
    for row, weight in zip(sample.index_S.tolist(), sample.weight_S.tolist(), strict=True):
        found[row] = int(weight)
    return found


def test_by_hand() -> None:
    """Five marks at 0.5, 2.5, 4.5, 6.5 and 8.5 on a line of 1 + 6 + 0 + 0 + 2 + 1."""
    weight_U = torch.tensor([1.0, 6.0, 0.0, 0.0, 2.0, 1.0])
    assert counted(weight_U, 5, 0.25) == [1, 3, 0, 0, 1, 0]


def test_against_the_naive_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    for trial in range(50):
        weight_U = torch.randint(0, 20, (30,), generator=generator).float()
        offset = float(torch.rand(1, generator=generator))
        assert counted(weight_U, 12, offset) == hits(weight_U.tolist(), 12, offset), trial


def test_a_mark_where_one_row_ends_belongs_to_the_next() -> None:
    weight_U = torch.tensor([0.0, 2.0, 1.0, 0.0, 1.0, 2.0])
    for size in (1, 2, 3, 5):
        assert counted(weight_U, size, 0.0) == hits(weight_U.tolist(), size, 0.0)
    assert counted(weight_U, 3, 0.0) == [0, 1, 1, 0, 0, 1]


def test_a_row_is_hit_as_often_as_its_weight_says_and_never_further_than_one_from_it() -> None:
    weight_U = torch.tensor([40.0, 1.0, 1.0, 7.0, 0.0, 3.0, 11.0, 1.0, 0.5, 0.5])
    size, offsets = 4, 1000
    expected = size * weight_U / weight_U.sum()
    each = torch.tensor([counted(weight_U, size, k / offsets) for k in range(offsets)]).float()
    assert ((each - expected).abs() < 1).all()
    torch.testing.assert_close(each.mean(0), expected, rtol=0, atol=2 / offsets)
    assert (each.sum(1) == size).all()


def test_if_all_rows_fit_they_are_all_there_with_their_weights() -> None:
    weight_U = torch.tensor([3.0, 1.0, 0.0])
    for size in (3, 8):
        sample = systematic_sample(weight_U, size, 0.9)
        assert sample.index_S.tolist() == [0, 1, 2]
        assert torch.equal(sample.weight_S, weight_U)


def test_a_row_without_weight_is_padding_only() -> None:
    weight_U = torch.zeros(100)
    weight_U[7] = 2.0
    assert counted(weight_U, 10, 0.999)[7] == 10


@pytest.mark.parametrize(
    ("weight_U", "size", "offset", "message"),
    [
        (torch.ones(2, 3), 2, 0.0, r"weight_U has shape \(2, 3\), expected \[U\] with U at least 1"),
        (torch.ones(0), 2, 0.0, "with U at least 1"),
        (torch.ones(3), 0, 0.0, "size is 0, expected at least 1"),
        (torch.ones(3), 2, 1.0, r"offset is 1\.0, expected 0 or more and less than 1"),
        (torch.ones(3), 2, -0.1, r"offset is -0\.1"),
    ],
)
def test_refusals(weight_U: Tensor, size: int, offset: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        systematic_sample(weight_U, size, offset)
