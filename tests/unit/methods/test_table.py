"""The method table is the paper's, with two counts of our own; any hash can take the place of a method's."""

from __future__ import annotations

import dataclasses

import pytest

from leco.methods.table import METHODS, Hash, Modulation, find_method

KINDS = ("vq", "ae-lsh", "dsc", "exact", "objects")


def test_the_rows_are_those_of_the_paper_and_two_counts_without_a_network() -> None:
    rows = {name: (m.hash.value, m.bonus, m.modulation.value) for name, m in METHODS.items()}
    assert rows == {
        "no-int": ("-", "-", "-"),
        "exact": ("exact", "1/sqrt(N)", "-"),
        "objects": ("objects", "1/sqrt(N)", "-"),
        "dsc": ("dsc", "1/sqrt(N)", "-"),
        "ae-lsh": ("ae-lsh", "1/sqrt(N)", "-"),
        "vq-only": ("vq", "1/sqrt(N)", "-"),
        "leco": ("vq", "1/sqrt(N)", "additive"),
        "leco-ae-lsh": ("ae-lsh", "1/sqrt(N)", "additive"),
        "leco-naive": ("vq", "1/sqrt(N)", "replacing"),
        "lirpg": ("vq", "-", "additive"),
        "noveld": ("vq", "max(n(s') - 0.5 n(s), 0) if N = 1", "-"),
        "rnd": ("-", "RND error", "-"),
        "ride": ("vq", "||phi(s') - phi(s)|| / sqrt(N)", "-"),
        "agac": ("vq", "floor(1/sqrt(N)), and an adversary", "-"),
    }


def test_only_methods_with_a_hash_and_a_novelty_need_counts() -> None:
    assert {name for name, method in METHODS.items() if not method.counts} == {"no-int", "lirpg", "rnd"}


def test_no_two_methods_are_the_same() -> None:
    assert len({(m.hash, m.novelty, m.modulation, m.lambda_) for m in METHODS.values()}) == len(METHODS)


def test_a_method_by_name() -> None:
    method = find_method("leco")
    assert (method.hash, method.novelty, method.modulation) == (Hash.VQ, "count", Modulation.ADDITIVE)


def test_an_unknown_method_names_one_that_is_near() -> None:
    with pytest.raises(ValueError, match=r"no method 'leko'; did you mean 'leco'\?"):
        find_method("leko")
    with pytest.raises(ValueError, match=r"no method 'zzz'; `leco methods` lists them"):
        find_method("zzz")
    with pytest.raises(ValueError, match=r"no method 'leko'; did you mean 'leco'\?"):
        find_method("leko", "exact")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.hash is not Hash.NONE])
def test_a_method_counts_with_the_hash_that_is_asked_for_and_stays_the_same_otherwise(name: str, kind: str) -> None:
    method, own = find_method(name, kind), find_method(name)
    assert method.hash.value == kind
    assert dataclasses.replace(method, hash=own.hash) == own == METHODS[name]
    assert method.counts == own.counts
    assert method.learns_hash == (kind in ("vq", "ae-lsh"))
    assert method.has_intrinsic == (method.learns_hash or own.modulation is not Modulation.NONE)
    assert find_method(name, own.hash.value) == own


@pytest.mark.parametrize("name", ["no-int", "rnd"])
def test_a_method_without_a_hash_is_given_none(name: str) -> None:
    assert find_method(name, None).hash is Hash.NONE
    with pytest.raises(ValueError, match=f"hash.kind is 'exact', but method '{name}' has no hash: leave it out"):
        find_method(name, "exact")


def test_the_table_has_every_kind_of_hash() -> None:
    assert {method.hash.value for method in METHODS.values()} == {*KINDS, "-"}
