"""The method table is the paper's."""

from __future__ import annotations

import pytest

from leco.methods import METHODS, Hash, Modulation, Novelty, find_method


def test_the_rows_are_those_of_the_paper() -> None:
    rows = {name: (m.hash.value, m.novelty.value, m.modulation.value) for name, m in METHODS.items()}
    assert rows == {
        "no-int": ("-", "-", "-"),
        "dsc": ("DSC", "1/sqrt(N)", "-"),
        "ae-lsh": ("AE-LSH", "1/sqrt(N)", "-"),
        "vq-only": ("VQ", "1/sqrt(N)", "-"),
        "leco": ("VQ", "1/sqrt(N)", "additive"),
        "leco-ae-lsh": ("AE-LSH", "1/sqrt(N)", "additive"),
        "leco-naive": ("VQ", "1/sqrt(N)", "replacing"),
        "lirpg": ("VQ", "-", "additive"),
        "noveld": ("VQ", "max(n(s') - 0.5 n(s), 0) if N = 1", "-"),
        "rnd": ("-", "RND error", "-"),
        "ride": ("VQ", "||phi(s') - phi(s)|| / sqrt(N)", "-"),
        "agac": ("VQ", "floor(1/sqrt(N)), and an adversary", "-"),
    }


def test_only_methods_with_a_hash_and_a_novelty_need_counts() -> None:
    assert {name for name, method in METHODS.items() if not method.counts} == {"no-int", "lirpg", "rnd"}


def test_no_two_methods_are_the_same() -> None:
    assert len({(m.hash, m.novelty, m.modulation, m.lambda_) for m in METHODS.values()}) == len(METHODS)


def test_a_method_by_name() -> None:
    method = find_method("leco")
    assert (method.hash, method.novelty, method.modulation) == (Hash.VQ, Novelty.COUNT, Modulation.ADDITIVE)


def test_an_unknown_method_names_the_nearest_and_lists_all() -> None:
    with pytest.raises(ValueError, match=r"no method 'leko': did you mean 'leco'\? The methods are: no-int, dsc, "):
        find_method("leko")
    with pytest.raises(ValueError, match=r"no method 'zzz'\. The methods are"):
        find_method("zzz")
