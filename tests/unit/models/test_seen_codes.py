"""What first visits are worth, against dictionaries."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from leco.models.seen_codes import BUCKETS, DECAY, SeenCodes

T, B, M = 6, 3, 2
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def batch(seed: int) -> Batch:
    """Counts of the finest codes, of coarser ones, and those codes."""
    random = np.random.default_rng(seed)
    count_TB, coarse_count_TBM = random.integers(1, 3, (T, B)), random.integers(1, 4, (T, B, M))
    code_TBM = random.integers(0, 5, (T, B, M))
    return torch.from_numpy(count_TB), torch.from_numpy(coarse_count_TBM), torch.from_numpy(code_TBM)


def naive(batches: list[Batch]) -> np.ndarray:
    """The information in the last batch's first visits, beyond that of other steps, after all of them."""

    def worth(number: float) -> float:
        p = (number + 1) / (steps + 1)
        return max(math.log((1 - p) / p), 0.0) if p < 1 else 0.0

    steps = fine = 0.0
    visits: dict[int, float] = defaultdict(float)
    for count_TB, coarse_count_TBM, code_TBM in batches:
        steps, fine = DECAY * steps + T * B, DECAY * fine + float((count_TB == 1).sum())
        visits = defaultdict(float, {code: DECAY * number for code, number in visits.items()})
        for t, b, m in np.ndindex(T, B, M):
            visits[int(code_TBM[t, b, m])] += float(coarse_count_TBM[t, b, m] == 1)
    count_TB, coarse_count_TBM, code_TBM = batches[-1]
    found = np.zeros((T, B))
    for t, b in np.ndindex(T, B):
        if count_TB[t, b] == 1:
            found[t, b] += worth(fine)
        for m in range(M):
            if coarse_count_TBM[t, b, m] == 1:
                found[t, b] += worth(visits[int(code_TBM[t, b, m])])
    return found


def test_information_over_batches_is_that_of_dictionaries() -> None:
    seen, batches = SeenCodes().double(), [batch(seed) for seed in range(7)]
    for number, each in enumerate(batches, 1):
        np.testing.assert_allclose(seen(*each).numpy(), naive(batches[:number]), rtol=1e-12)


def test_what_is_looked_at_in_evaluation_is_not_remembered() -> None:
    seen = SeenCodes()
    seen(*batch(0))
    before = {name: buffer.clone() for name, buffer in seen.named_buffers()}
    first, second = seen.eval()(*batch(1)), seen(*batch(1))
    assert torch.equal(first, second)
    assert all(torch.equal(before[name], buffer) for name, buffer in seen.named_buffers())


def test_a_rare_code_is_worth_more_than_a_common_one_and_a_second_visit_nothing() -> None:
    seen = SeenCodes()
    common, rare = torch.zeros(100, 1, 1, dtype=torch.long), torch.full((1, 1, 1), 7)
    again = torch.full((100, 1), 2)
    seen(again, torch.ones(100, 1, 1, dtype=torch.long), common)
    seen.eval()
    one = torch.ones(1, 1, 1, dtype=torch.long)
    worth = {name: float(seen(again[:1], one, code)) for name, code in (("common", common[:1]), ("rare", rare))}
    assert worth["common"] == 0
    assert worth["rare"] == pytest.approx(math.log(100))
    assert float(seen(again[:1], 2 * one, rare)) == 0


def test_without_coarser_codes_all_first_visits_are_worth_the_same() -> None:
    count_TB = torch.tensor([[1, 2], [2, 1], [2, 2], [2, 2]])
    worth = SeenCodes()(count_TB, None, None)
    assert worth[count_TB == 1].tolist() == pytest.approx([math.log(6 / 3)] * 2)
    assert not worth[count_TB == 2].any()


def test_where_most_steps_are_first_visits_they_are_worth_nothing() -> None:
    """Else whoever moves things about, so that every view is new, is paid for it for ever."""
    assert not SeenCodes()(torch.tensor([[1, 2], [2, 1], [1, 1]]), None, None).any()


def test_codes_of_32_bits_fall_into_buckets() -> None:
    for code in (2**32 - 1, BUCKETS):
        code_TBM = torch.tensor([[[0, code]]])
        assert torch.isfinite(SeenCodes()(torch.ones(1, 1), torch.ones(1, 1, 2), code_TBM)).all()
