"""One rank alone; several are in tests/integration/test_ranks.py."""

from __future__ import annotations

import torch

from leco.algo.ranks import all_mean, all_sum, any_rank, part, take_from_first, whole


def test_to_one_rank_alone_nothing_happens() -> None:
    x = torch.arange(6.0, requires_grad=True)
    assert whole(x, part(), x.shape) is x
    assert all_sum(x) is x
    assert x[part()].tolist() == x.tolist()
    named = {"b": x, "a": x}
    assert all_mean(named) == named
    assert list(all_mean(named)) == ["b", "a"]
    take_from_first([x])
    assert [any_rank(torch.tensor(each)) for each in (True, False)] == [True, False]
