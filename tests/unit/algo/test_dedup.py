"""The distinct observations of a batch, against looking at one observation after another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leco.algo import dedup
from leco.algo.dedup import as_words, distinct, expand, hash_words, padded, subset
from support.reference import hashes_numpy


def check(observation_NO: torch.Tensor) -> None:
    """Compares everything with a naive computation."""
    rows = [row.tobytes() for row in observation_NO.numpy()]
    in_order = list(dict.fromkeys(rows))
    found = distinct(observation_NO)
    count, size = len(in_order), len(found.observation_UO)
    assert size == min(padded(count), len(rows))
    assert [row.tobytes() for row in found.observation_UO.numpy()] == in_order + in_order[:1] * (size - count)
    assert found.multiplicity_U.dtype == torch.float32
    assert found.multiplicity_U.tolist() == [rows.count(row) for row in in_order] + [0] * (size - count)
    assert found.index_N.tolist() == [in_order.index(row) for row in rows]
    assert torch.equal(expand(found.observation_UO, found.index_N), observation_NO)


def batch(seed: int, n: int, different: int, shape: tuple[int, ...] = (7, 7, 3)) -> torch.Tensor:
    """n views in random order, at most that many of them different."""
    rng = np.random.default_rng(seed)
    views = rng.integers(0, 3, (different, *shape), np.uint8)
    return torch.from_numpy(views[rng.integers(0, different, n)])


def test_by_hand() -> None:
    found = distinct(torch.tensor([[5], [3], [5], [9], [5]], dtype=torch.uint8))
    assert found.observation_UO.tolist() == [[5], [3], [9], [5], [5]]
    assert found.multiplicity_U.tolist() == [3, 1, 1, 0, 0]
    assert found.index_N.tolist() == [0, 1, 0, 2, 0]


@settings(deadline=None)
@given(
    st.integers(1, 20).flatmap(lambda w: st.lists(st.binary(min_size=w, max_size=w) | st.just(bytes(w)), min_size=1))
)
def test_any_batch(rows: list[bytes]) -> None:
    check(torch.tensor([list(row) for row in rows], dtype=torch.uint8))


@pytest.mark.parametrize(("n", "different"), [(1, 1), (64, 1), (300, 33), (300, 1000), (1536, 280)])
def test_views(n: int, different: int) -> None:
    check(batch(0, n, different))


@pytest.mark.parametrize("width", [1, 7, 8, 9, 147])
def test_observations_that_differ_in_one_byte_only(width: int) -> None:
    rows_N = torch.cat([torch.eye(width, dtype=torch.uint8), torch.eye(width, dtype=torch.uint8) * 128])
    check(torch.cat([rows_N, rows_N.flip(0)]))


def test_words_in_another_order_are_another_observation() -> None:
    rows_N = torch.randint(0, 255, (6, 4, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    both_N = torch.cat([rows_N, rows_N.flip(1)])
    check(both_N)
    assert len(set(hash_words(as_words(both_N)).tolist())) == 12, "and is found without sorting all observations"


def test_observations_need_not_be_contiguous() -> None:
    observation_N = batch(1, 100, 10).permute(0, 3, 1, 2)[::2, :, 1:]
    assert torch.equal(distinct(observation_N).index_N, distinct(observation_N.contiguous()).index_N)


@pytest.mark.parametrize("modulus", [1, 7])
def test_observations_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch, modulus: int) -> None:
    whole = dedup.hash_words
    monkeypatch.setattr(dedup, "hash_words", lambda words_NW: whole(words_NW) % modulus)
    check(batch(2, 200, 40))


@settings(deadline=None)
@given(st.integers(1, 40).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), min_size=1)))
def test_words_are_the_bytes_eight_by_eight_filled_up_with_zeros(rows: list[bytes]) -> None:
    words_NW = as_words(torch.tensor([list(row) for row in rows], dtype=torch.uint8))
    assert words_NW.dtype == torch.int64
    expected = [hashes_numpy.words(np.frombuffer(row, np.uint8)) for row in rows]
    assert [[word % 2**64 for word in row] for row in words_NW.tolist()] == expected


def test_words_by_hand() -> None:
    row_N = torch.tensor([[1, 2, 0, 0, 0, 0, 0, 255, 7]], dtype=torch.uint8)
    assert as_words(row_N).tolist() == [[0x201 - (1 << 56), 7]]
    turned_NHW = torch.tensor([[[1, 0], [2, 0]]], dtype=torch.uint8).transpose(1, 2)
    assert as_words(turned_NHW).tolist() == [[0x201]], "words follow the axes and not the memory"


@pytest.mark.parametrize("salt", [0, 1, 2, 5])
def test_hashes_equal_the_naive_reference(salt: int) -> None:
    rows_N = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (30, 147), np.uint8))
    found = [number % 2**64 for number in hash_words(as_words(rows_N), salt).tolist()]
    assert found == [hashes_numpy.hash_words(hashes_numpy.words(row), salt) for row in rows_N.numpy()]


def bits_of(number_N: torch.Tensor) -> torch.Tensor:
    """[N, 64]"""
    return (number_N.unsqueeze(1) >> torch.arange(64)) & 1


def test_hashes_of_two_salts_say_nothing_of_each_other() -> None:
    """No bit of the one foresees a bit of the other, on real bytes and on words that are almost equal."""
    random_NW = as_words(torch.from_numpy(np.random.default_rng(1).integers(0, 11, (4000, 147), np.uint8)))
    near_NW = torch.arange(4000).unsqueeze(1) * torch.tensor([1, 0, 0])
    for words_NW in (random_NW, near_NW):
        one, other = (bits_of(hash_words(words_NW, salt)).double() * 2 - 1 for salt in (0, 1))
        agreement = one.T @ other / len(words_NW)  # of every bit with every bit: 0 on average, 0.016 its deviation
        assert agreement.abs().max() < 6 / len(words_NW) ** 0.5
        assert one.mean(0).abs().max() < 6 / len(words_NW) ** 0.5
        assert len(set(hash_words(words_NW, 1).tolist())) == 4000


def check_subset(observation_NO: torch.Tensor, rows: torch.Tensor) -> None:
    """Compares everything with a naive computation."""
    whole = distinct(observation_NO)
    found = subset(whole, whole.index_N[rows])
    wanted = [observation_NO[row].numpy().tobytes() for row in rows]
    order = [row.tobytes() for row in whole.observation_UO.numpy()]
    once = sorted(set(wanted), key=order.index)  # as they stand in the whole batch
    size = len(found.observation_UO)
    assert size == min(padded(len(once)), len(rows))
    assert [row.tobytes() for row in found.observation_UO.numpy()] == once + once[:1] * (size - len(once))
    assert found.multiplicity_U.dtype == torch.float32
    assert found.multiplicity_U.tolist() == [wanted.count(each) for each in once] + [0] * (size - len(once))
    assert found.index_N.tolist() == [once.index(each) for each in wanted]
    assert torch.equal(expand(found.observation_UO, found.index_N), observation_NO[rows])


@pytest.mark.parametrize(("n", "different", "picked"), [(300, 33, 100), (300, 1000, 150), (64, 1, 5), (40, 40, 1)])
def test_a_subset_has_what_some_rows_show_and_nothing_else(n: int, different: int, picked: int) -> None:
    check_subset(batch(5, n, different), torch.from_numpy(np.random.default_rng(1).integers(0, n, picked)))


def test_a_subset_by_hand() -> None:
    whole = distinct(torch.tensor([[5], [3], [5], [9], [5]], dtype=torch.uint8))
    found = subset(whole, torch.tensor([2, 1, 2]))
    assert found.observation_UO.tolist() == [[3], [9], [3]]
    assert found.multiplicity_U.tolist() == [1, 2, 0]
    assert found.index_N.tolist() == [1, 0, 1]


def test_a_subset_of_everything_is_everything() -> None:
    whole = distinct(batch(6, 300, 40))
    for found, expected in zip(subset(whole, whole.index_N), whole, strict=True):
        assert torch.equal(found, expected)


def test_there_are_few_sizes_and_little_padding() -> None:
    sizes = [padded(count) for count in range(1, 4097)]
    assert all(count <= size <= max(count + 15, count * 9 / 8) for count, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 48
    assert padded(4096) == 4096


def test_a_weighted_sum_over_distinct_observations_is_the_sum_over_the_batch() -> None:
    """Values and gradients; what the padding holds makes no difference to either."""
    observation_N = batch(3, 400, 60)
    found = distinct(observation_N)
    assert (found.multiplicity_U == 0).any()
    weight = torch.randn(147, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    spoilt_UO = found.observation_UO.clone()
    spoilt_UO[found.multiplicity_U == 0] = 77
    whole = torch.sin(observation_N.flatten(1).double() @ weight).sum()
    once = found.multiplicity_U.double() @ torch.sin(spoilt_UO.flatten(1).double() @ weight)
    torch.testing.assert_close(once, whole, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(total, weight)[0] for total in (once, whole)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_the_gradients_of_copies_add_up() -> None:
    found = distinct(batch(4, 100, 8))
    value_U2 = torch.zeros(len(found.observation_UO), 2, dtype=torch.float64, requires_grad=True)
    upstream_N2 = torch.randn(100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (gradient_U2,) = torch.autograd.grad(expand(value_U2, found.index_N), value_U2, upstream_N2)
    for u in range(len(value_U2)):
        torch.testing.assert_close(gradient_U2[u], upstream_N2[found.index_N == u].sum(0))
    once_U2 = torch.randn(len(value_U2), 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda value: expand(value, found.index_N), once_U2)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(4, 3), torch.zeros(4, dtype=torch.uint8), torch.zeros(0, 3, dtype=torch.uint8)], ids=str
)
def test_what_is_no_batch_of_observations_is_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"observations must be uint8 of shape \[N, O...\] and not empty, not torch"):
        distinct(wrong)


def test_an_index_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"an index \[N\], not shapes \[4, 2\] and \[2, 2\]"):
        expand(torch.zeros(4, 2), torch.zeros(2, 2, dtype=torch.int64))


def test_what_collides_with_one_salt_does_not_with_another() -> None:
    """Two words that change places, shifted so that the keys of their positions are made up for under salt 0."""
    keys = [hashes_numpy.hash_key(place, 0) for place in (0, 1)]
    shift = (keys[0] - keys[1]) % 2**64
    a, b = 123456789, 987654321
    rows = [[a, b], [(b - shift) % 2**64, (a + shift) % 2**64]]
    words_NW = torch.tensor([[x - 2**64 if x >= 2**63 else x for x in row] for row in rows])
    first, second = (dedup.hash_words(words_NW, salt).tolist() for salt in (0, 1))
    assert first[0] == first[1]
    assert second[0] != second[1]
